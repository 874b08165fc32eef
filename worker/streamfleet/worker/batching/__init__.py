"""Batching policies: they decide when to pull, how many requests, and when to start the pulled ones."""

from __future__ import annotations

from streamfleet.worker.batching.adaptive import Adaptive
from streamfleet.worker.batching.policy import DEFAULT_WINDOW, Continuous, Policy, Window

__all__ = ["DEFAULT_WINDOW", "Adaptive", "Continuous", "Policy", "Window"]
