"""Housekeeping: what it does in a round, and what it leaves alone after Redis was away."""

# ruff: noqa: ARG002, ASYNC110 - signatures are the broker's, and time is the test's own

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from streamfleet.common.broker.housekeeping import ExpiryScan, Turn
from streamfleet.common.broker.reconciling import PARTS, Damage
from streamfleet.common.broker.types import Pulled, Reclaimed, Role
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane
from streamfleet.worker.housekeeping import (
    IDLE_TURNS,
    SERVICES,
    Housekeeper,
    ReclaimGuard,
    asking_pause_s,
    turns_of_work,
)
from streamfleet.worker.mending import AGAIN_TURNS, BUSY_S, COUNTED, Mender
from tests.broker import Broker
from tests.clocks import HandClock

LEASE_S = 10.0


class Ledger(Broker):
    """A broker that only writes down when it was asked to reclaim; `away_s` is how long its next lock takes."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self.keys = Keys("q")
        self.fields: dict[str, str] = {}
        self.full = False
        self.away_s = 0.0
        self.scripts_back_at = 0.0
        self.reclaimed_at: list[float] = []
        self.expired_from: list[Sequence[str]] = []
        self.late = 0
        self.forgotten_at: list[tuple[float, int]] = []
        self.gone = self.old_dead_letters = self.asks = 0
        self.turn = Turn(True, 0, 1, 0)
        self.asked_at: list[float] = []
        self.compared: list[Lane | None] = []
        self.tended = 0
        self.returning_s = 0.0
        self.redis_ahead_s = 0.0
        self.latest_ms: int | None = None
        self.delayed_ms: int | None = None

    def redis_ms(self) -> int:
        return int((self._clock.seconds + self.redis_ahead_s) * 1000)

    async def acquire_housekeeping_lock(self, worker: str, hold_ms: int, gap_ms: int) -> Turn:
        self._clock.seconds = max(self._clock.seconds, self.scripts_back_at) + self.away_s
        self.away_s = 0.0
        self.asked_at.append(self._clock.seconds)
        return self.turn._replace(now_ms=self.redis_ms(), number=len(self.asked_at))

    async def reclaim(
        self, lease_ms: int, max_deliveries: int, limit: int = 1000, latest_ms: int | None = None
    ) -> Reclaimed:
        self.latest_ms = latest_ms
        if self._clock.seconds < self.scripts_back_at:  # sent once, so it does not wait as the others do
            raise BrokerUnavailable("TRYAGAIN")
        self.reclaimed_at.append(self._clock.seconds)
        return Reclaimed(0, 0, 0)

    async def pull(self, *_: object, **__: object) -> Pulled:
        return Pulled([], 0, Role.NONE, 0, 0, 0)

    async def cancel_requests(self, most: int) -> list[tuple[str, str, str]]:
        return [(f"{number}-0", f"r-{number}", "") for number in range(min(most, self.asks))]

    async def cancel(self, request_id: str, reason: str = "", before_ms: int | None = None) -> bool:
        self._clock.seconds += 0.03
        return True

    async def drop_cancel_request(self, stream_id: str) -> None:
        self.asks -= 1

    async def return_delayed(self, limit: int = 1000, most_delay_ms: int | None = None) -> tuple[int, int | None]:
        self.delayed_ms = most_delay_ms
        self._clock.seconds = max(self._clock.seconds, self.scripts_back_at) + self.returning_s
        self.returning_s = 0.0
        return 0, None

    async def expire(self, seen: ExpiryScan | None = None, limit: int = 1000, most: int = 25) -> tuple[int, ExpiryScan]:
        self.expired_from.append(seen.places if seen else ())
        self.late -= min(self.late, most)
        return 0, ExpiryScan([str(int(self._clock.seconds))], self.late > 0)

    async def tend_waiting(self, worker: str = "") -> None:
        self.tended += 1

    async def ask(self, *commands: Sequence[Any]) -> list[Any]:
        (verb, _, *words) = commands[0]
        if verb == "HMGET":
            return [[self.fields[word].encode() if word in self.fields else None for word in words]]
        if self.full:
            raise BrokerOutOfMemory("OOM command not allowed")
        self.fields |= zip(words[::2], words[1::2], strict=True)
        return [0]

    async def mend_types(self) -> list[Damage]:
        return []

    async def compare(
        self, lane: Lane | None, mend: bool, labels: Sequence[bytes] = (), counters: str = ""
    ) -> list[Damage]:
        self.compared.append(lane)
        return []

    async def examine(self, lane: Lane, after: str, mend: bool) -> tuple[str, list[Damage]]:
        return "", []

    async def sweep(self, part: str, cursor: str, mend: bool) -> tuple[str, list[Damage]]:
        return "", []

    async def deregister(
        self,
        worker: str = "",
        silent_ms: int = 3_600_000,
        *,
        limit: int = 500,
        look_only: bool = False,
        pause_ms: int = 0,
    ) -> int:
        self.forgotten_at.append((self._clock.seconds, silent_ms))
        forgotten = min(limit, self.gone)
        self.gone -= forgotten
        return forgotten

    async def retain(self, limit: int = 1_000) -> int:
        deleted = min(limit, self.old_dead_letters)
        self.old_dead_letters -= deleted
        return deleted


async def rounds(clock: HandClock, ledger: Ledger, seconds: float, housekeeper: Housekeeper) -> None:
    task, until = asyncio.create_task(housekeeper.run()), clock.seconds + seconds
    while clock.seconds < until:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Services that were run; they do nothing here."""
    services: list[object] = []

    async def take_turn(_: object, some: Sequence[object]) -> None:
        services.extend(some)

    monkeypatch.setattr("streamfleet.worker.housekeeping.take_turn", take_turn)
    return services


