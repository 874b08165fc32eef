"""The only code that sends commands about queues to Redis: one typed method per operation, each a script or command."""

from __future__ import annotations

from streamfleet.common.broker.housekeeping import HousekeepingBroker
from streamfleet.common.broker.inspecting import InspectingBroker
from streamfleet.common.broker.producing import ProducerBroker
from streamfleet.common.broker.repairing import RepairBroker
from streamfleet.common.broker.steering import SteeringBroker
from streamfleet.common.broker.streaming import StreamingBroker
from streamfleet.common.broker.working import WorkerBroker

__all__ = ["Broker"]


class Broker(
    ProducerBroker,
    WorkerBroker,
    StreamingBroker,
    HousekeepingBroker,
    RepairBroker,
    SteeringBroker,
    InspectingBroker,
):
    """One queue on one Redis, with all its operations."""
