"""Checkpoints: whose output is kept, and which output counts no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from streamfleet.common.broker.types import Lease, RenewCode
from streamfleet.common.clock import SystemClock
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.worker.engine.base import EngineRequest, Partial
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.keeping import Checkpoints
from tests.unit.worker_requests import in_flight_request


class Kept:
    """A queue that keeps output; it may say that leases are lost, or that a request ends meanwhile."""

    def __init__(self) -> None:
        self.outputs: dict[str, bytes] = {}
        self.code, self.ends = RenewCode.RENEWED, list[InFlightRequest]()

    async def keep(self, outputs: Mapping[str, bytes]) -> bool:
        self.outputs.update(outputs)
        return True

    async def renew(self, _: str, leases: Sequence[Lease], kept: Mapping[Lease, Any]) -> list[RenewCode]:
        assert list(kept) == leases
        for request in self.ends:
            request.done = True
        return [self.code] * len(leases)

    async def forget(self, runs: Sequence[str]) -> None:
        for run in runs:
            self.outputs.pop(run, None)


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


async def test_the_last_output_replaces_the_one_before() -> None:
    request = running(40)
    request.claim = replace(request.claim, interrupted=1, kept="of an earlier run")
    keeper, queue = checkpoints(request)
    queue.outputs["of an earlier run"] = b"1 state"
    assert request.asked is not None
    for made in (40, 71, 72):
        request.asked.made = made
        await keeper.look()
    assert queue.outputs == {request.claim.kept: b"72 state"}


async def test_output_of_a_lost_lease_is_forgotten() -> None:
    request = running(40)
    keeper, queue = checkpoints(request)
    queue.code = RenewCode.LOST
    await keeper.look()
    assert queue.outputs == {}
    assert request.claim.kept == ""


async def test_so_is_that_of_a_request_that_ends_meanwhile() -> None:
    """The worker that ended it did not know of this output."""
    request = running(40)
    keeper, queue = checkpoints(request)
    queue.ends = [request]
    await keeper.look()
    assert queue.outputs == {}
