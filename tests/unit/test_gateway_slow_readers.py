"""Readers of large answers: what is held for them is bounded, they keep a pace, and nothing is left of who leaves."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import weakref
from typing import Any

import pytest
import structlog.testing
from starlette.responses import JSONResponse, Response, StreamingResponse

from streamfleet.gateway import metrics
from streamfleet.gateway.body import SMALL_ANSWER_BYTES, Bodies, Holding
from streamfleet.gateway.call import Call
from streamfleet.gateway.connection import LEAST_BYTES_S, Limits, within
from streamfleet.gateway.edge import Answer, SlowReader
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.offload import StreamedJson
from tests.unit.gateway_server import Address, connect, refused, served, until_closed
from tests.waiting import eventually

LARGE = 12_000_000
"""More than the buffers of both sockets take."""
MOST = 4 * LARGE + 1_000
REFUSAL_HEADERS = (
    *(b"content-type", b"content-length", b"retry-after", b"openai-processing-ms", b"x-request-id"),
    *(b"x-content-type-options", b"x-streamfleet-id", b"access-control-allow-origin"),
)
TEXT = {"text": "x" * LARGE}


def held() -> float:
    return float(metrics.ANSWER_BYTES._value.get())


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answers the tenant that the path names: /TENANT/KIND."""
    _, tenant, kind = scope["path"].split("/")
    call: Call = scope["state"]["call"]
    if tenant:
        call.admit(tenant)
    call.headers["x-streamfleet-id"] = "r-1"
    call.anthropic = kind == "message"
    foreign = {"content-disposition": "attachment", "cache-control": "public", "access-control-allow-origin": "*"}
    answer: Response = JSONResponse(TEXT, headers=foreign)
    if kind == "pieces":
        call.hold_answer(scope["answers"], LARGE)
        answer = StreamedJson(TEXT)
    elif kind == "events":
        answer = StreamingResponse(events(), media_type="text/event-stream")
    elif kind == "small":
        answer = Response(b"x" * SMALL_ANSWER_BYTES)
    await answer(scope, receive, send)


async def events() -> Any:
    yield b"data: first\n\n"
    yield b"data: " + b"x" * LARGE + b"\n\n"


def get(path: str, *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]).encode()


async def slow(address: Address, tenant: str, kind: str = "whole") -> socket.socket:
    """A connection that has asked and reads no more than the head of its answer."""
    connection = await connect(address, get(f"/{tenant}/{kind}"), receive_bytes=4_096)
    assert b" 200 " in await asyncio.to_thread(connection.recv, 200)
    return connection


