"""Callers that take nothing of an answer, send the next request too soon, or send trailers; slow ones are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp

from streamfleet.gateway.connection import LimitedProtocol
from tests.unit.gateway_server import connect, refused, served
from tests.waiting import eventually

SOON_S, PATIENT_S = 0.3, 2.0
"""Write time-outs. A machine that stalls for the short one looks like a caller that takes nothing."""
PIECE = b"x" * 65_536
REQUEST = b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n"


class Endless:
    """Answers without end.

    Attributes:
        pieces: how many were taken from it.
    """

    pieces = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - the signature is ASGI's
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.pieces += 1
            await asyncio.sleep(0)


class Large:
    """Answers all at once, with more than any buffer of the kernel's holds."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - the signature is ASGI's
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": PIECE * 400})


class Waiting:
    """Waits until its first caller leaves, and answers nobody.

    Attributes:
        came: how many requests came.
        left: the caller of one of them did.
    """

    def __init__(self) -> None:
        self.came, self.left = 0, asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - the signature is ASGI's
        self.came += 1
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


class Telling:
    """Answers with the names of the headers, once the whole body is there."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        names = b" ".join(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": names})


@asynccontextmanager
async def asked(app: ASGIApp, write_timeout_s: float, request: bytes = REQUEST) -> AsyncIterator[socket.socket]:
    """A connection that has asked for it."""
    async with served(app, write_timeout_s) as address:
        with await connect(address, request) as connection:
            yield connection


def cut() -> float:
    """Number of callers that were cut."""
    return refused("slow_reader")


async def test_who_takes_nothing_is_cut_off() -> None:
    before, app = cut(), Endless()
    async with asked(app, SOON_S):
        await eventually(lambda: cut() == before + 1, 10, "it was cut off")
        assert app.pieces, "not at once"


async def test_who_takes_a_little_now_and_then_is_not() -> None:
    before, app = cut(), Endless()
    async with asked(app, PATIENT_S) as connection:
        loop = asyncio.get_running_loop()
        until = loop.time() + 1.5 * PATIENT_S
        while loop.time() < until:
            assert await asyncio.to_thread(connection.recv, 1 << 20)
            await asyncio.sleep(0.1)
        assert cut() == before


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    """It was kept for as long as its client stayed: 24 MB, of each of them."""
    before = cut()
    async with asked(Large(), SOON_S) as connection:
        await eventually(lambda: cut() == before + 1, 10, "it was cut off")

        def rest() -> int:
            taken = 0
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 20):
                    taken += len(part)
            return taken

        assert await asyncio.to_thread(rest) < len(PIECE) * 400


async def test_the_time_to_read_an_answer_ends_with_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """From there on the buffer holds more than that answer, and others watch over it."""
    timers: list[asyncio.TimerHandle | None] = []
    answered, next_came = asyncio.Event(), asyncio.Event()
    watch = LimitedProtocol._watch_unread

    def watch_seen(protocol: LimitedProtocol, unsent: int) -> None:
        watch(protocol, unsent)
        timers.append(protocol._unread_timer)
        answered.set()

    async def large_then_silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/endless":
            await Large()(scope, receive, send)
        else:
            next_came.set()
            await receive()

    monkeypatch.setattr(LimitedProtocol, "_watch_unread", watch_seen)
    async with served(large_then_silent, 60, edge=False) as address:
        connection = await connect(address, REQUEST)
        await asyncio.wait_for(answered.wait(), 10)
        await asyncio.to_thread(connection.sendall, REQUEST.replace(b"/endless", b"/next"))
        await asyncio.wait_for(next_came.wait(), 10)
        connection.close()
        assert [timer is not None and timer.cancelled() for timer in timers] == [True]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_pipelined_request_hides_no_disconnect(at_once: bool) -> None:
    app = Waiting()
    async with asked(app, PATIENT_S, REQUEST * (2 if at_once else 1)) as connection:
        await eventually(lambda: app.came, 10, "the first has come")
        if not at_once:
            await asyncio.to_thread(connection.sendall, REQUEST)
        connection.close()
        await asyncio.wait_for(app.left.wait(), 10)
    assert app.came == 1


async def test_a_client_that_has_all_bytes_before_the_answer_has_ended_may_go_on() -> None:
    read = asyncio.Event()

    async def lingering(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": True})
        await read.wait()
        await send({"type": "http.response.body", "body": b""})

    async with asked(lingering, PATIENT_S) as connection:
        for _ in range(3):
            while not (await asyncio.to_thread(connection.recv, 65_536)).endswith(b"ok"):
                pass
            await asyncio.to_thread(connection.sendall, REQUEST)
            await asyncio.sleep(0)
            read.set()


async def test_trailers_are_no_headers() -> None:
    request = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"1\r\n{\r\n0\r\nAuthorization: Bearer sf-other\r\n\r\n"
    )
    async with asked(Telling(), PATIENT_S, request) as connection:
        answer = await asyncio.to_thread(connection.recv, 65_536)
    assert b"transfer-encoding" in answer
    assert b"authorization" not in answer


@pytest.mark.parametrize("line", [b"CONNECT host:443", b"GET http://", b"GET http://["])
async def test_a_request_without_a_path_is_refused(line: bytes) -> None:
    """uvicorn answered with the traceback of an AttributeError in the log."""
    async with asked(Telling(), PATIENT_S, line + b" HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        answer = await asyncio.to_thread(connection.recv, 65_536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"malformed_request" in answer
