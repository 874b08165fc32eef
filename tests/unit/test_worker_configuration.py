"""The queue's configuration in a worker: its values, and the length of a lease while it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.common.broker.types import Notices
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.errors import InvalidRequest, SettingsError, UnknownProtocol
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.queue_configuration import (
    NAMES,
    PROTOCOL,
    PROTOCOLS,
    assignments,
    check_protocol,
    decode,
    encode,
    lacks,
    said,
)
from streamfleet.common.settings import QueueSettings, load
from streamfleet.worker.configuration import HEARD_LEASES, Configuration, LeaseLength
from streamfleet.worker.housekeeping import ReclaimGuard
from streamfleet.worker.in_flight import InFlight
from streamfleet.worker.lease import RENEWALS_PER_LEASE, LeaseKeeper, Pulse
from tests.clocks import HandClock
from tests.unit.test_worker_housekeeping import LEASE_S, housekeeping, rounds, served  # noqa: F401 - served is a fixture
from tests.waiting import eventually


def agreed(limits: QueueLimits) -> dict[str, str]:
    """The whole configuration, as workers write it."""
    return {PROTOCOL: str(PROTOCOLS[-1]), **encode(limits)}


def test_limits_are_read_back_as_they_were_written() -> None:
    limits = QueueLimits(shares=(0, 10, 200, 100), lease_ms=2_000, patience_ms=0)
    assert decode(QueueLimits(), encode(limits)) == limits
    assert decode(limits, {"of_a_later_release": "7"}) == limits


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_checked_by_the_rules_of_its_variable(name: str) -> None:
    with pytest.raises(SettingsError, match=f'STREAMFLEET_{name.upper()}: .*not "soon"'):
        decode(QueueLimits(), {name: "soon"})


def test_the_environment_has_no_part_in_what_redis_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMFLEET_LEASE_MS", "never")
    monkeypatch.setenv("STREAMFLEET_BATCHING", "adaptive")
    assert decode(QueueLimits(), {"max_deliveries": "7"}).max_deliveries == 7


def test_only_what_the_environment_names_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMFLEET_LEASE_MS", "20000")
    monkeypatch.setenv("STREAMFLEET_SHARES", "0,0,200,100")
    assert said(load(QueueSettings)) == {"lease_ms": "20000", "shares": "0,0,200,100"}


def test_what_only_clients_act_on_is_not_missed() -> None:
    fields = agreed(QueueLimits())
    assert not lacks({name: value for name, value in fields.items() if not name.startswith("lane_")})
    for needed in ("shares", PROTOCOL):
        assert lacks({name: value for name, value in fields.items() if name != needed})


def test_a_word_names_its_setting_either_way() -> None:
    assert assignments(["lease_ms=7", "STREAMFLEET_SHARES=1,2,3,4"]) == {"lease_ms": "7", "shares": "1,2,3,4"}
    with pytest.raises(InvalidRequest, match="did you mean dead_bytes"):
        assignments(["dead_byte=7"])


def test_until_all_have_heard_leases_are_renewed_by_the_shorter_and_reclaimed_by_the_longer() -> None:
    lease = LeaseLength(10_000)
    lease.change(2_000, 100.0)
    lease.change(2_000, 110.0)
    heard_at = 100.0 + HEARD_LEASES * 10.0
    assert (lease.shortest_ms(heard_at - 0.1), lease.longest_ms(heard_at - 0.1)) == (2_000, 10_000)
    assert (lease.shortest_ms(heard_at), lease.longest_ms(heard_at)) == (2_000, 2_000)
    lease.change(60_000, 200.0)
    assert (lease.shortest_ms(203.9), lease.longest_ms(203.9)) == (2_000, 60_000)
    assert (lease.shortest_ms(204.0), lease.longest_ms(204.0)) == (60_000, 60_000)


def test_each_length_of_several_changes_counts_until_all_have_heard() -> None:
    lease = LeaseLength(10_000)
    lease.change(2_000, 100.0)
    lease.change(5_000, 101.0)
    assert (lease.shortest_ms(104.0), lease.longest_ms(104.0)) == (2_000, 10_000)
    assert (lease.shortest_ms(106.0), lease.longest_ms(106.0)) == (5_000, 10_000)


async def test_the_housekeeping_reclaims_by_the_longer_lease_until_all_have_heard() -> None:
    clock, ledger, housekeeper = housekeeping()
    by: list[tuple[float, int]] = []
    reclaim = ledger.reclaim

    async def noted(lease_ms: int, max_deliveries: int, **more: Any) -> Any:
        by.append((clock.seconds, lease_ms))
        assert max_deliveries == 7
        return await reclaim(lease_ms, max_deliveries, **more)

    ledger.reclaim = noted  # type: ignore[method-assign, assignment]
    changed_at = clock.seconds
    housekeeper.configure(QueueLimits(lease_ms=2_000, max_deliveries=7))
    await rounds(clock, ledger, (HEARD_LEASES + 1) * LEASE_S, housekeeper)
    assert {lease_ms for at, lease_ms in by if at < changed_at + HEARD_LEASES * LEASE_S} == {10_000}
    assert {lease_ms for at, lease_ms in by if at >= changed_at + HEARD_LEASES * LEASE_S} == {2_000}


def test_a_silence_that_a_longer_lease_bore_is_an_outage_for_a_shorter_one() -> None:
    guard = ReclaimGuard(60.0, 1.0)
    for second in (*range(100), 120):  # 20 s of silence, which leases of 60 s survive
        guard.heard(float(second))
    assert guard.may_reclaim(120.0)
    guard.lease_is(2.0, 120.0)
    assert not guard.may_reclaim(121.9), "nobody has renewed by the shorter lease yet"
    for tenth in range(1200, 1230):
        guard.heard(tenth / 10)
    assert guard.may_reclaim(122.9)


class Told:
    """In the broker's place: tells the keeper of a configuration, and counts its renewals."""

    def __init__(self, clock: HandClock) -> None:
        self.connection = SimpleNamespace(answer_timeout_s=10.0)
        self.limits = QueueLimits()
        self._followed: Mapping[str, str] = {}
        self.fields = agreed(self.limits)
        self.notices: asyncio.Queue[Notices] = asyncio.Queue()
        self.clock, self.beats = clock, [0.0]
        self.answers = asyncio.Event()
        self.answers.set()

    keys = Keys("q")
    configure, follow = WorkerBroker.configure, WorkerBroker.follow

    async def heartbeat(self, _worker: str, _description: object) -> Mapping[str, str]:
        self.beats.append(self.clock.monotonic())
        fields = self.fields
        await self.answers.wait()
        return fields

    async def configuration(self) -> Mapping[str, str]:
        check_protocol(self.fields, self.keys.queue)
        return self.fields

    async def read_notices(self, _last_id: str, _block_ms: int) -> Notices:
        return await self.notices.get()