def housekeeping() -> tuple[HandClock, Ledger, Housekeeper]:
    clock = HandClock()
    ledger = Ledger(clock)
    housekeeper = Housekeeper(ledger, "w1", QueueLimits(lease_ms=int(LEASE_S * 1000)), clock)
    return clock, ledger, housekeeper


async def test_every_round_reclaims_and_goes_on_where_the_last_one_looked() -> None:
    clock, ledger, housekeeper = housekeeping()
    await rounds(clock, ledger, LEASE_S + 5, housekeeper)
    assert len(ledger.reclaimed_at) >= 4
    assert ledger.expired_from[0] == ()
    assert ledger.expired_from[1:3] == [["100"], ["101"]]
    assert ledger.delayed_ms == 30_000


@pytest.mark.parametrize(
    ("entries", "number", "unbroken_ms", "turns"),
    [(1, 5, 9, 1), (1, 8, 9, 1), (0, 5, 9, 0), (0, 8, 9, IDLE_TURNS), (0, 5, 0, IDLE_TURNS)],
)
def test_without_entries_the_work_of_some_turns_is_done_in_one(
    entries: int, number: int, unbroken_ms: int, turns: int
) -> None:
    assert turns_of_work(Turn(True, unbroken_ms, 1, 0, number, entries)) == turns


async def test_a_queue_without_entries_is_looked_through_seldom_and_each_second_once_some_come(
    served: list[object],
) -> None:
    clock, ledger, housekeeper = housekeeping()
    ledger.turn = Turn(True, 60_000, 1, 0, entries=0)
    ledger.asks = 20
    await rounds(clock, ledger, 2, housekeeper)
    assert (ledger.expired_from, ledger.asks) == ([], 0), "cancel requests do not wait"
    await rounds(clock, ledger, 40, housekeeper)
    turns = len(ledger.asked_at)
    assert ledger.tended == turns
    assert turns // 4 - 1 <= len(ledger.expired_from) == len(served) // len(SERVICES) <= turns // 4 + 1
    assert len(ledger.compared) == IDLE_TURNS * len(ledger.expired_from), "damage is mended as soon"
    ledger.turn, ledger.expired_from, ledger.asked_at = Turn(True, 60_000, 1, 0), [], []
    await rounds(clock, ledger, 10, housekeeper)
    assert len(ledger.expired_from) == len(ledger.asked_at)


