"""The client's waiting: what it remembers of notifications, and that it asks Redis no more than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.common.broker.producer import READ_AT_ONCE, Notifications
from streamfleet.common.clock import SystemClock
from streamfleet.common.errors import BrokerUnavailable, NotPermitted, RequestLost, ResultTimeout
from streamfleet.common.limits import QueueLimits
from streamfleet.common.results import Result, decode_result
from streamfleet.producer.handle import Arrivals, Handle
from streamfleet.producer.mailbox import Mailbox
from tests.broker import Broker
from tests.waiting import eventually

ALONG = {b"status": b"succeeded", b"finished_ms": b"3", b"response": b'{"x": 1}'}
"""A result that comes with its notification."""


class Redis:
    """A mailbox's broker, from memory.

    Attributes:
        told: notifications to come, ids or errors to raise instead.
        ended: ids that have a result.
        forgot: ids that it knows nothing of.
        asked: ids whose results were asked for, one list for each round trip.
        rechecked: the same of what was asked whether it is still there.
        broken: ids whose records are no records.
        refuses: what is raised when it is asked what it has.
        along: results that come with their notifications.
        position: number of notifications that were read.
        trimmed: number of times that notifications were deleted.
        may_not_trim: what is raised then.
        patient: for how long each reading waited, in ms.
    """

    def __init__(self) -> None:
        self.told: asyncio.Queue[list[str] | Exception] = asyncio.Queue()
        self.ended: set[str] = set()
        self.forgot: set[str] = set()
        self.asked: list[list[str]] = []
        self.rechecked: list[list[str]] = []
        self.patient: list[int] = []
        self.broken: set[str] = set()
        self.refuses: Exception | None = None
        self.along: dict[str, dict[bytes, bytes]] = {}
        self.position = self.trimmed = 0
        self.may_not_trim: Exception | None = None
        self._holding: tuple[asyncio.Event, asyncio.Event] | None = None
        self.limits = QueueLimits()
        self.clock = SystemClock()
        self.entry = f"normal:{self.clock.now_ms()}-1"
        self.connection = SimpleNamespace(address="redis://here", moves=0, check=lambda: None)
        self.mailbox = Mailbox(cast("Broker", self), "me")

    async def read_replies(self, client: str, last_id: str, block_ms: int) -> tuple[str, Notifications]:
        assert client == "me"
        self.patient.append(block_ms)
        told = await self.told.get()
        if isinstance(told, Exception):
            raise told
        assert last_id == f"{self.position}-0"
        self.position += len(told)
        return f"{self.position}-0", [(name, self.along.get(name)) for name in told]

    async def trim_replies(self, client: str, last_id: str) -> None:
        assert (client, last_id) == ("me", f"{self.position}-0")
        self.trimmed += 1
        if self.may_not_trim is not None:
            raise self.may_not_trim

    async def results(self, request_ids: Sequence[str]) -> list[Result | None]:
        self.asked.append(list(request_ids))
        return [decode_result(name, {b"status": b"succeeded"} if name in self.ended else {}) for name in request_ids]

    async def known(self, request_ids: Sequence[str]) -> list[str | None]:
        self.rechecked.append(list(request_ids))
        if self.refuses is not None:
            raise self.refuses
        if self.broken.intersection(request_ids):
            raise RuntimeError("WRONGTYPE")
        answer: list[str | None] = [None if name in self.forgot else self.entry for name in request_ids]
        if self._holding is not None:
            self._holding[0].set()
            await self._holding[1].wait()
        return answer

    def holds_answers(self) -> tuple[asyncio.Event, asyncio.Event]:
        """From now on, what is there is looked at, and told later: it was asked for; tell."""
        self._holding = asyncio.Event(), asyncio.Event()
        return self._holding

    async def end_vanished(self, _: Sequence[str], mend: bool) -> list[str]:
        assert mend
        return []

    async def delete_replies(self, client: str) -> None:
        assert client == "me"

    def handle(self, name: str) -> Handle:
        """As if it were enqueued now."""
        return Handle(name, False, self.entry, self.mailbox, self.mailbox.generation, cast("Any", None))

    def polled(self, name: str) -> int:
        """Number of times that its result was asked for."""
        return sum(name in names for names in self.asked)

    async def away(self) -> None:
        """Gone, and back."""
        await self.told.put(BrokerUnavailable("gone"))
        await self.told.put([])
        await eventually(self.told.empty)

    async def tell(self, *names: str) -> None:
        self.ended |= set(names)
        await self.told.put(list(names))
        await eventually(self.told.empty)


@pytest.fixture
async def redis() -> Any:
    redis = Redis()
    yield redis
    await redis.mailbox.close()


async def test_a_result_that_comes_with_its_notification_is_not_asked_for(redis: Redis) -> None:
    waiting = [asyncio.create_task(redis.handle(name).result(timeout=10)) for name in ("r", "s")]
    await redis.tell("other")
    redis.along["r"] = ALONG
    await redis.tell("r", "s")
    first, second = await asyncio.gather(*waiting)
    assert (first.response, second.response) == ({"x": 1}, None)
    assert redis.asked == [["s"]]


@pytest.mark.parametrize("at_first", [True, False], ids=["at first", "after an outage"])
async def test_an_old_notification_brings_no_result(redis: Redis, at_first: bool) -> None:
    """Its request may have been requeued since, so that the result that came along is none any more."""
    if not at_first:
        early = asyncio.create_task(redis.handle("early").result(timeout=10))
        await redis.tell("early")
        await early
        await redis.told.put(BrokerUnavailable("gone"))
        await eventually(redis.told.empty)
    waiting = asyncio.create_task(redis.handle("r").result(timeout=10))
    redis.along["r"] = ALONG
    for read in (["other"] * (READ_AT_ONCE - 1) + ["r"], ["r"]):
        await redis.told.put(read)
        await eventually(lambda: redis.asked[-1:] == [["r"]])
        redis.asked.clear()
    assert not waiting.done()
    await redis.told.put(["r"])
    assert (await waiting).response == {"x": 1}, "a new one does"


@pytest.mark.parametrize("refusal", [None, BrokerUnavailable("gone"), RuntimeError("WRONGTYPE")])
async def test_read_notifications_are_deleted_a_hundred_at_a_time(redis: Redis, refusal: Exception | None) -> None:
    redis.may_not_trim = refusal
    waiting = asyncio.create_task(redis.handle("r").result(timeout=10))
    await redis.tell(*["other"] * 99)
    assert redis.trimmed == 0
    await redis.tell("other")
    await eventually(lambda: redis.trimmed == 1)
    await redis.tell(*["other"] * 100)
    await redis.tell("r")
    assert (await waiting).ok, "what is refused ends no reading"
    assert redis.trimmed == 2


async def test_who_waits_goes_on_before_redis_is_asked_for_more(redis: Redis) -> None:
    """Asking takes as long as writing an answer."""
    happened: list[str] = []
    read = redis.read_replies

    async def reading(client: str, last_id: str, block_ms: int) -> tuple[str, Notifications]:
        happened.append("asked")
        return await read(client, last_id, block_ms)

    async def waiting(handle: Handle) -> None:
        with handle.awaited() as future:
            await asyncio.wait([future], timeout=10)
        happened.append(f"{future.result().id} goes on")

    redis.read_replies = reading  # type: ignore[method-assign]
    tasks = [asyncio.create_task(waiting(redis.handle(name))) for name in ("r", "s")]
    await eventually(lambda: happened == ["asked"])
    await redis.tell("r", "s")
    await eventually(lambda: len(happened) == 4)
    assert happened == ["asked", "r goes on", "s goes on", "asked"]
    await asyncio.gather(*tasks)


async def test_who_was_awaited_is_let_go(redis: Redis) -> None:
    handle = redis.handle("r")
    with handle.awaited():
        assert redis.mailbox._slots.waiting("r") is handle.slot
    assert redis.mailbox._slots.waiting("r") is None


async def test_nothing_is_remembered_of_a_request_that_nobody_waits_for(redis: Redis) -> None:
    handle = redis.handle("r")
    assert redis.mailbox._slots.find("r") is None
    with pytest.raises(ResultTimeout):
        await handle.result(timeout=0.001)
    assert redis.mailbox._slots.find("r") is handle.slot


async def test_a_notification_that_was_passed_over_is_made_up_for_at_once(redis: Redis) -> None:
    early, late, other = redis.handle("early"), redis.handle("late"), redis.handle("other")
    waiting = asyncio.create_task(early.result(timeout=10))
    await redis.tell("late")  # nobody waits for it yet
    await redis.tell("early")
    assert (await waiting).ok
    assert redis.asked == [["early"]]
    assert (await late.result(timeout=1)).ok, "long before the look for safety"
    assert redis.asked == [["early"], ["late"]]
    with pytest.raises(ResultTimeout):  # it may have been this one
        await other.result(timeout=0.5)
    assert redis.asked[2:] == [["other"]]
    after = redis.handle("after")
    with pytest.raises(ResultTimeout):
        await after.result(timeout=0.05)
    assert redis.asked[3:] == [], "it was enqueued later, and nothing was passed over since"


async def test_what_may_have_been_told_while_redis_was_away_is_looked_at(redis: Redis) -> None:
    waited, held = redis.handle("waited"), redis.handle("held")
    waiting = asyncio.create_task(waited.result(timeout=10))
    await redis.told.put(BrokerUnavailable("gone"))
    redis.ended |= {"waited", "held"}
    await redis.told.put([])
    assert (await waiting).ok
    assert (await held.result(timeout=1)).ok
    assert redis.asked == [["waited"], ["held"]]


async def test_what_was_missed_does_not_wait_for_the_next_notification(redis: Redis) -> None:
    waiting = asyncio.create_task(redis.handle("r").result(timeout=10))
    await redis.away()
    await redis.tell("r")
    await waiting
    await eventually(lambda: len(redis.patient) == 4)
    assert redis.patient == [5_000, 1, 5_000, 5_000]


async def test_who_waits_for_what_redis_lost_is_told_when_it_is_back(redis: Redis) -> None:
    """In a failover. Who waits for one that may still come, or that Redis never said it has, waits on."""
    names = ("lost", "there", "never seen")
    lost, there = redis.handle("lost"), redis.handle("there")
    stranger = redis.mailbox.slot("never seen")
    waits = [lost.result(), there.result(), redis.mailbox.wait(stranger)]
    redis.forgot.add("never seen")
    waiting = dict(zip(names, map(asyncio.create_task, waits), strict=True))
    await eventually(lambda: redis.rechecked == [["never seen"]], what="that one may be anybody's")
    redis.forgot.add("lost")
    await redis.away()
    with pytest.raises(RequestLost, match=r"request lost: .* enqueue it again with the same id") as caught:
        await asyncio.wait_for(waiting["lost"], 5)
    assert (caught.value.id, caught.value.retryable) == ("lost", True)
    assert [sorted(names) for names in redis.rechecked[1:]] == [["lost", "never seen", "there"]]
    await redis.tell("there", "never seen")
    assert (await waiting["there"]).ok
    waiting["never seen"].cancel()


async def test_one_that_was_enqueued_before_and_is_waited_for_after_is_asked_for_too(redis: Redis) -> None:
    other = asyncio.create_task(redis.handle("other").result())
    await asyncio.sleep(0)
    early = redis.handle("early")
    redis.forgot.add("early")
    await redis.away()
    with pytest.raises(RequestLost):
        await early.result(timeout=5)
    assert not redis.handle("after").slot.must_recheck, "it was enqueued since"
    other.cancel()


async def test_what_was_enqueued_when_nobody_listened_is_asked_for(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waits for nothing hears of no outage."""
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    first, second = redis.handle("first"), redis.handle("second")
    redis.forgot |= {"first", "second"}
    arrivals = Arrivals(redis.mailbox)
    arrivals.add([first, second])
    taken: list[Result | RequestLost] = []
    while len(arrivals):
        taken += await arrivals.take(5)
    assert {each.id for each in taken if isinstance(each, RequestLost)} == {"first", "second"}


