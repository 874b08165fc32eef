"""Large events of streams: nothing stands inside of one, whatever comes while it is sent in pieces."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.common.clock import SystemClock
from streamfleet.common.protocol import Lane
from streamfleet.gateway.api_keys import make_record
from streamfleet.gateway.call import Call
from streamfleet.gateway.disconnect import DisconnectWatcher
from streamfleet.gateway.framing import COMMENT, DONE, frame
from streamfleet.gateway.open_calls import OpenCalls
from streamfleet.gateway.streaming import EventStream, Reading
from tests.unit.gateway_server import Address, connect, served
from tests.waiting import eventually

LARGE = 12_000_000
"""More than the buffers of both sockets take."""
KEY = "digest"
COMMENT_S = 0.05


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.gateway.streaming.KEEP_ALIVE_S", COMMENT_S)


class Stage:
    """An application that streams a small event, a large one, and what comes after it.

    Attributes:
        calls: those of the key.
        stopping: as `Gateway.stopping`.
        flow: flow control of the connection.
        quiet: set once the large event was sent.
    """

    def __init__(self, wait_s: float = 60, *, goes_on: bool = False) -> None:
        self.calls = OpenCalls()
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flow: Any = None
        self.quiet = asyncio.Event()
        self._wait_s, self._goes_on = wait_s, goes_on

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.flow = scope["state"]["flow"]
        gateway = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(default_model="m"))
        reading = Reading(
            cast("Any", SimpleNamespace(gateway=gateway, call=scope["state"]["call"])),
            cast("Any", None),
            cast("Any", SimpleNamespace(id="r-1")),
            after="4-0/0",
            restart_events=False,
            wait_s=self._wait_s,
            on_left=lambda: None,
        )
        first = asyncio.get_running_loop().create_future()
        first.set_result(frame({"n": 1}))
        tokens: Any = SimpleNamespace(straight=lambda *_: None)
        watcher = DisconnectWatcher(receive, self.stopping, self.calls, KEY)
        watcher.__enter__()
        await EventStream(reading, tokens, self._events(), first, watcher)(scope, receive, send)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield frame({"text": "x" * LARGE})
        self.quiet.set()
        if self._goes_on:
            await asyncio.Event().wait()
        yield DONE

    async def midway(self, address: Address) -> socket.socket:
        """A connection whose reader has not read the large event, of which a part was sent."""
        connection = await connect(address, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", receive_bytes=4_096)
        await eventually(lambda: self.flow is not None and self.flow.write_paused, 10, "the event is sent in half")
        return connection


def lines_of(answer: bytes) -> list[bytes]:
    """Returns the lines of a stream; of one that was cut, the last one may be incomplete."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body, first = bytearray(), 0
    while first < len(rest):
        end = rest.index(b"\r\n", first)
        size = int(rest[first:end], 16)
        body += rest[end + 2 : end + 2 + size]
        first = end + size + 4
    return bytes(body).split(b"\n")


def read(connection: socket.socket) -> bytes:
    """Returns the answer, up to its end or the connection's."""
    received = bytearray()
    try:
        while part := connection.recv(1 << 16):
            received += part
            if received.endswith(b"0\r\n\r\n"):
                break
    except ConnectionResetError:
        pass
    return bytes(received)


def check_whole(answer: bytes) -> list[bytes]:
    """Check each complete line. Returns the lines."""
    lines = lines_of(answer)
    for line in lines[:-1]:
        if line.startswith(b"data: {"):
            json.loads(line.removeprefix(b"data: "))
        else:
            assert line in (b"", COMMENT.strip(), DONE.strip())
    return lines


async def test_no_comment_stands_inside_of_an_event() -> None:
    stage = Stage()
    async with served(stage, write_timeout_s=60) as address:
        with await stage.midway(address) as connection:
            await asyncio.sleep(5 * COMMENT_S)  # several comments are due
            lines = check_whole(await asyncio.to_thread(read, connection))
    assert lines[-3:] == [DONE.strip(), b"", b""]
    assert sum(len(line) > LARGE for line in lines) == 1


@pytest.mark.parametrize("why", ["the connection takes nothing", "an event is under way"])
async def test_a_comment_waits_for_nothing(why: str) -> None:
    """If it waited for the connection, an event could begin before it is written."""
    stage, sent, looked = Stage(goes_on=True), [], asyncio.Event()
    call, ready = Call(0.0, midway=why == "an event is under way"), why == "an event is under way"
    comments = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent[-1] == COMMENT:
            comments.set()

    def is_ready() -> bool:
        looked.set()
        return ready

    writer = SimpleNamespace(ready=is_ready)
    scope = {"type": "http", "state": {"call": call, "flow": None, "direct_writer": writer}}
    task = asyncio.create_task(stage(scope, asyncio.Event().wait, send))
    for _ in range(3):
        await asyncio.wait_for(looked.wait(), 10)
        looked.clear()
    assert COMMENT not in sent
    ready, call.midway = True, False
    await asyncio.wait_for(comments.wait(), 10)
    task.cancel()
    await asyncio.wait((task,))


async def revoked(stage: Stage) -> None:
    stage.calls.check(KEY, None, 1)


async def lane_taken(stage: Stage) -> None:
    stage.calls.check(KEY, make_record(KEY, "n", "t", (Lane.LOW,), expires_ms=1), 2)


async def stopping(stage: Stage) -> None:
    stage.stopping.set_result(None)


async def deadline(stage: Stage) -> None:
    """It passes by itself."""


@pytest.mark.parametrize("ends", [revoked, lane_taken, stopping, deadline])
async def test_an_event_that_ends_in_the_middle_ends_its_connection(ends: Callable[[Stage], Awaitable[None]]) -> None:
    """An error behind half an event is no error that a reader can read."""
    stage = Stage(wait_s=0.3 if ends is deadline else 60)
    async with served(stage, write_timeout_s=60) as address:
        with await stage.midway(address) as connection:
            await ends(stage)
            await eventually(lambda: stage.calls.digests == [], 10, "it ended")
            await eventually(lambda: not stage.flow.write_paused, 10, "the connection ends, though nobody reads")
            answer = await asyncio.to_thread(read, connection)
    assert not answer.endswith(b"0\r\n\r\n"), "cut: no client may take it for whole"
    assert b'"error"' not in answer
    assert len(answer) < LARGE


async def test_the_reader_of_a_whole_event_is_told_why_its_stream_ends() -> None:
    stage = Stage(goes_on=True)
    async with served(stage, write_timeout_s=60) as address:
        with await connect(address, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
            reading = asyncio.create_task(asyncio.to_thread(read, connection))
            await asyncio.wait_for(stage.quiet.wait(), 10)
            await revoked(stage)
            lines = check_whole(await reading)
    assert json.loads(lines[-3].removeprefix(b"data: "))["error"]["code"] == "invalid_api_key"
