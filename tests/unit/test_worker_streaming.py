"""A streamed request through the worker: who is asked for chunks, and what is written in which order."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any, cast

import pytest

from streamfleet.common.broker.types import CompleteCode, Completion, Retry, RetryCode, TokenGroup
from streamfleet.common.limits import QueueLimits
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker import publishing
from streamfleet.worker.admission import Admission
from streamfleet.worker.complete import Completer
from streamfleet.worker.engine.base import EngineReply, EngineRequest, EngineUnavailable
from streamfleet.worker.execute import Executor
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.publishing import Publisher, Tokens
from tests.broker import Broker
from tests.clocks import HandClock
from tests.unit.worker_requests import CHAT, OK, ScriptedEngine, in_flight_request


class Notebook:
    """In the broker's place: writes down what is written, in its order."""

    def __init__(self) -> None:
        self.limits = QueueLimits()
        self.written: list[tuple[str, Any]] = []

    async def publish_tokens(self, groups: Sequence[TokenGroup], _cap: int) -> None:
        self.written += [("tokens", group.chunks) for group in groups]

    async def complete(self, _worker: str, completions: Sequence[Completion]) -> list[CompleteCode]:
        self.written += [("result", item.values.get("streamed")) for item in completions]
        return [CompleteCode.PUBLISHED for _ in completions]

    async def retry_later(self, _worker: str, retries: Sequence[Retry], _most: int) -> list[RetryCode]:
        self.written += [("later", item.lease.request_id) for item in retries]
        return [RetryCode.DELAYED for _ in retries]


class Rig:
    """An executor and a completer with one publisher, whose loop does not run: only what is flushed is written."""

    def __init__(self, fails: bool = False) -> None:
        self.broker, self.engine = Notebook(), ScriptedEngine(self._answer)
        broker, clock, in_flight = cast("Broker", self.broker), HandClock(), InFlight()
        self.fails = fails
        publisher = self.publisher = Publisher(broker, clock, set())
        settings, limits = load(WorkerSettings), QueueLimits()
        admission = Admission(self.engine, in_flight, settings)
        self.executor = Executor(self.engine, admission, publisher, clock, limits)
        self.completer = Completer(broker, "w1", in_flight, publisher, limits, clock)

    async def _answer(self, request: EngineRequest) -> EngineReply:
        if request.on_chunk is not None:
            for chunk in (b"a", b"b"):
                request.on_chunk(chunk)
        if self.fails:
            raise EngineUnavailable("busy")
        return OK

    async def run(self, *requests: InFlightRequest) -> list[tuple[str, Any]]:
        """Returns everything that is written of these requests."""
        for one in requests:
            self.completer.put(one, await self.executor.execute(one))
        self.completer.close()
        await asyncio.wait_for(self.completer.run(), 5)
        return self.broker.written


async def test_tokens_are_written_before_the_result_which_says_how_many_there_were() -> None:
    rig = Rig()
    assert await rig.run(in_flight_request(1, stream=b"1"), in_flight_request(2)) == [
        ("tokens", b"a\nb"),
        ("result", 2),
        ("result", None),
    ]
    assert rig.publisher._streams == set()


async def test_the_engine_hears_how_often_a_reader_gets_a_chunk() -> None:
    rig = Rig()
    rig.publisher._streams |= {cast("Tokens", number) for number in range(599)}
    await rig.run(in_flight_request(1, stream=b"1"))
    assert rig.engine.seen[0].chunk_every_s == pytest.approx(2 * publishing.INTERVAL_S)


async def test_of_an_attempt_that_is_tried_again_nothing_more_is_written() -> None:
    rig = Rig(fails=True)
    assert await rig.run(in_flight_request(1, stream=b"1")) == [("later", "r-1")]
    assert rig.publisher.held_bytes == 0


@pytest.mark.parametrize(
    ("body", "fields"),
    [(CHAT, {}), (CHAT, {"stream": b"0"}), ({**CHAT, "stream": True}, {}), ({"input": "x"}, {"stream": b"1"})],
    ids=["plain", "not wanted", "only in its body", "embeddings"],
)
async def test_no_chunks_are_asked_for_where_none_are_wanted_or_to_be_had(body: Any, fields: Any) -> None:
    rig = Rig()
    written = await rig.run(in_flight_request(1, body, **fields))
    assert rig.engine.seen[0].on_chunk is None
    assert written == [("result", 0 if fields.get("stream") == b"1" else None)]


async def test_a_request_that_cannot_be_read_is_ended_for_its_readers() -> None:
    assert await Rig().run(in_flight_request(1, b"{", stream=b"1")) == [("result", 0)]


@pytest.mark.parametrize(
    ("options", "tells", "along"),
    [
        ({"include_usage": True}, True, False),
        ({"include_usage": False}, False, False),
        ({"include_usage": 1}, False, False),
        ("x", False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"include_usage": True, "continuous_usage_stats": "x"}, True, False),
        ({"continuous_usage_stats": True}, False, False),
    ],
    ids=str,
)
async def test_the_count_of_tokens_goes_to_those_who_ask(options: Any, tells: bool, along: bool) -> None:
    rig = Rig()
    await rig.run(in_flight_request(1, {**CHAT, "stream_options": options}, stream=b"1"))
    assert (rig.engine.seen[0].tells_usage, rig.engine.seen[0].counts_along) == (tells, along)
    assert "stream_options" not in rig.engine.seen[0].body


class HoldingTrace:
    """In a trace's place: holds its request, as that does."""

    traceparent = ""

    def __init__(self, request: InFlightRequest) -> None:
        self.request = request

    def starts(self, _now: float) -> None: ...

    def left(self, _now: float) -> None: ...


class Usage(dict[str, Any]):
    """One that tells whether the engine's request, which holds it, is there still."""


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "tried again"])
async def test_nothing_of_an_ended_request_waits_for_the_garbage_collector(fails: bool) -> None:
    rig = Rig(fails)
    held: list[weakref.ref[Any]] = []

    async def answer(asked: EngineRequest) -> EngineReply:
        asked.usage, asked.snapshot = Usage(), lambda: asked.partial
        tokens = cast("Any", asked.on_chunk).__self__
        held.extend((weakref.ref(asked.usage), weakref.ref(tokens)))
        return await rig._answer(asked)

    def request() -> InFlightRequest:
        one = in_flight_request(1, stream=b"1")
        trace: Any = HoldingTrace(one)
        one.trace = trace
        held.append(weakref.ref(trace))
        return one

    rig.engine._answer = answer
    gc.disable()
    try:
        await rig.run(request())
        rig.engine.seen.clear()
        rig.publisher._take_due()
        assert [each() for each in held] == [None, None, None]
    finally:
        gc.enable()
