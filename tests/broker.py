"""A broker with the verbs of every role, for tests that play all of them."""

from __future__ import annotations

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.operator.broker import OperatorBroker


class Broker(ProducerBroker, WorkerBroker, OperatorBroker):
    """One queue on one Redis, with all its operations."""
