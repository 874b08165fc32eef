"""Chunks on their way to readers: groups by time and size, refusals, and requests that are nobody's any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from streamfleet.common import metrics
from streamfleet.common.broker.types import TokenGroup
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable, NotPermitted
from streamfleet.common.limits import QueueLimits
from streamfleet.worker import publishing
from streamfleet.worker.engine.base import Text
from streamfleet.worker.in_flight import StopReason
from streamfleet.worker.publishing import (
    BYTES_AT_ONCE,
    GROUP_BYTES,
    GROUPS_KEPT,
    TEXT_CHARACTERS,
    Publisher,
    Tokens,
)
from tests.broker import Broker
from tests.clocks import HandClock
from tests.unit.worker_requests import in_flight_request
from tests.waiting import eventually


class Notebook:
    """In the broker's place: writes down what is published; refuses what a test wants refused."""

    def __init__(self) -> None:
        self.limits = QueueLimits(result_ttl_ms=8_000)
        self.calls: list[list[TokenGroup]] = []
        self.refuse: Exception | None = None
        self.odd = ""
        self.open = asyncio.Event()
        self.open.set()
        self.tries = 0

    async def publish_tokens(self, groups: Sequence[TokenGroup], cap: int) -> None:
        assert cap == GROUPS_KEPT
        self.tries += 1
        await self.open.wait()
        if self.refuse is not None:
            raise self.refuse
        if any(group.request_id == self.odd for group in groups):
            raise RuntimeError("a key of another type")
        self.calls.append(list(groups))

    def groups(self, request_id: str = "r-1") -> list[TokenGroup]:
        return [group for call in self.calls for group in call if group.request_id == request_id]


class Rig:
    def __init__(self) -> None:
        self.broker, self.clock = Notebook(), HandClock()
        self.publisher = Publisher(cast("Broker", self.broker), self.clock, set())

    def opened(self, number: int = 1) -> Any:
        one = in_flight_request(number)
        one.tokens = self.publisher.open(one)
        return one

    async def past_the_first_groups(self, one: Any) -> None:
        """Two groups go at once; what comes then is gathered."""
        for number in (1, 2):
            one.tokens.add(b"first")
            await eventually(partial(self._published, one, number))

    def _published(self, one: Any, number: int) -> bool:
        return len(self.broker.groups(one.lease.request_id)) == number

    async def after(self, seconds: float) -> None:
        """Time passes, and the loop finds out."""
        self.clock.seconds += seconds
        self.publisher._some.set()
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    rig = Rig()
    loop = asyncio.create_task(rig.publisher.run())
    try:
        yield rig
    finally:
        loop.cancel()
        await asyncio.wait({loop})
        assert loop.cancelled(), loop.exception()


async def test_the_first_chunks_go_at_once_and_the_next_ones_together() -> None:
    async with running() as rig:
        one = rig.opened()
        await rig.past_the_first_groups(one)
        for text in (b"a", b"b"):
            one.tokens.add(text)
        await rig.after(0.02)
        assert len(rig.broker.calls) == 2
        one.tokens.add(b"c")
        await rig.after(0.04)
        assert [(group.seq, group.chunks) for group in rig.broker.groups()] == [
            (0, b"first"),
            (1, b"first"),
            (2, b"a\nb\nc"),
        ]
        assert {(group.attempt, group.run) for group in rig.broker.groups()} == {(1, rig.broker.groups()[0].run)}
        assert one.tokens.total == 5


async def test_of_many_requests_each_has_at_most_one_group_an_interval_and_they_go_together() -> None:
    async with running() as rig:
        requests = [rig.opened(number) for number in range(1, 51)]
        for one in requests:
            await rig.past_the_first_groups(one)
        rig.broker.calls.clear()
        for _ in range(20):
            for one in requests:
                one.tokens.add(b"x")
            await rig.after(0.01)
        assert {len(rig.broker.groups(one.lease.request_id)) for one in requests} <= {3, 4}
        assert len(rig.broker.calls) <= 20, "their groups go in calls together"


