"""Checkpoints: whose output is kept, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from streamfleet.common.broker.types import Lease, RenewCode
from streamfleet.common.clock import SystemClock
from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.worker.engine.base import EngineRequest, Partial
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.keeping import Checkpoints
from tests.unit.worker_requests import in_flight_request


class Kept:
    """A queue that keeps output; it may say that leases are lost, or fail."""

    def __init__(self) -> None:
        self.outputs: dict[str, bytes] = {}
        self.named: dict[Lease, str] | None = {}
        self.code, self.fault = RenewCode.RENEWED, cast("Exception | None", None)

    async def keep(self, outputs: Mapping[str, bytes]) -> bool:
        self.outputs.update(outputs)
        return True

    async def renew(self, _: str, leases: Sequence[Lease], kept: Mapping[Lease, Any]) -> list[RenewCode]:
        assert list(kept) == leases
        if self.named is not None:
            self.named |= {lease: kept[lease][0] for lease in leases}
        if self.fault is not None:
            raise self.fault
        return [self.code] * len(leases)


def running(made: int, resumed: int = 0) -> InFlightRequest:
    request = in_flight_request(made)
    asked = request.asked = EngineRequest("r", CHAT, {}, Lane.LOW, made=made, resumed_tokens=resumed)
    asked.snapshot = lambda: Partial(asked.made, b"state")
    return request


def checkpoints(*requests: InFlightRequest) -> tuple[Checkpoints, Kept]:
    in_flight, kept = InFlight(), Kept()
    for request in requests:
        in_flight.add(request)
    return Checkpoints(cast("Any", kept), "w1", in_flight, SystemClock(), 64), kept


@pytest.mark.parametrize(("made", "resumed", "kept"), [(31, 0, 0), (32, 0, 1), (131, 100, 0), (132, 100, 1)])
async def test_each_half_of_an_interval_is_kept(made: int, resumed: int, kept: int) -> None:
    keeper, queue = checkpoints(running(made, resumed))
    await keeper.look()
    assert len(queue.outputs) == kept


async def test_only_what_was_made_since_the_last_one_counts_for_the_next() -> None:
    request = running(40)
    keeper, queue = checkpoints(request)
    assert request.asked is not None
    for made in (40, 71, 72):
        request.asked.made = made
        await keeper.look()
    assert list(queue.outputs.values()) == [b"40 state", b"72 state"]


async def test_after_a_lost_lease_nothing_counts_as_kept() -> None:
    request = running(40)
    keeper, queue = checkpoints(request)
    queue.code = RenewCode.LOST
    await keeper.look()
    assert request.kept_tokens == 0


@pytest.mark.parametrize("named", [True, False])
async def test_output_whose_renewal_has_no_answer_stays_and_is_one_however_often(named: bool) -> None:
    """Redis may have named it, and nothing counts it if not: so it is neither deleted nor stored under further runs."""
    request = running(40)
    keeper, queue = checkpoints(request)
    queue.fault, queue.named = BrokerUnavailable("the answer was lost"), {} if named else None
    assert request.asked is not None
    for made in (40, 50, 60):
        request.asked.made = made
        with pytest.raises(BrokerUnavailable):
            await keeper.look()
    ((run, output),) = queue.outputs.items()
    assert output == b"60 state"
    assert queue.named in (None, {request.lease: run})
    queue.fault, queue.named = None, {}
    await keeper.look()
    assert (list(queue.outputs), queue.named) == ([run], {request.lease: run})
    request.asked.made = 200
    await keeper.look()
    assert len(queue.outputs) == 2, "what counts is not overwritten"
