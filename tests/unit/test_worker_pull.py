"""The pulling loop: what it does first, and that it waits for nothing it should not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from streamfleet.common.broker.types import Hint, Pulled, Role, Rooms
from streamfleet.common.errors import NotPermitted
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.admission import Admission
from streamfleet.worker.engine.base import Capacity
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.pull import AT_ONCE, FIRST_AT_ONCE, HANDED_MS, LOOK_AGAIN_S, WAITER_MS, Puller
from tests.broker import Broker
from tests.clocks import HandClock
from tests.constants import PREFETCH, constants
from tests.unit.worker_requests import OK, ScriptedEngine, in_flight_request
from tests.waiting import eventually


class Redis:
    """The loop's broker, from memory: pulls give what a test says, and then nothing; waits last until unblocked.

    Attributes:
        happened: in order.
        pulls: what they give.
        asked: what each pull was asked with.
        hands_over: True if the next wait of a waiter makes it a watcher.
        waits: time-out of each wait, ms.
        heard: what the next watch brings.
        watched: lanes of the last watch.
        hints: what each pull was told of what was heard.
        refuses: True if Redis permits no wait.
        limits: of the queue.
    """

    def __init__(self, *pulls: Pulled) -> None:
        self.happened: list[str] = []
        self.pulls, self.asked = list(pulls), list[dict[str, Any]]()
        self.hands_over, self.waits = False, list[int]()
        self.heard, self.watched = list[Hint](), list[Lane]()
        self.limits = QueueLimits()
        self.hints, self.refuses = list[Sequence[Hint]](), False
        self._waiting = asyncio.Event()

    async def pull(self, _: str, rooms: Rooms, hints: Sequence[Hint], **asked: object) -> Pulled:
        self.happened.append("pull")
        self.hints.append([*hints])
        self.asked.append({"rooms": rooms, **asked})
        return self.pulls.pop(0) if self.pulls else Pulled([], 0, Role.WAITER, 0, 0, 0)

    async def watch(self, timeout_ms: int, lanes: Sequence[Lane]) -> list[Hint]:
        self.waits.append(timeout_ms)
        self.watched = [*lanes]
        await self._wait("watch")
        heard, self.heard = self.heard, []
        return heard

    async def wait(self, timeout_ms: int, _: str) -> bool:
        if self.refuses:
            raise NotPermitted("no BLPOP")
        self.waits.append(timeout_ms)
        await self._wait("wait")
        handed_over, self.hands_over = self.hands_over, False
        return handed_over

    async def _wait(self, what: str) -> None:
        self.happened.append(what)
        self._waiting.clear()
        await self._waiting.wait()

    async def unblock(self) -> None:
        self._waiting.set()

    async def disown(self, *_: object) -> int:
        return 0


class Rig:
    """A loop, and what it starts."""

    def __init__(
        self,
        redis: Redis,
        while_starting: Callable[[Puller], Awaitable[None]] | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        self.redis, self.tasks = redis, set[asyncio.Task[None]]()
        self.in_flight, self.clock = InFlight(), HandClock()
        self._while_starting = while_starting
        engine = ScriptedEngine(cast("Any", lambda _: OK), capacity)
        with constants({PREFETCH: 0}):
            admission = Admission(engine, self.in_flight, load(WorkerSettings, patient_lanes="low"))
        self.puller = Puller(cast("Broker", redis), "w", admission, self.in_flight, self.clock)
        self.running = asyncio.create_task(self.puller.run(self._start))

    def _start(self, request: InFlightRequest) -> None:
        self.tasks.add(asyncio.create_task(self._run(request)))

    async def _run(self, request: InFlightRequest) -> None:
        self.redis.happened.append(f"{request.lease.request_id} starts")
        if self._while_starting is not None:
            await self._while_starting(self.puller)

    async def stop(self) -> None:
        await self.puller.stop()
        await asyncio.wait_for(self.running, 5)


def given(number: int, role: Role) -> Pulled:
    """A pull of one request."""
    return Pulled([in_flight_request(number).claim], 0, role, 1_000_000, 1, 0)


@pytest.fixture
async def stops() -> AsyncIterator[list[Rig]]:
    rigs: list[Rig] = []
    yield rigs
    for rig in rigs:
        await rig.stop()


@pytest.mark.parametrize("role", [Role.WATCHER, Role.WAITER])
async def test_a_request_starts_before_the_next_wait(stops: list[Rig], role: Role) -> None:
    redis = Redis(given(1, role))
    stops.append(Rig(redis))
    await eventually(lambda: len(redis.happened) > 2)
    assert redis.happened == ["pull", "r-1 starts", "watch" if role is Role.WATCHER else "wait"]


async def test_the_next_pull_waits_for_no_start(stops: list[Rig]) -> None:
    """While Redis gives out more, what came before is on its way into the engine."""
    redis = Redis(given(1, Role.NONE), given(2, Role.WATCHER))
    stops.append(Rig(redis))
    await eventually(lambda: "watch" in redis.happened)
    assert redis.happened == ["pull", "pull", "r-1 starts", "r-2 starts", "watch"]


async def test_an_idle_worker_pulls_less_at_first(stops: list[Rig]) -> None:
    """Its engine begins with those while Redis gives out the rest."""
    redis = Redis(given(1, Role.NONE), given(2, Role.NONE), given(3, Role.WATCHER), given(4, Role.NONE))
    stops.append(Rig(redis, capacity=Capacity(1_000, 10_000_000)))
    await eventually(lambda: "watch" in redis.happened)
    await redis.unblock()
    await eventually(lambda: redis.happened[-1] == "wait")
    most = [max(asked["rooms"].lanes) for asked in redis.asked]
    assert most == [FIRST_AT_ONCE, AT_ONCE, AT_ONCE, FIRST_AT_ONCE, AT_ONCE]


async def test_who_is_handed_a_watch_watches_without_a_pull(stops: list[Rig]) -> None:
    redis = Redis(given(1, Role.WAITER))
    redis.hands_over = True
    stops.append(Rig(redis))
    await eventually(lambda: "wait" in redis.happened)
    await redis.unblock()
    await eventually(lambda: "watch" in redis.happened)
    await redis.unblock()
    await eventually(lambda: redis.happened[-1] == "wait")
    assert redis.happened == ["pull", "r-1 starts", "wait", "watch", "pull", "wait"]
    assert [asked["owing"] for asked in redis.asked] == [False, True]
    assert redis.waits == [WAITER_MS, HANDED_MS + 1, WAITER_MS]


async def test_who_is_handed_a_watch_and_has_no_room_hands_it_on(stops: list[Rig]) -> None:
    redis = Redis(given(1, Role.WAITER))
    redis.hands_over = True
    rig = Rig(redis)
    stops.append(rig)
    await eventually(lambda: "wait" in redis.happened)
    rig.puller._most = 0
    await redis.unblock()
    await eventually(lambda: len(redis.asked) > 1)
    assert "watch" not in redis.happened
    assert redis.asked[1]["owing"]


async def test_who_is_stopped_while_a_request_starts_does_not_wait() -> None:
    redis = Redis(given(1, Role.WATCHER))
    rig = Rig(redis, Puller.stop)
    await asyncio.wait_for(rig.running, 5)
    assert "watch" not in redis.happened


async def test_who_may_hold_nothing_any_more_does_not_wait(stops: list[Rig]) -> None:
    """An engine that died at the request: a wait would keep what it brings from others."""
    redis = Redis(given(1, Role.WATCHER))

    async def die(puller: Puller) -> None:
        puller.allow(0)

    stops.append(Rig(redis, die))
    await eventually(lambda: len(redis.happened) > 2)
    assert redis.happened[:3] == ["pull", "r-1 starts", "pull"], "the watch is handed on"
    assert "watch" not in redis.happened


async def test_nothing_is_pulled_while_room_is_made_until_it_is_there(stops: list[Rig]) -> None:
    redis = Redis(given(1, Role.NONE), given(2, Role.WATCHER))

    async def room_is_wanted(puller: Puller) -> None:
        rig.in_flight.awaited_tokens = 9_900  # of 10,000; beside the first one they do not fit

    rig = Rig(redis, room_is_wanted)
    stops.append(rig)
    rig.puller._most = 1  # or the second one would be on its way before the first is known
    await eventually(lambda: rig.in_flight.awaited_tokens)
    rig.puller.allow(None)
    rig.in_flight.changed.set()
    await eventually(lambda: not rig.in_flight.changed.is_set(), what="it looked for room")
    assert redis.happened == ["pull", "r-1 starts"]
    rig.in_flight.done(rig.in_flight.held()[0])
    await eventually(lambda: "r-2 starts" in redis.happened)


async def test_who_makes_room_looks_again_soon_for_what_is_smaller_and_more_urgent(stops: list[Rig]) -> None:
    redis = Redis(given(1, Role.NONE), given(2, Role.WATCHER))

    async def room_is_wanted(puller: Puller) -> None:
        rig.in_flight.awaited_tokens = 9_900 if redis.happened[-1] == "r-1 starts" else 0

    rig = Rig(redis, room_is_wanted)
    stops.append(rig)
    rig.puller._most = 1
    await eventually(lambda: rig.in_flight.awaited_tokens)
    rig.puller.allow(None)
    rig.clock.seconds += LOOK_AGAIN_S
    await eventually(lambda: "r-2 starts" in redis.happened)
    assert rig.in_flight.awaited_tokens == 0


def full(*more: Pulled, role: Role) -> tuple[Redis, Rig]:
    """A worker that has no room for lane `low` any more, and whose pulls give more then."""
    claims = [in_flight_request(number).claim for number in range(4)]
    redis = Redis(Pulled(claims, 0, role, 1_000_000, 4, 0), *more)
    return redis, Rig(redis, capacity=Capacity(5, 100_000))


async def test_a_full_worker_watches_for_what_it_has_room_for_while_it_waits_for_room(stops: list[Rig]) -> None:
    redis, rig = full(*[Pulled([], 0, Role.WATCHER, 0, 0, 0)] * 2, role=Role.WATCHER)
    stops.append(rig)
    await eventually(lambda: "watch" in redis.happened)
    assert redis.watched == list(LANES[:3])
    rig.in_flight.changed.set()
    await eventually(lambda: len(redis.asked) == 2)
    assert redis.happened.count("watch") == 1, "it goes on beside the pull"
    redis.heard = [Hint(Lane.HIGH, "5-0")]
    await redis.unblock()
    await eventually(lambda: len(redis.asked) == 3)
    assert redis.hints == [[], [], [Hint(Lane.HIGH, "5-0")]]
    assert [asked["owing"] for asked in redis.asked] == [False, True, True]


async def test_of_full_workers_the_one_with_fewest_urgent_requests_says_that_it_holds_least(stops: list[Rig]) -> None:
    redis = Redis(*[Pulled([], 0, role, 0, 0, 0) for role in (Role.WAITER, Role.NONE)])
    rig = Rig(redis, capacity=Capacity(3, 100_000))
    stops.append(rig)
    for number, lane in enumerate([Lane.LOW, Lane.HIGH]):
        rig.in_flight.add(in_flight_request(number, lane=lane))
    await eventually(lambda: "wait" in redis.happened)
    rig.in_flight.add(in_flight_request(3, lane=Lane.LOW))
    await redis.unblock()
    await eventually(lambda: len(redis.asked) == 2)
    assert [asked["home"].held for asked in redis.asked] == [2, 3 + 1]


async def test_a_full_worker_that_waits_pulls_once_it_is_woken(stops: list[Rig]) -> None:
    redis, rig = full(role=Role.WAITER)
    stops.append(rig)
    await eventually(lambda: "wait" in redis.happened)
    await redis.unblock()
    await eventually(lambda: len(redis.asked) == 2)
    assert redis.asked[1]["owing"]


async def test_a_full_worker_that_may_not_wait_says_so() -> None:
    redis, rig = full(role=Role.WAITER)
    redis.refuses = True
    with pytest.raises(NotPermitted):
        await asyncio.wait_for(rig.running, 5)


@pytest.mark.parametrize("hands_over", [False, True])
async def test_what_is_heard_while_room_comes_free_is_not_lost(stops: list[Rig], hands_over: bool) -> None:
    """The token is popped during the pull, by the wait that goes on beside it: nobody would be woken for it again."""
    redis, rig = full(role=Role.WAITER)
    stops.append(rig)
    await eventually(lambda: "wait" in redis.happened)
    pull, redis.hands_over = redis.pull, hands_over

    async def meanwhile(*words: Any, **asked: Any) -> Pulled:
        await redis.unblock()
        await asyncio.sleep(0.01)
        return await pull(*words, **asked)

    redis.pull, redis.happened = meanwhile, []  # type: ignore[method-assign]
    rig.in_flight.remove(rig.in_flight.active())
    await eventually(lambda: "wait" in redis.happened)
    assert redis.happened == ["pull", "pull", "wait"]