async def test_a_full_group_does_not_wait() -> None:
    async with running() as rig:
        one = rig.opened()
        await rig.past_the_first_groups(one)
        for _ in range(3):
            one.tokens.add(b"x" * (GROUP_BYTES // 2))
        await rig.after(0.0)
        sizes = [len(group.chunks) for group in rig.broker.groups()[2:]]
        assert sum(sizes) >= GROUP_BYTES
        assert max(sizes) <= GROUP_BYTES


async def test_calls_are_of_bounded_size() -> None:
    rig = Rig()
    one = rig.opened()
    for _ in range(40):
        one.tokens.add(b"x" * (GROUP_BYTES - 1))
    await rig.publisher.flush([one])
    assert len(rig.broker.groups()) == 40
    assert all(sum(len(group.chunks) for group in call) <= BYTES_AT_ONCE for call in rig.broker.calls)


async def test_what_is_left_goes_before_the_end() -> None:
    rig = Rig()
    one, other = rig.opened(1), rig.opened(2)
    one.tokens.add(b"a")
    other.tokens.add(b"b")
    await rig.publisher.flush([one, in_flight_request(3)])
    assert [group.chunks for group in rig.broker.groups("r-1")] == [b"a"]
    assert rig.broker.groups("r-2") == []


async def test_a_later_group_never_overtakes_an_earlier_one() -> None:
    async with running() as rig:
        one = rig.opened()
        rig.broker.open.clear()
        one.tokens.add(b"a")
        await eventually(lambda: rig.broker.tries == 1)
        one.tokens.add(b"b")
        flushing = asyncio.create_task(rig.publisher.flush([one]))
        await rig.after(1.0)
        assert rig.broker.tries == 1, "while Redis has not answered nothing else is sent"
        rig.broker.open.set()
        await flushing
        assert [group.seq for group in rig.broker.groups()] == [0, 1]


@pytest.mark.parametrize("reason", StopReason)
async def test_what_is_nobodys_any_more_is_not_published(reason: StopReason) -> None:
    rig = Rig()
    one = rig.opened()
    one.tokens.add(b"a")
    one.stop(reason)
    one.tokens.add(b"b")
    await rig.publisher.flush([one])
    assert rig.broker.calls == []
    assert (one.tokens.total, rig.publisher.held_bytes) == (2, 0)


async def test_groups_that_are_nearly_due_go_along() -> None:
    async with running() as rig:
        early, late = rig.opened(1), rig.opened(2)
        await rig.past_the_first_groups(early)
        rig.clock.seconds += 0.004
        await rig.past_the_first_groups(late)
        rig.broker.calls.clear()
        for one in (early, late):
            one.tokens.add(b"x")
        await rig.after(0.0465)
        assert [[group.request_id for group in call] for call in rig.broker.calls] == [["r-1", "r-2"]]


async def test_what_its_worker_is_done_with_is_not_published() -> None:
    async with running() as rig:
        one = rig.opened()
        await rig.past_the_first_groups(one)
        one.tokens.add(b"a")
        rig.publisher.leave([one, in_flight_request(2)])
        await rig.after(1.0)
        assert len(rig.broker.groups()) == 2
        assert rig.publisher.held_bytes == 0


@pytest.mark.parametrize(
    "refusal", [BrokerOutOfMemory("full"), NotPermitted("no"), BrokerUnavailable("away")], ids=["full", "no", "away"]
)
async def test_what_redis_refuses_is_a_gap_and_no_more(refusal: Exception) -> None:
    before = metrics.STREAM_CHUNKS_DROPPED._value.get()
    rig = Rig()
    one = rig.opened()
    rig.broker.refuse = refusal
    one.tokens.add(b"a")
    one.tokens.add(b"b")
    await rig.publisher.flush([one])
    rig.broker.refuse = None
    one.tokens.add(b"c")
    await rig.publisher.flush([one])
    assert [(group.seq, group.chunks) for group in rig.broker.groups()] == [(2, b"c")]
    assert metrics.STREAM_CHUNKS_DROPPED._value.get() - before == 2


async def test_a_key_of_another_type_costs_the_others_nothing() -> None:
    rig = Rig()
    requests = [rig.opened(number) for number in (1, 2, 3)]
    rig.broker.odd = "r-2"
    for one in requests:
        one.tokens.add(b"x")
    await rig.publisher.flush(requests)
    assert [len(rig.broker.groups(f"r-{number}")) for number in (1, 2, 3)] == [1, 0, 1]


async def test_the_life_of_a_stream_is_given_with_its_first_group_and_now_and_then() -> None:
    rig = Rig()
    one = rig.opened()
    for seconds in (0.0, 0.5, 1.9, 2.1, 0.5):
        rig.clock.seconds = 100.0 + seconds if seconds != 2.1 else 102.1
        one.tokens.add(b"x")
        await rig.publisher.flush([one])
    assert [group.lasting for group in rig.broker.groups()][:4] == [True, False, False, True]


async def test_where_the_life_was_refused_it_is_given_with_the_next_group() -> None:
    rig = Rig()
    one = rig.opened()
    rig.broker.refuse = BrokerOutOfMemory("full")
    one.tokens.add(b"a")
    await rig.publisher.flush([one])
    rig.broker.refuse = None
    one.tokens.add(b"b")
    await rig.publisher.flush([one])
    assert [group.lasting for group in rig.broker.groups()] == [True]


async def test_while_redis_is_away_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MOST_HELD_BYTES", 1_000)
    async with running() as rig:
        requests = [rig.opened(number) for number in range(1, 4)]
        rig.broker.open.clear()
        requests[0].tokens.add(b"x")
        await eventually(lambda: rig.broker.tries == 1)
        for _ in range(100):
            for one in requests:
                one.tokens.add(b"x" * 99)
            assert rig.publisher.held_bytes <= 1_100
        rig.broker.open.set()
        await rig.publisher.flush(requests)
        assert {one.tokens.total for one in requests} == {100, 101}
        assert rig.publisher.held_bytes == 0


async def test_every_run_has_a_name_of_its_own() -> None:
    rig = Rig()
    for _ in range(2):
        again = rig.opened()
        again.tokens.add(b"x")
        await rig.publisher.flush([again])
    first, second = rig.broker.groups()
    assert first.run != second.run


def one_way(text: str) -> bytes:
    return f"one {text}".encode()


def other_way(text: str) -> bytes:
    return f"other {text}".encode()


async def test_texts_that_go_together_are_one_chunk() -> None:
    async with running() as rig:
        one = rig.opened()
        await rig.past_the_first_groups(one)
        for chunk in (Text("a", one_way), Text("b", one_way), Text("c", other_way), b"end", Text("d", other_way)):
            one.tokens.add(chunk)
        await rig.after(0.06)
        one.tokens.add(Text("e", other_way))
        await rig.after(0.06)
        groups = rig.broker.groups()[2:]
        assert [(group.seq, group.chunks) for group in groups] == [
            (2, b"one ab\nother c\nend\nother d"),
            (6, b"other e"),
        ]
        assert (one.tokens.total, rig.publisher.held_bytes) == (7, 0)


async def test_the_first_text_does_not_wait() -> None:
    async with running() as rig:
        one = rig.opened()
        one.tokens.add(Text("a", one_way))
        await eventually(lambda: [group.chunks for group in rig.broker.groups()] == [b"one a"])


@pytest.mark.parametrize("character", ["x", "🌍"])
async def test_a_long_text_does_not_wait_for_its_time_and_is_added_to_in_pieces(character: str) -> None:
    async with running() as rig:
        one = rig.opened()
        await rig.past_the_first_groups(one)
        piece = character * (64 // len(character.encode()))
        for _ in range(GROUP_BYTES // 64):
            one.tokens.add(Text(piece, one_way))
        await rig.after(0.0)
        groups = rig.broker.groups()[2:]
        assert sum(len(group.chunks) for group in groups) >= GROUP_BYTES
        chunks = [chunk for group in groups for chunk in group.chunks.decode().split("\n")]
        assert max(map(len, chunks)) <= TEXT_CHARACTERS + len("one ") + len(piece)
        assert "".join(chunk.removeprefix("one ") for chunk in chunks) == piece * (GROUP_BYTES // 64)


@pytest.mark.parametrize(("streams", "interval_s"), [(1, 0.05), (300, 0.05), (600, 0.1), (1800, 0.3), (5000, 0.3)])
async def test_the_more_streams_the_longer_is_the_time_between_groups(streams: int, interval_s: float) -> None:
    async with running() as rig:
        one = rig.opened()
        rig.publisher._streams |= {cast("Tokens", number) for number in range(streams - 1)}
        assert rig.publisher.interval_s == pytest.approx(interval_s)
        await rig.past_the_first_groups(one)
        one.tokens.add(b"a")
        await rig.after(interval_s - 0.01)
        assert len(rig.broker.groups()) == 2
        await rig.after(0.02)
        assert len(rig.broker.groups()) == 3
        assert metrics.STREAM_INTERVAL._value.get() == pytest.approx(interval_s)
        rig.publisher.leave([one])
        assert len(rig.publisher._streams) == streams - 1


async def test_queues_of_one_process_count_their_streams_together() -> None:
    streams: set[Tokens] = set()
    first, second = (Publisher(cast("Broker", Notebook()), HandClock(), streams) for _ in range(2))
    for number in range(600):
        (first if number % 2 else second).open(in_flight_request(number))
    assert first.interval_s == second.interval_s == pytest.approx(0.1)


@pytest.mark.parametrize(("came_s", "written_s"), [(0.02, 0.05), (0.036, 0.05), (0.038, 0.038), (0.08, 0.08)])
async def test_a_chunk_that_comes_late_in_the_interval_does_not_wait(came_s: float, written_s: float) -> None:
    async with running() as rig:
        one = rig.opened()
        await rig.past_the_first_groups(one)
        await rig.after(came_s)
        one.tokens.add(b"a")
        await rig.after(written_s - came_s - 0.001 if written_s > came_s else 0.0)
        assert len(rig.broker.groups()) == (2 if written_s > came_s else 3)
        await rig.after(0.002)
        assert len(rig.broker.groups()) == 3
