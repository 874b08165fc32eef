"""The connection to Redis: one server, one behind Sentinel, or the node of a cluster that holds the queue's slot."""

from __future__ import annotations

from streamfleet.common.connection.connection import ANSWER_TIMEOUT_S, Connection
from streamfleet.common.connection.translation import MissingGroup, another_type
from streamfleet.common.connection.urls import safe_address

__all__ = ["ANSWER_TIMEOUT_S", "Connection", "MissingGroup", "another_type", "safe_address"]
