"""Batching policies: when to pull, how much, and when to start what was pulled."""

from __future__ import annotations

from streamfleet.worker.batching.adaptive import Adaptive
from streamfleet.worker.batching.policy import DEFAULT_WINDOW, Continuous, Policy, Window

__all__ = ["DEFAULT_WINDOW", "Adaptive", "Continuous", "Policy", "Window"]
