"""The lease keeper's decisions: whom to tell what, and when to end a process that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from streamfleet.common.broker.types import Lease, RenewCode
from streamfleet.common.limits import QueueLimits
from streamfleet.worker import lease
from streamfleet.worker.configuration import Configuration
from streamfleet.worker.in_flight import InFlight, StopReason
from streamfleet.worker.lease import AT_ONCE, RENEWALS_PER_LEASE, YOUNG, LeaseKeeper, Pulse
from tests.broker import Broker
from tests.clocks import HandClock
from tests.unit.worker_requests import in_flight_request
from tests.waiting import eventually

HANG_S = 60.0


class Renewals:
    """In the broker's place: renews as the test says."""

    def __init__(self) -> None:
        self.codes: dict[Lease, RenewCode] = {}
        self.said: list[dict[str, object]] = []
        self.calls: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def renew(self, worker: str, leases: Sequence[Lease]) -> list[RenewCode]:
        assert worker == "w1"
        self.calls.append(len(leases))
        self.meanwhile()
        return [self.codes.get(one, RenewCode.RENEWED) for one in leases]

    async def heartbeat(self, worker: str, description: dict[str, object]) -> None:
        assert worker == "w1"
        self.said.append(description)


class Rig:
    def __init__(self) -> None:
        self.description: dict[str, object] = {}
        self.clock, self.in_flight, self.broker = HandClock(), InFlight(), Renewals()
        self.clock.seconds += 60.0  # requests made by hand were claimed before
        self.pulse = Pulse(self.clock, HANG_S)
        never: Any = None
        self.keeper = LeaseKeeper(never, "w1", self.in_flight, self.pulse, Configuration(QueueLimits()))
        self.keeper._main = asyncio.get_running_loop()
        self.keeper._describe = lambda: dict(self.description)

    async def renew(self) -> None:
        await self.keeper._renew_all(cast("Broker", self.broker))


async def test_lost_and_answered_leases_are_told() -> None:
    rig, requests = Rig(), [in_flight_request(number) for number in range(3)]
    for one in requests:
        rig.in_flight.add(one)
    rig.broker.codes = {requests[1].lease: RenewCode.LOST, requests[2].lease: RenewCode.ANSWERED}
    await rig.renew()
    await eventually(lambda: requests[2].stop_reason)
    assert requests[0].stop_reason is None
    assert requests[1].stop_reason is StopReason.LOST
    assert requests[2].stop_reason is StopReason.CANCELLED


async def test_a_loss_is_told_to_the_very_request_that_was_asked_for() -> None:
    """Handed back while the renewal was under way, its request has come again under an equal lease."""
    rig, first, again = Rig(), in_flight_request(1), in_flight_request(1)
    rig.in_flight.add(first)
    rig.broker.codes = {first.lease: RenewCode.LOST}
    rig.broker.meanwhile = lambda: rig.in_flight.add(again)
    await rig.renew()
    await eventually(lambda: first.stop_reason)
    assert again.stop_reason is None


async def test_many_leases_are_renewed_in_calls_of_bounded_size() -> None:
    rig = Rig()
    for number in range(AT_ONCE + 1):
        rig.in_flight.add(in_flight_request(number))
    await rig.renew()
    assert rig.broker.calls == [AT_ONCE, 1]


async def test_a_lease_that_was_just_taken_waits_for_the_next_renewal() -> None:
    """Most short answers come before it. An older one is renewed each time."""
    rig, young = Rig(), YOUNG * 10.0 / RENEWALS_PER_LEASE
    for age_s in (young - 0.01, young, 9.0):
        request = in_flight_request(round(age_s * 100))
        request.claimed_at = rig.clock.monotonic() - age_s
        rig.in_flight.add(request)
    await rig.renew()
    await rig.clock.sleep(0.01)
    await rig.renew()
    assert rig.broker.calls == [2, 3]


async def test_what_is_new_is_said_at_once_and_the_same_once_a_lease() -> None:
    """Else five hundred workers keep Redis busy with it; but a worker that says nothing counts as gone."""
    rig = Rig()
    for number, state in enumerate(("ready", "ready", "ready", "ready", "ready", "draining", "draining", "ready")):
        rig.description = {"state": state, "running": number, "credit": -number, "oldest_held_ms": number}
        rig.description |= {"kv_use": number / 100, "mean_batch": float(number), "slots": number}
        await rig.keeper._heartbeat(cast("Broker", rig.broker), rig.clock.monotonic())
        await rig.clock.sleep(10.0 / RENEWALS_PER_LEASE)
    said = [(each["state"], each["running"]) for each in rig.broker.said]
    assert said == [("ready", 0), ("ready", 4), ("draining", 5), ("ready", 7)], "load goes with the rest, up to date"


class Ended(Exception):
    """In place of the process's end."""


@pytest.fixture
def no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr("os._exit", end)


@pytest.mark.usefixtures("no_exit")
async def test_an_event_loop_that_hangs_while_this_thread_runs_ends_the_process() -> None:
    rig = Rig()

    def until_noticed() -> None:
        for _ in range(30):
            rig.clock.seconds += 2.5
            rig.keeper._end_if_hung()

    with pytest.raises(Ended, match=str(lease.EXIT_LOOP_HUNG)):
        until_noticed()


@pytest.mark.usefixtures("no_exit")
async def test_a_process_that_was_stopped_as_a_whole_goes_on() -> None:
    rig = Rig()
    rig.clock.seconds += 10 * HANG_S
    rig.keeper._end_if_hung()
    rig.pulse.beat()
    rig.clock.seconds += 2.5
    rig.keeper._end_if_hung()