def keeper_of(broker: Told, clock: HandClock) -> LeaseKeeper:
    never: Any = None
    count = iter(range(1_000_000))
    keeper = LeaseKeeper(never, "w1", InFlight(), Pulse(clock, 1e9), Configuration(broker.limits))
    keeper._describe, keeper._heard = lambda: {"beat": next(count)}, "0-0"
    return keeper


async def test_a_notice_of_a_change_is_followed_at_once_and_told_to_the_event_loop() -> None:
    clock = HandClock()
    heard: list[QueueLimits] = []
    broker = Told(clock)
    keeper = keeper_of(broker, clock)
    keeper._main = asyncio.get_running_loop()
    keeper._configured = heard.append
    cancels = asyncio.create_task(keeper._cancels(cast("WorkerBroker", broker)))
    broker.fields = agreed(replace(broker.limits, lease_ms=2_000, max_deliveries=3))
    broker.notices.put_nowait(Notices("1-0", (), frozenset(), configured=True))
    await eventually(lambda: len(heard) == 1, what="the event loop is told")
    cancels.cancel()
    assert (heard[0].lease_ms, heard[0].max_deliveries) == (2_000, 3)
    assert keeper._lease_changed.is_set(), "the next renewal is due at once"
    assert broker.limits == heard[0]