async def test_all_is_compared_in_some_turns_whoever_has_them() -> None:
    clock, ledger, _ = housekeeping()
    fleet = [Housekeeper(ledger, f"w{number}", QueueLimits(), clock) for number in range(len(COUNTED))]
    for housekeeper in fleet:
        await housekeeper._round()
    assert {*ledger.compared} == {*COUNTED}
    ledger.turn, ledger.compared = Turn(True, 60_000, 1, 0, entries=0), []
    for housekeeper in fleet + fleet[:3]:
        await housekeeper._round()
    assert {*ledger.compared} == {*COUNTED}, "without entries too"


async def test_what_is_late_ends_in_one_turn_however_much_it_is() -> None:
    _, ledger, housekeeper = housekeeping()
    ledger.late = 1_000
    await housekeeper.tick()
    assert (ledger.late, len(ledger.expired_from)) == (0, 40)


async def test_the_gone_are_forgotten_at_its_first_turn_and_then_every_minute() -> None:
    """If no worker lives for a minute, none would ever come to it otherwise."""
    clock, ledger, housekeeper = housekeeping()
    began = clock.seconds
    await rounds(clock, ledger, 62, housekeeper)
    times = [at - began for at, _ in ledger.forgotten_at]
    assert len(times) == 2
    assert times[0] < 2
    assert 58 < times[1] - times[0] < 62
    assert {silent_ms for _, silent_ms in ledger.forgotten_at} == {int(LEASE_S * 6000)}


async def test_however_many_are_gone_they_are_forgotten_in_one_turn() -> None:
    clock, ledger, housekeeper = housekeeping()
    ledger.gone = ledger.old_dead_letters = 3_210
    await rounds(clock, ledger, 3, housekeeper)
    assert (ledger.gone, ledger.old_dead_letters) == (0, 0)


async def test_after_an_outage_nothing_is_reclaimed_for_a_lease() -> None:
    clock, ledger, housekeeper = housekeeping()
    await rounds(clock, ledger, LEASE_S + 3, housekeeper)
    ledger.away_s, ledger.reclaimed_at = 8.0, []
    back_at = clock.seconds + 8.0
    await rounds(clock, ledger, 8 + LEASE_S + 5, housekeeper)
    # Until then the workers that live have renewed; who has not by then is gone.
    assert back_at + LEASE_S <= min(ledger.reclaimed_at) <= back_at + LEASE_S + 2


async def test_scripts_that_were_refused_while_plain_commands_went_through_are_an_outage_too() -> None:
    clock, ledger, housekeeper = housekeeping()
    await rounds(clock, ledger, LEASE_S + 3, housekeeper)
    ledger.scripts_back_at, ledger.reclaimed_at = clock.seconds + 8.0, []
    await rounds(clock, ledger, 8 + LEASE_S + 5, housekeeper)
    assert 0 <= min(ledger.reclaimed_at) - ledger.scripts_back_at - LEASE_S <= 2


@pytest.mark.parametrize(("silent_s", "allowed"), [(4.9, True), (5.1, False)])
def test_half_a_lease_of_silence_is_an_outage(silent_s: float, allowed: bool) -> None:
    guard = ReclaimGuard(LEASE_S, 1.0)
    guard.heard(80.0)
    for at in range(84, 101, 4):
        guard.heard(float(at))
    guard.heard(100.0 + silent_s)
    assert guard.may_reclaim(100.0 + silent_s) is allowed
    assert guard.may_reclaim(100.0 + silent_s + LEASE_S)


def test_a_worker_that_has_just_started_lets_the_others_renew_first_unless_they_know_of_no_outage() -> None:
    guard = ReclaimGuard(LEASE_S, 1.0)
    assert not guard.may_reclaim(100.0)
    guard.heard(100.0)
    assert not guard.may_reclaim(100.0 + LEASE_S - 0.1)
    assert guard.may_reclaim(100.0 + LEASE_S)
    guard.others_heard(LEASE_S, 100.0)
    assert guard.may_reclaim(100.0)


def test_a_clock_that_runs_evenly_holds_nothing_up() -> None:
    guard = watching()
    for second in range(1, 1_000):  # adjusted as fast as NTP does
        assert guard.read_clock(int((107 + second * 1.0005) * 1000), 100.0 + second, 100.02 + second) == 0
        guard.heard(100.0 + second)
        assert guard.may_reclaim(100.0 + second)


