"""Connections: requests whose framing is broken get a 400, and at the limit the longest idle one gives way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.gateway_server import Address, connect, refused, served, until_closed
from tests.waiting import eventually

MOST = 3
BODY = b"2\r\n{}\r\n0\r\n\r\n"


class App:
    """Answers at once, but a path that begins with /wait not before `go_on`. /admitted… is of a caller with a key.

    Attributes:
        came: paths that were asked for.
        left: requests whose client left before their body was complete.
    """

    def __init__(self) -> None:
        self.came: list[str] = []
        self.left = 0
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.came.append(path)
        if path.startswith("/admitted"):
            scope["state"]["call"].admit("t")
        if path == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            self.left += 1
        if "wait" in path:
            await self.go_on.wait()
        if path != "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def post(*lines: str, path: str = "/x", version: str = "1.1", host: str = "Host: x\r\n") -> bytes:
    head = "".join(f"{line}\r\n" for line in lines)
    return f"POST {path} HTTP/{version}\r\n{host}{head}\r\n".encode()


CHUNKED = post("Transfer-Encoding: chunked")
MALFORMED = {
    "a chunk's size that is none": CHUNKED + b"zz\r\n{}\r\n",
    "a chunk longer than its size": CHUNKED + b"2\r\n{}xxxx\r\n0\r\n\r\n",
    "a second chunk that is broken": CHUNKED + b"2\r\n{}\r\nXX\r\n",
    "a size beyond all numbers": CHUNKED + b"f" * 40 + b"\r\n",
    "a broken trailer": CHUNKED + b"2\r\n{}\r\n0\r\nno trailer\r\n\r\n",
    "no Host": post("Content-Length: 0", host=""),
    "two Hosts": post("Content-Length: 0", "Host: x"),
    "two different Hosts": post("Content-Length: 0", "Host: y"),
    "two Hosts in HTTP/1.0": post("Content-Length: 0", "Host: y", version="1.0"),
    "a Host with a blank": post("Content-Length: 0", host="Host: x y\r\n"),
    "a Host with a path": post("Content-Length: 0", host="Host: x/y\r\n"),
    "a Host with a user": post("Content-Length: 0", host="Host: y@x\r\n"),
    "a length that is no number": post("Content-Length: abc") + b"{}",
    "a negative length": post("Content-Length: -1"),
    "a length with a sign": post("Content-Length: +2") + b"{}",
    "a list of lengths": post("Content-Length: 2, 2") + b"{}",
    "two lengths": post("Content-Length: 2", "Content-Length: 3") + b"{} ",
    "a length and chunks": post("Content-Length: 2", "Transfer-Encoding: chunked") + BODY,
    "chunks and a length": post("Transfer-Encoding: chunked", "Content-Length: 2") + BODY,
    "a coding of the transfer": post("Transfer-Encoding: gzip") + BODY,
    "a coding before the chunks": post("Transfer-Encoding: gzip, chunked") + BODY,
    "a coding behind the chunks": post("Transfer-Encoding: chunked, gzip") + BODY,
    "no coding of the transfer": post("Transfer-Encoding: identity") + BODY,
    "chunks in HTTP/1.0": post("Transfer-Encoding: chunked", version="1.0") + BODY,
    "another HTTP": post("Content-Length: 0", version="2.0"),
    "a folded header": post("X-A: b", " c"),
    "a blank before a colon": post("X-A : b"),
    "no line ends": b"GET /x HTTP/1.1\nHost: x\n\n",
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
async def test_a_request_with_a_broken_frame_gets_a_400(request_bytes: bytes) -> None:
    app, before = App(), refused("malformed")
    async with served(app) as address:
        with await connect(address, request_bytes) as connection:
            answer = await until_closed(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "malformed_request", "in OpenAI's form, and nothing behind it"
    assert refused("malformed") == before + 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("Transfer-Encoding: chunked", "Connection: close") + BODY,
        post("Transfer-Encoding: Chunked", "Connection: close") + BODY,
        post("Content-Length: 2", version="1.0") + b"{}",
        post("Content-Length: 2", version="1.0", host="") + b"{}",
        post("Content-Length: 2", "Connection: close", host="host: [::1]:8080\r\n") + b"{}",
        post("Content-Length: 2", "Connection: close", host="Host: a-b_c.example:80\r\n") + b"{}",
        post("Content-Length: 2", "Connection: close", host="Host:\r\n") + b"{}",
    ],
)
async def test_a_frame_that_is_sound_is_served(request_bytes: bytes) -> None:
    async with served(App()) as address:
        with await connect(address, request_bytes) as connection:
            assert (await until_closed(connection)).endswith(b"ok")


async def test_who_reads_a_broken_body_learns_that_nobody_waits() -> None:
    app = App()
    async with served(app) as address:
        with await connect(address, CHUNKED) as connection:
            await eventually(lambda: app.came, 10, "the request is under way")
            await asyncio.to_thread(connection.sendall, b"zz\r\n")
            assert (await until_closed(connection)).count(b"HTTP/1.1 400") == 1
            await eventually(lambda: app.left == 1, 10, "its handler ends")


async def test_a_broken_frame_is_no_answer_to_another_request() -> None:
    """An answer that has begun, and a request before the broken one, are cut: a 400 would be taken for theirs."""
    app = App()
    async with served(app) as address:
        begun = await connect(address, post("Transfer-Encoding: chunked", path="/begun"))
        assert b"200" in await asyncio.to_thread(begun.recv, 65_536)
        waiting = await connect(address, post("Content-Length: 0", path="/wait"))
        await eventually(lambda: len(app.came) == 2, 10, "both are under way")
        for connection, broken in ((begun, b"zz\r\n"), (waiting, b"GARBAGE\r\n\r\n")):
            await asyncio.to_thread(connection.sendall, broken)
            assert b"HTTP/1.1" not in await until_closed(connection)
            connection.close()
        app.go_on.set()


@contextlib.asynccontextmanager
async def crowd(address: Address, *requests: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connections that have asked these, one after the other, and have the answers of those that do not wait."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for request in requests:
            found.append(stack.enter_context(await connect(address, request)))
            if request and b"wait" not in request:
                await answered(found[-1])
        yield found


async def answered(connection: socket.socket) -> None:
    """Take the whole answer of `App`."""
    received = b""
    while not received.endswith(b"\r\n\r\nok"):
        part = await asyncio.to_thread(connection.recv, 65_536)
        assert part, "it was closed"
        received += part


async def ask(address: Address) -> bytes:
    with await connect(address, post("Content-Length: 0", "Connection: close")) as connection:
        return await until_closed(connection)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize("idle", [get("/livez"), get("/admitted"), b""], ids=["asked", "with a key", "silent"])
@pytest.mark.parametrize("then", [b"", b"GET /half"], ids=["and waits", "and sends half a head"])
async def test_at_the_limit_the_longest_idle_one_gives_way(idle: bytes, then: bytes) -> None:
    before = refused("idle_connection")
    async with served(App(), connections=MOST) as address, crowd(address, *[idle] * MOST) as connections:
        for connection in connections:
            await asyncio.to_thread(connection.sendall, then)
        assert (await ask(address)).endswith(b"ok")
        assert await until_closed(connections[0]) == b""
        for connection in connections[1:]:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
    assert refused("idle_connection") == before + 1


async def test_who_asked_last_is_kept_longest() -> None:
    async with served(App(), connections=MOST) as address, crowd(address, *[get("/livez")] * MOST) as connections:
        await asyncio.to_thread(connections[0].sendall, get("/livez"))
        await answered(connections[0])
        assert (await ask(address)).endswith(b"ok")
        assert await until_closed(connections[1]) == b""
        await asyncio.to_thread(connections[0].sendall, get("/livez"))
        await answered(connections[0])


async def test_a_request_without_a_key_gives_way_too() -> None:
    """It may take as long as its sender wants: an answer that is not read, a body that does not come."""
    app = App()
    async with served(app, connections=MOST) as address, crowd(address, *[get("/wait")] * MOST) as connections:
        await eventually(lambda: len(app.came) == MOST, 10, "all are under way")
        assert (await ask(address)).endswith(b"ok")
        assert await until_closed(connections[0]) == b""
        app.go_on.set()


async def test_a_request_whose_key_is_still_looked_up_is_kept_longer_than_idle_ones() -> None:
    app = App()
    async with served(app, connections=MOST) as address, crowd(address, *[get("/livez")] * MOST) as connections:
        await asyncio.to_thread(connections[0].sendall, get("/wait"))
        await eventually(lambda: "/wait" in app.came, 10, "it is under way")
        assert (await ask(address)).endswith(b"ok")
        assert await until_closed(connections[1]) == b""
        app.go_on.set()
        await answered(connections[0])


async def test_a_request_of_an_admitted_caller_never_does() -> None:
    app, before = App(), refused("connections")
    async with served(app, connections=MOST) as address, crowd(address, *[get("/admitted/wait")] * MOST) as connections:
        await eventually(lambda: len(app.came) == MOST, 10, "all are under way")
        answer = await ask(address)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in answer
        assert b"retry-after" in answer
        app.go_on.set()
        for connection in connections:
            await answered(connection)
    assert refused("connections") == before + 1