async def test_a_protocol_that_is_not_known_is_told_as_soon_as_a_notice_has_it_read() -> None:
    """The next heartbeat may be a lease away."""
    clock = HandClock()
    broker = Told(clock)
    keeper = keeper_of(broker, clock)
    refusals: list[UnknownProtocol] = []
    keeper._main, keeper._refused = asyncio.get_running_loop(), refusals.append
    cancels = asyncio.create_task(keeper._cancels(cast("WorkerBroker", broker)))
    broker.fields = {**broker.fields, PROTOCOL: "7"}
    broker.notices.put_nowait(Notices("1-0", (), frozenset(), configured=True))
    await eventually(lambda: refusals, what="the event loop is told")
    cancels.cancel()
    assert "queue q has protocol '7'" in str(refusals[0])


async def test_an_answer_from_before_a_change_does_not_undo_it() -> None:
    clock = HandClock()
    broker = Told(clock)
    keeper = keeper_of(broker, clock)
    broker.answers.clear()
    beat = asyncio.create_task(keeper._heartbeat(cast("WorkerBroker", broker), clock.monotonic()))
    await eventually(lambda: len(broker.beats) == 2, what="the heartbeat is on its way")
    cancels = asyncio.create_task(keeper._cancels(cast("WorkerBroker", broker)))
    broker.fields = agreed(replace(broker.limits, lease_ms=2_000))
    broker.notices.put_nowait(Notices("1-0", (), frozenset(), configured=True))
    await eventually(broker.notices.empty, what="the notice is read")
    for _ in range(20):
        await asyncio.sleep(0)
    broker.answers.set()
    await beat
    await eventually(lambda: broker.limits.lease_ms == 2_000, what="the change is followed")
    for _ in range(20):
        await asyncio.sleep(0)
    cancels.cancel()
    assert broker.limits.lease_ms == 2_000


async def test_a_change_ends_the_wait_for_the_next_renewal() -> None:
    """A worker that has just started may reclaim by a shorter lease already."""

    class Still(HandClock):
        async def sleep(self, seconds: float) -> None:
            assert seconds == 15.0
            await asyncio.Event().wait()

    clock = Still()
    keeper = keeper_of(Told(clock), clock)
    waiting = asyncio.create_task(keeper._pause(15.0))
    await asyncio.sleep(0)
    keeper._apply(changed=True)
    await asyncio.wait_for(waiting, 10)


async def test_a_lease_that_becomes_longer_is_renewed_as_often_until_all_have_heard() -> None:
    clock = HandClock()
    broker = Told(clock)
    broker.limits = replace(broker.limits, lease_ms=2_000)
    keeper = keeper_of(broker, clock)
    broker.fields = agreed(replace(broker.limits, lease_ms=40_000))
    renewing = asyncio.create_task(keeper._renewals(cast("WorkerBroker", broker)))
    await eventually(lambda: clock.monotonic() > 150, what="50 s pass")
    renewing.cancel()
    pauses = [(at, at - before) for before, at in zip(broker.beats[1:], broker.beats[2:], strict=False)]
    told_at = broker.beats[1]
    soon = {round(pause, 3) for at, pause in pauses if at < told_at + HEARD_LEASES * 2.0}
    later = {round(pause, 3) for at, pause in pauses if at > told_at + HEARD_LEASES * 2.0 + 10.0}
    assert len([at for at in broker.beats if told_at < at <= told_at + HEARD_LEASES * 2.0]) >= 7
    assert max(soon) <= 2.0 / RENEWALS_PER_LEASE
    assert later == {40.0 / RENEWALS_PER_LEASE}