@pytest.mark.parametrize("step_s", [LEASE_S / 2, 86_400.0, -LEASE_S / 2, -86_400.0])
def test_a_step_of_redis_clock_holds_reclaiming_for_a_lease_whatever_others_heard(step_s: float) -> None:
    guard = watching()
    guard.others_heard(60.0, 103.0)
    assert guard.read_clock(int((103 + 7 + step_s) * 1000), 103.0, 103.0) == pytest.approx(step_s)
    assert not guard.may_reclaim(103.0 + LEASE_S - 0.1)
    assert guard.may_reclaim(103.0 + LEASE_S)


def test_small_steps_add_up() -> None:
    guard = watching()
    assert guard.read_clock((101 + 8) * 1000, 101.0, 101.0) == 0
    assert guard.read_clock((102 + 9) * 1000, 102.0, 102.0) == pytest.approx(2)


def test_a_slow_answer_is_no_step() -> None:
    guard = watching()
    assert guard.read_clock((107 + 7) * 1000, 101.0, 107.5) == 0
    assert guard.read_clock((108 + 7) * 1000, 107.5, 115.0) == 0


def test_what_the_clock_shows_at_most_follows_from_when_it_was_read() -> None:
    guard = ReclaimGuard(LEASE_S, 1.0)
    assert guard.latest_ms(100.0) is None
    guard.read_clock(5_000, 100.0, 100.5)
    assert guard.latest_ms(102.0) == 5_000 + 2_000 + LEASE_S * 1000 / 8


def watching() -> ReclaimGuard:
    """Returns a guard that has watched, for more than a lease, a Redis whose clock is 7 s ahead."""
    guard = ReclaimGuard(LEASE_S, 1.0)
    for second in range(80, 101):
        guard.heard(float(second))
    guard.read_clock(107_000, 100.0, 100.0)
    return guard


async def test_a_step_of_redis_clock_is_seen_before_anything_is_taken_back() -> None:
    clock, ledger, housekeeper = housekeeping()
    await rounds(clock, ledger, LEASE_S + 3, housekeeper)
    assert ledger.latest_ms is not None
    assert 0 <= ledger.latest_ms - ledger.reclaimed_at[-1] * 1000 < LEASE_S * 1000 / 4
    ledger.reclaimed_at, ledger.redis_ahead_s, ledger.turn = [], 3_600.0, Turn(True, 600_000, 1, 0)
    stepped_at = clock.seconds
    await rounds(clock, ledger, LEASE_S + 5, housekeeper)
    assert ledger.reclaimed_at
    assert stepped_at + LEASE_S <= min(ledger.reclaimed_at) <= stepped_at + LEASE_S + 2


async def test_after_a_step_nobody_is_forgotten_until_all_have_given_their_next_sign_of_life() -> None:
    clock, ledger, housekeeper = housekeeping()
    await rounds(clock, ledger, 58, housekeeper)
    ledger.redis_ahead_s, ledger.forgotten_at = 3_600.0, []
    stepped_at = clock.seconds
    await rounds(clock, ledger, 65, housekeeper)
    assert stepped_at + 58 < ledger.forgotten_at[0][0]


async def test_an_outage_just_after_the_start_is_noticed_before_redis_was_ever_heard() -> None:
    clock, ledger, housekeeper = housekeeping()
    ledger.away_s = 8.0
    back_at = clock.seconds + 8.0
    await rounds(clock, ledger, 8 + LEASE_S + 5, housekeeper)
    assert back_at + LEASE_S <= min(ledger.reclaimed_at) <= back_at + LEASE_S + 2


def test_a_short_lease_does_not_take_every_tick_for_an_outage() -> None:
    guard = ReclaimGuard(1.0, 1.0)
    guard.heard(99.0)
    guard.heard(100.0)
    guard.heard(101.5)
    assert guard.may_reclaim(101.5)


