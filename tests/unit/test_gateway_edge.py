"""A caller that takes nothing of its answer is cut off; one that is only slow is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from streamfleet.gateway import metrics
from streamfleet.gateway.connection import Limits, within
from streamfleet.gateway.edge import Edge
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


@asynccontextmanager
async def asked(app: Endless, write_timeout_s: float) -> AsyncIterator[socket.socket]:
    """A connection that has asked for it."""
    limits = Limits(headers=128, header_bytes=32_768, head_timeout_s=10, connections=10)
    edge = Edge(app, write_timeout_s)
    config = uvicorn.Config(edge, http=within(limits), lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        serving = asyncio.create_task(server._serve([opened]))  # `serve` would take our signals
        await eventually(lambda: server.started, 10, "it listens")
        with socket.create_connection(opened.getsockname(), 10) as connection:
            await asyncio.to_thread(connection.sendall, REQUEST)
            yield connection
        server.should_exit = True
        await serving


def cut() -> float:
    """How many callers were."""
    return float(metrics.REFUSED.labels("slow_reader")._value.get())


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
        assert cut() == before
