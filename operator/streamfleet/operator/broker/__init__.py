"""The operators' broker: one method for each operation that an operator may do, each a script or command.

Everything that a queue holds can be read through it, in bounded calls. It pauses lanes, drains workers, requeues and
purges dead letters, and repairs damage; it neither enqueues requests nor takes them.
"""

from __future__ import annotations

from streamfleet.operator.broker.control import ControlBroker
from streamfleet.operator.broker.inspecting import InspectingBroker
from streamfleet.operator.broker.repairing import RepairBroker

__all__ = ["OperatorBroker"]


class OperatorBroker(ControlBroker, InspectingBroker, RepairBroker):
    """Verbs of operators on one queue."""
