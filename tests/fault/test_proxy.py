"""The proxy passes data on in order, and loses it only where it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.fault.proxy import Proxy
from tests.waiting import eventually


@contextlib.asynccontextmanager
async def echo_behind_a_proxy() -> AsyncIterator[tuple[Proxy, list[bytes]]]:
    """A proxy in front of a server that answers what it hears, and what that server heard."""
    heard: list[bytes] = []
    serving: list[asyncio.Task[None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                heard.append(data)
                writer.write(data)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(echo(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    await proxy.open()
    try:
        yield proxy, heard
    finally:
        await proxy.close()
        await asyncio.gather(*serving)
        server.close()


@contextlib.asynccontextmanager
async def call(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1].split("/")[0]))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_what_is_delayed_or_held_stays_in_order() -> None:
    async with echo_behind_a_proxy() as (proxy, _), call(proxy) as (reader, writer):
        proxy.delay_s = 0.05
        writer.write(b"one ")
        await writer.drain()
        proxy.delay_s = 0.0
        proxy.hold()
        writer.write(b"two ")
        await writer.drain()
        proxy.let_go()
        writer.write(b"three")
        assert await asyncio.wait_for(reader.readexactly(13), 5) == b"one two three"


async def test_nothing_passes_while_it_holds() -> None:
    async with echo_behind_a_proxy() as (proxy, heard), call(proxy) as (reader, writer):
        writer.write(b"a")
        assert await asyncio.wait_for(reader.read(1), 5) == b"a"
        proxy.hold()
        writer.write(b"b")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert heard == [b"a"]
        proxy.let_go()
        assert await asyncio.wait_for(reader.read(1), 5) == b"b"


async def test_a_cut_ends_every_connection_and_none_that_comes_later() -> None:
    async with echo_behind_a_proxy() as (proxy, _):
        async with call(proxy) as (reader, writer):
            writer.write(b"a")
            assert await asyncio.wait_for(reader.read(1), 5) == b"a"
            proxy.cut()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(1), 5) == b""
        async with call(proxy) as (reader, writer):
            writer.write(b"b")
            assert await asyncio.wait_for(reader.read(1), 5) == b"b"


async def test_forgotten_connections_lose_all_without_a_word_and_later_ones_nothing() -> None:
    async with echo_behind_a_proxy() as (proxy, heard), call(proxy) as (reader, writer):
        writer.write(b"a")
        assert await asyncio.wait_for(reader.read(1), 5) == b"a"
        proxy.forget()
        writer.write(b"b")
        async with call(proxy) as (later_reader, later_writer):
            later_writer.write(b"c")
            assert await asyncio.wait_for(later_reader.read(1), 5) == b"c"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert heard == [b"a", b"c"]


async def test_a_swallowed_request_arrives_and_its_answer_does_not() -> None:
    async with echo_behind_a_proxy() as (proxy, heard), call(proxy) as (reader, writer):
        proxy.swallow(b"mark")
        writer.write(b"with a mark")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), 5) == b""
        await eventually(lambda: heard == [b"with a mark"])
        assert proxy.swallowed == [b"mark"]


async def test_a_refused_request_never_arrives_and_others_do() -> None:
    async with echo_behind_a_proxy() as (proxy, heard):
        proxy.refuse(b"mark")
        for _ in range(2):
            async with call(proxy) as (reader, writer):
                writer.write(b"with a mark")
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(1), 5) == b""
        async with call(proxy) as (reader, writer):
            writer.write(b"without")
            assert await asyncio.wait_for(reader.readexactly(7), 5) == b"without"
        assert heard == [b"without"]


async def test_without_a_server_behind_it_callers_are_turned_away() -> None:
    async with echo_behind_a_proxy() as (proxy, _):
        proxy.redis_port = 1
        async with call(proxy) as (reader, _):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(1), 5) == b""
