"""A server with the gateway's connections and its edge around any ASGI application, for tests with bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from streamfleet.gateway import metrics
from streamfleet.gateway.body import Bodies
from streamfleet.gateway.connection import Limits, within
from streamfleet.gateway.edge import Edge
from streamfleet.gateway.shared_counts import SharedCounts
from tests.waiting import eventually

Address = tuple[str, int]


@asynccontextmanager
async def served(
    app: ASGIApp,
    write_timeout_s: float = 10,
    connections: int = 10,
    most_answers: int | None = None,
    *,
    edge: bool = True,
    shared: SharedCounts | None = None,
) -> AsyncIterator[Address]:
    """The address of a server of an application.

    Args:
        app: the application.
        write_timeout_s: time over which the pace of a reader is measured.
        connections: most at once.
        most_answers: most bytes of answers; None for no limit.
        edge: False for the application on the connections alone.
        shared: counts of all processes of the gateway.
    """
    limits = Limits(128, 32_768, head_timeout_s=10, write_timeout_s=write_timeout_s, connections=connections)
    if edge:
        app = Edge(app, write_timeout_s, None if most_answers is None else Bodies(most_answers, answers=True))
    http = within(limits, shared)
    config = uvicorn.Config(app, http=http, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        serving = asyncio.create_task(server._serve([opened]))  # `serve` would take our signals
        await eventually(lambda: server.started, 10, "it listens")
        try:
            yield opened.getsockname()
        finally:
            server.should_exit = True
            await serving


async def connect(address: Address, request: bytes = b"", receive_bytes: int = 0) -> socket.socket:
    """A connection that has sent a request.

    Args:
        address: of the server.
        request: what it sends.
        receive_bytes: size of its receive buffer, for a slow reader; 0 for the usual one.
    """
    connection = socket.socket()
    connection.settimeout(10)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.to_thread(connection.connect, address)
    await asyncio.to_thread(connection.sendall, request)
    return connection


async def until_closed(connection: socket.socket) -> bytes:
    """Returns everything that comes until the server closes the connection."""

    def read() -> bytes:
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                received += part
        return received

    return await asyncio.to_thread(read)


def refused(reason: str) -> float:
    """Returns how often the gateway refused something for this reason."""
    return float(metrics.REFUSED.labels(reason)._value.get())