async def test_many_slow_cancels_are_no_outage() -> None:
    """Each takes three round trips: 500 a tick, far from Redis, take longer than half a lease."""
    clock, ledger, housekeeper = housekeeping()
    ledger.asks = 1_500
    await rounds(clock, ledger, 60, housekeeper)
    assert ledger.asks == 0
    assert len(ledger.reclaimed_at) >= 4
    assert max(later - at for at, later in pairwise(ledger.reclaimed_at)) < 2 * LEASE_S


async def test_who_seldom_has_the_turn_looks_for_the_gone_whenever_a_minute_has_passed() -> None:
    """Of five hundred workers, each may have the turn once in many minutes."""
    clock, ledger, housekeeper = housekeeping()
    for _ in range(3):
        await housekeeper.tick()
        clock.seconds += 500
    assert len(ledger.forgotten_at) == 3


async def test_an_outage_in_the_middle_of_a_turn_is_noticed_before_anything_is_taken_back() -> None:
    clock, ledger, housekeeper = housekeeping()
    await rounds(clock, ledger, 3, housekeeper)
    ledger.turn = Turn(True, 600_000, 1, 0)  # as it was when the turn was given, just before
    ledger.returning_s, ledger.reclaimed_at = 8.0, []
    back_at = clock.seconds + 8.0
    await rounds(clock, ledger, 8.5, housekeeper)
    assert clock.seconds >= back_at
    assert ledger.reclaimed_at == []


@pytest.mark.parametrize(("workers", "least_s", "most_s"), [(1, 1, 1), (20, 1, 1), (60, 1.5, 4.5), (5_000, 5, 15)])
def test_however_many_workers_redis_is_asked_about_as_often(workers: int, least_s: float, most_s: float) -> None:
    assert asking_pause_s(workers, 0.0) == least_s
    assert asking_pause_s(workers, 1.0) == pytest.approx(most_s)


async def test_a_worker_of_many_asks_seldom_until_it_has_the_turn() -> None:
    clock, ledger, housekeeper = housekeeping()
    ledger.turn = Turn(False, 0, 500, 0)
    await rounds(clock, ledger, 60, housekeeper)
    assert 4 <= len(ledger.asked_at) <= 13
    ledger.turn, ledger.asked_at = Turn(True, 0, 500, 0), []
    await rounds(clock, ledger, 30, housekeeper)
    assert len(ledger.asked_at) >= 30


async def test_who_asks_seldom_takes_back_at_once_what_the_others_heard_no_outage_about() -> None:
    clock, ledger, housekeeper = housekeeping()
    for unbroken_s, allowed in ((0, False), (LEASE_S - 0.1, False), (LEASE_S, True)):
        ledger.turn, ledger.reclaimed_at = Turn(True, int(unbroken_s * 1000), 500, 0), []
        await housekeeper._acquire_lock()
        await housekeeper.tick()
        assert bool(ledger.reclaimed_at) is allowed
        clock.seconds += 8


def test_an_answer_that_an_outage_held_up_vouches_for_nothing() -> None:
    guard = ReclaimGuard(LEASE_S, 1.0)
    guard.heard(100.0)
    guard.others_heard(60.0, 101.0)
    guard.heard(109.0)
    assert not guard.may_reclaim(109.0)
    guard.others_heard(60.0, 109.0)
    assert guard.may_reclaim(109.0)


