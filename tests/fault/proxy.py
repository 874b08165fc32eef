"""A TCP proxy between a process and Redis that can cut, delay, hold back, refuse, and lose one answer or all data."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import cast


class Proxy:
    """Listens on a port of its own while it is open.

    Args:
        redis_port: where Redis listens on the loopback interface.

    Attributes:
        delay_s: how long every piece of data is held back, each way.
        swallowed: marks of the requests whose answers were lost.
        links: the connections that are open.
    """

    def __init__(self, redis_port: int) -> None:
        self.redis_port = redis_port
        self.delay_s = 0.0
        self.swallowed: list[bytes] = []
        self._held = False
        self._marks: list[bytes] = []
        self._refused: list[bytes] = []
        self.links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """URL to connect to instead of Redis."""
        if self._server is None:
            raise RuntimeError("the proxy is not open")
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def open(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Caller(self), "127.0.0.1", 0)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection."""
        for link in list(self.links):
            link.cut()

    def hold(self) -> None:
        """Let nothing through, either way, connections stay open."""
        self._held = True

    def let_go(self) -> None:
        """Let through what was held."""
        self._held = False
        for link in list(self.links):
            link.flush()

    def forget(self) -> None:
        """Lose whatever comes on the connections that there are, without a word; later ones work. As a NAT does."""
        for link in self.links:
            link.forgotten = True

    def swallow(self, mark: bytes) -> None:
        """Let the next request that holds this reach Redis; lose its answer, and the connection."""
        self._marks.append(mark)

    def refuse(self, mark: bytes) -> None:
        """Let no request that holds this reach Redis from now on; it loses its connection."""
        self._refused.append(mark)

    @property
    def held(self) -> bool:
        return self._held

    def refuses(self, data: bytes) -> bool:
        return any(mark in data for mark in self._refused)

    def is_marked(self, data: bytes) -> bool:
        for mark in self._marks:
            if mark in data:
                self._marks.remove(mark)
                self.swallowed.append(mark)
                return True
        return False

    def joined(self, link: _Link) -> None:
        self.links.add(link)

    def left(self, link: _Link) -> None:
        self.links.discard(link)


class _Way:
    """One direction of a connection: data in order, each piece when it is due."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.target: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self.target is not None and not self._waiting and not self._proxy.held and self._proxy.delay_s == 0:
            self.target.write(data)
            return
        due = loop.time() + self._proxy.delay_s
        if self._waiting:
            due = max(due, self._waiting[-1][0])
        self._waiting.append((due, data))
        self.flush()

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.target is None or self._proxy.held:
            return
        loop = asyncio.get_running_loop()
        while self._waiting:
            due, data = self._waiting[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.flush)
                return
            self._waiting.popleft()
            self.target.write(data)


class _Link:
    """A caller's connection and its counterpart to Redis."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.to_redis, self.to_caller = _Way(proxy), _Way(proxy)
        self.deaf = self.forgotten = False
        self._connecting: asyncio.Task[None] | None = None

    def open(self, caller: asyncio.Transport) -> None:
        self.proxy.joined(self)
        self.to_caller.target = caller
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: _Answerer(self), "127.0.0.1", self.proxy.redis_port
            )
        except OSError:
            self.cut()
            return
        self.to_redis.target = transport
        self.flush()

    def asked(self, data: bytes) -> None:
        if self.forgotten:
            return
        if self.proxy.refuses(data):
            self.cut()
            return
        if self.proxy.is_marked(data):
            self.deaf = True
        self.to_redis.put(data)

    def answered(self, data: bytes) -> None:
        if self.deaf:
            self.cut()
        elif not self.forgotten:
            self.to_caller.put(data)

    def flush(self) -> None:
        self.to_redis.flush()
        self.to_caller.flush()

    def cut(self) -> None:
        self.proxy.left(self)
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        for way in (self.to_redis, self.to_caller):
            if way.target is not None:
                with contextlib.suppress(RuntimeError):
                    way.target.abort()


class _Caller(asyncio.Protocol):
    def __init__(self, proxy: Proxy) -> None:
        self._link = _Link(proxy)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.open(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._link.asked(data)

    def connection_lost(self, _: Exception | None) -> None:
        # Bytes sent before the end still go through: Redis may be about to obey them.
        target = self._link.to_redis.target
        self._link.to_redis.flush()
        if target is not None:
            target.close()
        self._link.proxy.left(self._link)


class _Answerer(asyncio.Protocol):
    def __init__(self, link: _Link) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        self._link.answered(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._link.cut()