async def whole(address: Address, tenant: str, kind: str = "whole") -> tuple[int, bytes]:
    """Status and rest of an answer that is read at once."""
    with await connect(address, get(f"/{tenant}/{kind}", "Connection: close")) as connection:
        answer = await until_closed(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head if head.split()[1] != b"200" else body


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.gateway.body.ROOM_S", 0.05)


async def test_what_slow_readers_hold_is_bounded_by_tenant_and_together() -> None:
    before, refusals = held(), refused("answer_bytes")
    async with served(large, 60, most_answers=MOST) as address:
        first = [await slow(address, "a") for _ in range(2)]
        status, head = await whole(address, "a")
        assert status == 429
        assert b"retry-after: " in head
        second = [await slow(address, "b")]
        assert (await whole(address, "c"))[0] == 200, "there is room for another tenant"
        second.append(await slow(address, "b"))
        status, head = await whole(address, "c")
        assert status == 503
        assert b"retry-after: " in head
        assert (await whole(address, "a", "small"))[0] == 200, "small answers need no room"
        assert held() - before <= MOST
        for connection in (*first, *second):
            connection.close()
        await eventually(lambda: held() == before, 10, "nothing is held of who left")
        assert (await whole(address, "a"))[0] == 200
    assert refused("answer_bytes") == refusals + 2


async def test_those_without_a_key_have_a_share_too() -> None:
    async with served(large, 60, most_answers=MOST) as address:
        connections = [await slow(address, "") for _ in range(2)]
        assert (await whole(address, ""))[0] == 429
        assert (await whole(address, "a"))[0] == 200
        for connection in connections:
            connection.close()


async def test_a_refusal_is_openais_error_and_has_the_headers_of_the_answer() -> None:
    async with served(large, 60, most_answers=MOST) as address:
        connections = [await slow(address, "a") for _ in range(2)]
        with await connect(address, get("/a/whole", "Connection: close")) as connection:
            head, _, body = (await until_closed(connection)).partition(b"\r\n\r\n")
        assert json.loads(body)["error"]["code"] == "too_many_bytes"
        lines = head.split(b"\r\n")[1:]
        names = sorted(
            line.partition(b":")[0] for line in lines if not line.startswith((b"date", b"server", b"connection"))
        )
        assert names == sorted(REFUSAL_HEADERS), "none of the answer that it replaces"
        assert b"content-type: application/json" in lines
        assert f"content-length: {len(body)}".encode() in lines
        assert b"x-streamfleet-id: r-1" in lines, "the request whose answer is kept"
        for each in connections:
            each.close()


async def test_the_refusal_of_a_message_is_anthropics() -> None:
    async with served(large, 60, most_answers=MOST) as address:
        connections = [await slow(address, "a") for _ in range(2)]
        with await connect(address, get("/a/message", "Connection: close")) as connection:
            head, _, body = (await until_closed(connection)).partition(b"\r\n\r\n")
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        assert f"content-length: {len(body)}".encode() in head.split(b"\r\n")
        for each in connections:
            each.close()


@pytest.mark.parametrize("kind", ["whole", "events"])
async def test_an_answer_waits_a_moment_for_room(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It was computed and charged, and then refused though a reader was about to be done."""
    monkeypatch.setattr("streamfleet.gateway.body.ROOM_S", 20)
    waits = asyncio.Event()
    add_soon = Holding.add_soon

    async def seen(holding: Holding, size: int) -> None:
        waits.set()
        await add_soon(holding, size)

    async with served(large, 60, most_answers=MOST) as address:
        connections = [await slow(address, "a") for _ in range(2)]
        monkeypatch.setattr(Holding, "add_soon", seen)
        answer = asyncio.create_task(whole(address, "a", kind))
        await asyncio.wait_for(waits.wait(), 10)
        assert not answer.done()
        connections[0].close()
        status, body = await asyncio.wait_for(answer, 15)
        assert (status, len(body) > LARGE) == (200, True)
        connections[1].close()


async def test_what_waits_for_room_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in memory, and counted nowhere."""
    monkeypatch.setattr("streamfleet.gateway.body.ROOM_S", 20)
    answers = Bodies(1_000, answers=True)
    first, one, two = (answers.hold(None) for _ in range(3))
    first.add(1_000)
    waiting = asyncio.create_task(one.add_soon(1_000))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):  # it does not wait
        with pytest.raises(ApiError, match="503"):
            await two.add_soon(1)
    first.release()
    await waiting
    one.release()
    first.add(1_000)
    monkeypatch.setattr("streamfleet.gateway.body.ROOM_S", 0.05)
    with pytest.raises(ApiError, match="503"):
        await one.add_soon(1_000)
    first.release()
    await one.add_soon(1)
    one.release()


async def test_a_large_event_that_finds_no_room_ends_its_stream() -> None:
    """Its answer has begun, so it cannot become an error."""
    async with served(large, 60, most_answers=MOST) as address:
        connections = [await slow(address, "a") for _ in range(2)]
        status, body = await whole(address, "a", "events")
        assert (status, b"first" in body, len(body) < 1_000) == (200, True, True)
        for connection in connections:
            connection.close()


class Reader:
    """Flow control of a connection whose reader takes so many bytes in each period, for so many periods."""

    def __init__(self, takes: int, periods: int = 3) -> None:
        self.write_paused, self.left = True, 10_000_000
        self._takes, self._looks = takes, 2 * periods

    async def drain(self) -> None:
        await asyncio.Event().wait()

    def unsent(self) -> int:
        """Two looks are one period."""
        self._looks -= 1
        self.left -= self._takes if self._looks % 2 == 0 else 0
        self.write_paused = self._looks > 0
        return self.left


PERIOD_S = 0.05


async def sent_to(reader: Reader, held_bytes: int = 0) -> None:
    async def send(message: Any) -> None:
        assert message

    call, answers = Call(0.0), Bodies(10**12, answers=True)
    if held_bytes:
        call.hold_answer(answers, held_bytes)
    flow: Any = reader
    try:
        answer = Answer(send, call, flow, reader.unsent, answers, PERIOD_S, lambda: None)
        await answer.send({"type": "http.response.body", "body": b"x", "more_body": True})
    finally:
        call.end()


LEAST = round(LEAST_BYTES_S * PERIOD_S)


@pytest.mark.parametrize(("takes", "held_bytes"), [(0, 0), (LEAST // 4, 0), (2 * LEAST, 60_000_000)])
async def test_who_takes_too_little_is_cut_off(takes: int, held_bytes: int) -> None:
    """A byte now and then kept an answer in memory for ever. What is held has to be taken within ten minutes."""
    with pytest.raises(SlowReader):
        await sent_to(Reader(takes), held_bytes)


@pytest.mark.parametrize(("takes", "held_bytes"), [(20 * LEAST, 0), (20 * LEAST, 600_000), (50_000, 60_000_000)])
async def test_who_keeps_the_pace_is_not(takes: int, held_bytes: int) -> None:
    await sent_to(Reader(takes), held_bytes)


@pytest.mark.parametrize(("takes", "cut"), [(0, True), (LEAST // 2, True), (20 * LEAST, False), (10_000_000, False)])
async def test_what_is_left_of_a_complete_answer_has_a_pace_too(takes: int, cut: bool) -> None:
    class Transport:
        left, aborted = 10_000_000, False

        def get_write_buffer_size(self) -> int:
            return self.left

        def abort(self) -> None:
            self.aborted = True

    transport: Any = Transport()
    protocol: Any = object.__new__(within(Limits(128, 32_768, 10, PERIOD_S, 10)))
    protocol.transport, protocol.loop, protocol._unread_timer = transport, asyncio.get_running_loop(), None
    transport.left -= takes
    protocol._unread(10_000_000)
    assert transport.aborted is cut
    assert (protocol._unread_timer is not None) is (not cut and transport.left > 0)
    protocol._forget_unread()


@pytest.mark.parametrize("kind", ["whole", "pieces", "events"])
@pytest.mark.parametrize("how", ["leaves", "reads nothing"])
async def test_who_goes_leaves_no_error_in_the_log(caplog: pytest.LogCaptureFixture, kind: str, how: str) -> None:
    answers = Bodies(MOST, answers=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await large({**scope, "answers": answers}, receive, send)

    before = held()
    with caplog.at_level(logging.WARNING), structlog.testing.capture_logs() as logged:
        async with served(app, 60 if how == "leaves" else 0.2, most_answers=MOST) as address:
            connection = await slow(address, "a", kind)
            if how == "leaves":
                connection.close()
            await eventually(lambda: [line for line in logged if line["event"] == "http_request"], 10, "it ended")
            connection.close()
    assert held() == before
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    (line,) = logged
    assert line["log_level"] == "info"
    assert line["http_id"].startswith("req_")
    assert line.get("left", False) is (how == "leaves" and kind == "pieces"), "the others were complete at once"


class Items(list[bytes]):
    """A list that a weak reference may point to."""


@pytest.mark.parametrize("how", ["leaves", "reads nothing", "reads all"])
async def test_nothing_of_an_answer_waits_for_the_garbage_collector(how: str) -> None:
    """Cycles of objects kept an answer, and a file's content open, long after its reader had gone."""
    answers: list[weakref.ref[Items]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        items = Items([b'"' + b"x" * 1_000_000 + b'"'] * 20)
        answers.append(weakref.ref(items))
        await StreamedJson({"a": 1}, items=items)(scope, receive, send)

    gc.disable()
    try:
        async with served(app, 0.2 if how == "reads nothing" else 60) as address:
            with await connect(address, get("/x", "Connection: close")) as connection:
                assert await asyncio.to_thread(connection.recv, 200)
                if how == "reads all":
                    assert (await until_closed(connection)).endswith(b"0\r\n\r\n")
                elif how == "leaves":
                    connection.close()
                await eventually(lambda: answers[0]() is None, 10, "the answer is gone")
    finally:
        gc.enable()


async def test_an_answer_in_pieces_is_what_it_is_in_one() -> None:
    value = {"a": [1, "ä\ud800"], "b": {"c": None}}
    answer = StreamedJson(value, empty=[], items=iter([b"1", b'"two"']))
    text = b"".join([piece async for piece in answer._pieces])
    assert json.loads(text) == {**value, "empty": [], "items": [1, "two"]}