class Stuck(Ledger):
    """A broker whose calls wait while a key is of another type; and a lane that differs, however often it is mended."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.key_is_right = asyncio.Event()
        self.begun: list[float] = []

    async def return_delayed(self, limit: int = 1000, most_delay_ms: int | None = None) -> tuple[int, int | None]:
        await self.key_is_right.wait()
        return 0, None

    async def mend_types(self) -> list[Damage]:
        if self.asked_at and self._clock.seconds > 100.0:
            self.key_is_right.set()
        self._clock.seconds += 0.1
        return []

    async def compare(
        self, lane: Lane | None, mend: bool, labels: Sequence[bytes] = (), counters: str = ""
    ) -> list[Damage]:
        return [Damage("differs", "high")]

    async def begin(self, lane: Lane, labels: Sequence[bytes] = ()) -> None:
        self.begun.append(self._clock.seconds)

    async def go_on(self, lane: Lane) -> tuple[str, list[Damage]]:
        self._clock.seconds += 0.1
        return "1-1", []


async def test_a_key_of_another_type_does_not_hold_up_the_only_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.worker.housekeeping.HELD_UP_S", 0.01)
    clock = HandClock()
    ledger = Stuck(clock)
    task = asyncio.create_task(Housekeeper(ledger, "w1", QueueLimits(), clock).run())
    await asyncio.wait_for(ledger.key_is_right.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_lanes_are_made_anew_for_a_part_of_each_second_and_not_again_and_again() -> None:
    clock = HandClock()
    ledger = Stuck(clock)
    for number in range(12):
        began = clock.seconds
        await Mender(ledger, clock).tick(number)
        assert clock.seconds - began <= BUSY_S + 0.1
        clock.seconds += 1
    assert len(ledger.begun) > 1
    assert all(later - earlier >= AGAIN_TURNS for earlier, later in pairwise(ledger.begun))


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"examined": "nowhere 5-1", "swept": "delayed go on"},
        {"examined": "high 5", "swept": "delayed 5-3"},
        {"examined": f"low {10**19}-1", "swept": f"tries {10**20}"},
    ],
)
async def test_who_has_the_next_turn_looks_for_damage_where_the_last_one_stopped(known: dict[str, str]) -> None:
    clock = HandClock()
    ledger = Looking(clock)
    ledger.fields |= known
    for number in range(7):
        await Mender(ledger, clock).tick(number)
    assert ledger.examined == [*(("critical", place) for place in range(10)), *(("high", place) for place in range(9))]
    assert ledger.swept == [(part, cursor) for part in PARTS for cursor in ("", "5")][:7]


async def test_on_a_full_server_a_worker_goes_on_where_it_stopped_itself() -> None:
    clock = HandClock()
    ledger = Looking(clock)
    one, other = Mender(ledger, clock), Mender(ledger, clock)
    begun_at = []
    for ledger.full, mender in (
        [(True, one)] * 2 + [(True, other), (False, one)] + [(False, other)] * 2 + [(False, one)]
    ):
        ledger.examined.clear()
        await mender.tick(0)
        begun_at.append(ledger.examined[0])
    assert begun_at == [("critical", place) for place in (0, 3, 0, 6, 3, 6, 9)]


async def test_a_lane_is_begun_once_in_a_turn() -> None:
    """An examination finds damage in it, too, as it has just been made anew."""
    ledger = Twice(HandClock())
    ledger.fields |= {"examined": "high ", "begun:high": "9" * 5_000}
    await Mender(ledger, HandClock()).tick(7)
    assert ledger.begun == ["high"]
    assert ledger.examined == ["high"]


class Twice(Ledger):
    """A broker of a lane that differs, which one call makes anew, and whose examination finds damage."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.begun: list[str] = []
        self.examined: list[str] = []

    async def compare(
        self, lane: Lane | None, mend: bool, labels: Sequence[bytes] = (), counters: str = ""
    ) -> list[Damage]:
        return [Damage("differs", "high")]

    async def begin(self, lane: Lane, labels: Sequence[bytes] = ()) -> None:
        self.begun.append(lane)

    async def go_on(self, lane: Lane) -> tuple[str, list[Damage]]:
        return "", []

    async def examine(self, lane: Lane, after: str, mend: bool) -> tuple[str, list[Damage]]:
        self.examined.append(lane)
        return "", [Damage("nowhere", "high:1-1")]


class Looking(Ledger):
    """A broker of lanes that take ten calls to examine, and of parts that take two to sweep."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.examined: list[tuple[str, int]] = []
        self.swept: list[tuple[str, str]] = []

    async def examine(self, lane: Lane, after: str, mend: bool) -> tuple[str, list[Damage]]:
        place = int(after.partition("-")[0] or 0)
        self.examined.append((lane, place))
        return f"{place + 1}-0" if place < 9 else "", []

    async def sweep(self, part: str, cursor: str, mend: bool) -> tuple[str, list[Damage]]:
        self.swept.append((part, cursor))
        return "" if cursor else "5", []
