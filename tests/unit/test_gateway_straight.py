"""Pieces of an answer written at once, past all layers: all of them, or the connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.gateway.disconnect import DisconnectWatcher
from streamfleet.gateway.edge import DirectWriter
from streamfleet.gateway.open_calls import OpenCalls
from streamfleet.gateway.streaming import EventStream, Reading


def straight(send: Any, ended: list[bool], *, paused: bool = False) -> DirectWriter:
    """One over a connection that is this function."""
    return DirectWriter(send, cast("Any", SimpleNamespace(write_paused=paused)), lambda: ended.append(True))


def test_a_piece_is_written_before_write_returns() -> None:
    sent: list[Any] = []
    ended: list[bool] = []

    async def send(message: Any) -> None:
        sent.append(message)

    straight(send, ended).write(b"data: {}\n\n")
    assert sent == [{"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}]
    assert not ended


@pytest.mark.parametrize("why", ["it breaks", "it would wait"])
def test_a_piece_that_cannot_be_written_ends_the_connection(why: str) -> None:
    ended: list[bool] = []

    async def send(_: Any) -> None:
        if why == "it breaks":
            raise RuntimeError(why)
        await asyncio.Event().wait()

    async def write() -> None:
        straight(send, ended).write(b"x")

    asyncio.run(write())
    assert ended == [True]


def test_a_connection_that_takes_no_more_is_not_ready() -> None:
    async def send(_: Any) -> None:
        """Nothing."""

    assert straight(send, []).ready()
    assert not straight(send, [], paused=True).ready()


async def test_a_stream_writes_straight_what_comes_behind_its_first_event() -> None:
    sent: list[bytes] = []
    handed: list[Any] = []
    loop = asyncio.get_running_loop()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def nobody_leaves() -> Any:
        await asyncio.Event().wait()

    async def rest() -> AsyncGenerator[bytes, None]:
        handed[0][1]("5-0", ["{}", '{"a": 1}'])
        yield b"data: [DONE]\n\n"

    first: asyncio.Future[bytes] = loop.create_future()
    first.set_result(b"data: first\n\n")
    scope = {"type": "http", "state": {"direct_writer": straight(send, [])}}
    tokens = SimpleNamespace(straight=lambda *both: handed.append(both))
    with DisconnectWatcher(nobody_leaves, loop.create_future(), OpenCalls()) as watcher:
        await EventStream(a_reading(), cast("Any", tokens), rest(), first, watcher)(scope, nobody_leaves, send)
    assert sent == [
        b"",
        b"data: first\n\n",
        b'id: 5-0/0\ndata: {}\n\nid: 5-0/1\ndata: {"a": 1}\n\n',
        b"data: [DONE]\n\n",
        b"",
    ]


def a_reading() -> Reading:
    """Of a stream that somebody reads again, so that nothing of it is measured."""
    return Reading(
        cast("Any", SimpleNamespace(call=SimpleNamespace(facts={}, began_s=0.0))),
        cast("Any", None),
        cast("Any", SimpleNamespace(id="r-1")),
        after="4-0/0",
        restart_events=False,
        wait_s=60,
        on_left=lambda: None,
    )