async def test_one_that_is_enqueued_again_while_it_is_asked_for_is_not_lost(redis: Redis) -> None:
    waiting = asyncio.create_task(redis.handle("r").result(timeout=5))
    await asyncio.sleep(0)
    asked, go_on = redis.holds_answers()
    redis.forgot.add("r")
    await redis.away()
    await asked.wait()
    again = asyncio.create_task(redis.handle("r").result(timeout=5))
    await asyncio.sleep(0)
    go_on.set()  # with an answer of before
    await asyncio.sleep(0.01)
    redis.forgot.clear()
    await redis.tell("r")
    assert (await waiting).ok
    assert (await again).ok


async def test_who_has_left_is_told_when_waiting_again(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    handle = redis.handle("r")
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    asked, go_on = redis.holds_answers()
    redis.forgot.add("r")
    await redis.away()
    await asked.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    go_on.set()
    await asyncio.sleep(0.01)
    assert handle.slot.future is not None
    assert not handle.slot.future.done(), "nobody would read that"
    with pytest.raises(RequestLost):
        await handle.result(timeout=5)
    assert not broken


async def test_one_that_may_have_outlived_its_record_is_waited_for(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of requests that do not end have a life, entries have none."""
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    since_ms = redis.clock.now_ms() - redis.limits.record_ttl_ms
    redis.entry = f"normal:{since_ms}-0"
    redis.forgot.add("r")
    waiting = asyncio.create_task(redis.handle("r").result(timeout=5))
    await eventually(lambda: redis.rechecked == [["r"]])
    await redis.tell("r")
    assert (await waiting).ok


async def test_another_server_in_its_place_is_asked_too(redis: Redis) -> None:
    """No read need have failed of it."""
    waiting = asyncio.create_task(redis.handle("r").result())
    await asyncio.sleep(0)
    redis.forgot.add("r")
    redis.connection.moves += 1
    await redis.told.put([])
    with pytest.raises(RequestLost):
        await asyncio.wait_for(waiting, 5)


async def test_what_is_lost_unseen_is_found_in_time(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.RECHECK_S", 0.05)
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    waiting = asyncio.create_task(redis.handle("r").result())
    await eventually(lambda: redis.rechecked, what="it was there when that was asked first")
    redis.forgot.add("r")
    with pytest.raises(RequestLost):
        await asyncio.wait_for(waiting, 5)


async def test_one_that_was_lost_and_enqueued_again_is_waited_for_again(redis: Redis) -> None:
    lost = redis.handle("r")
    waiting = asyncio.create_task(lost.result())
    await asyncio.sleep(0)
    redis.forgot.add("r")
    await redis.away()
    with pytest.raises(RequestLost):
        await asyncio.wait_for(waiting, 5)
    redis.forgot.clear()
    again = asyncio.create_task(redis.handle("r").result(timeout=5))
    await redis.tell("r")
    assert (await again).ok
    assert (await lost.result(timeout=1)).ok


async def test_one_that_cannot_be_asked_for_does_not_hold_up_the_others(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody overwrote its record, say. It is asked for again as late as all others."""
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    redis.broken.add("broken")
    waiting = {name: asyncio.create_task(redis.handle(name).result()) for name in ("broken", "lost")}
    await asyncio.sleep(0)
    redis.forgot |= {"broken", "lost"}
    await redis.away()
    with pytest.raises(RequestLost):
        await asyncio.wait_for(waiting["lost"], 5)
    await eventually(lambda: redis.polled("broken") > 4)
    assert len([names for names in redis.rechecked if "broken" in names]) == 2, "with the other, and alone"
    redis.broken.clear()
    await redis.away()
    with pytest.raises(RequestLost):
        await asyncio.wait_for(waiting["broken"], 5)


async def test_who_may_not_ask_waits_on(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rules of somebody's own."""
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    monkeypatch.setattr("streamfleet.producer.slots.RECHECK_S", 0.01)
    redis.refuses = NotPermitted("no GET of records")
    waiting = asyncio.create_task(redis.handle("r").result(timeout=5))
    await eventually(lambda: redis.polled("r") > 4)
    assert redis.rechecked == [["r"]]
    await redis.tell("r")
    assert (await waiting).ok


async def test_an_answer_that_was_overtaken_by_another_outage_is_asked_for_again_at_once(redis: Redis) -> None:
    """In a failover of two steps."""
    waiting = asyncio.create_task(redis.handle("r").result())
    await asyncio.sleep(0)
    asked, go_on = redis.holds_answers()
    await redis.away()
    await asked.wait()
    redis.forgot.add("r")
    await redis.away()
    go_on.set()  # with the answer that it is there
    with pytest.raises(RequestLost):
        await asyncio.wait_for(waiting, 2)


async def test_what_is_enqueued_while_somebody_listens_is_not_asked_for(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfleet.producer.slots.FIRST_SAFETY_S", 0.01)
    first = asyncio.create_task(redis.handle("first").result())
    await eventually(lambda: redis.rechecked == [["first"]])
    second = asyncio.create_task(redis.handle("second").result())
    await eventually(lambda: redis.polled("second") > 3)
    assert redis.rechecked == [["first"]]
    for task in (first, second):
        task.cancel()


async def test_many_are_asked_for_together_and_counted(redis: Redis) -> None:
    names = [str(number) for number in range(600)]
    handles = [redis.handle(name) for name in names]
    arrivals = Arrivals(redis.mailbox)
    arrivals.add(handles)
    arrivals.add(handles[:1])
    assert len(arrivals) == 601
    await redis.tell(*names)
    taken: list[str] = []
    while len(arrivals):
        taken += [result.id for result in await arrivals.take(10)]
    assert sorted(taken) == sorted([*names, "0"])
    assert [len(asked) for asked in redis.asked] == [250, 250, 100]
    arrivals.add([redis.handle("more")])
    assert len(arrivals) == 1
    arrivals.close()
    assert len(arrivals) == 0


async def test_closed_in_the_moment_of_a_result_nothing_goes_wrong(redis: Redis) -> None:
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    handle = redis.handle("last")
    arrivals = Arrivals(redis.mailbox)
    arrivals.add([handle])
    ended = decode_result("last", {b"status": b"succeeded"})
    assert handle.slot.future is not None
    assert ended is not None
    handle.slot.future.set_result(ended)  # what is told of it is on its way now
    arrivals.close()
    await asyncio.sleep(0)
    assert not broken
    assert len(arrivals) == 0


async def test_what_was_lost_and_is_not_taken_is_nobodys_surprise(redis: Redis) -> None:
    arrivals = Arrivals(redis.mailbox)
    handle = redis.handle("r")
    arrivals.add([handle])
    await asyncio.sleep(0)
    redis.forgot.add("r")
    await redis.away()
    await eventually(lambda: arrivals._done)
    arrivals.close()
    complaining: Any = handle.slot.future
    assert not complaining._log_traceback, "asyncio would log an exception that was never retrieved"


async def test_one_more_wait_does_not_wake_the_looks(redis: Redis) -> None:
    first = asyncio.create_task(redis.handle("first").result(timeout=10))
    await eventually(lambda: redis.mailbox._sleeps_until < 1e9)
    asleep = redis.mailbox._sleeps_until
    second = asyncio.create_task(redis.handle("second").result(timeout=10))
    await redis.tell("first", "second")
    await asyncio.gather(first, second)
    assert redis.mailbox._sleeps_until == asleep
    assert redis.asked == [["first", "second"]]
