"""One server, asked directly and through a gateway by turns, so that both meet the same engine.

Behind the gateway, the worker asks the same server over HTTP, which is one hop more than with an in-process engine. So
the result is an upper bound of the added time.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from bench.engine.served import Served
from bench.gateway.asking import ask
from bench.gateway.beside import Start, behind
from bench.gateway.figures import DIRECT, GATEWAY, Found
from bench.gateway.work import Work


def measure(start: Start, work: Work, rounds: int, model: str) -> Found:
    """Start a server, with a gateway and a worker in front of it; ask both ways the same, so many rounds."""
    with start() as server, _before(server, work.batch) as gateway:
        return asyncio.run(ask({DIRECT: server, GATEWAY: gateway}, work, rounds, model))


def _before(server: Served, slots: int) -> AbstractContextManager[Served]:
    return behind({"STREAMFLEET_ENGINE": "openai", "VLLM_URL": server.url, "STREAMFLEET_REMOTE_SLOTS": slots})
