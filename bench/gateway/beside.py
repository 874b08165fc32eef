"""The gateway beside a server that speaks HTTP itself: one engine behind both, by turns, or an engine each.

By turns, the worker behind the gateway asks the same server over HTTP, which is one hop more than with an in-process
engine. So the result is an upper bound of the added time.

With an engine each, both run all the time: an idle engine leaves the cores to the other. vLLM's CPU build would not:
its worker, a process of its own, spins for a second after each step. So both get the executor that they would have on
a GPU, in the process of the engine's core, which waits without spinning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from bench.engine.served import Served, served
from bench.engine.setup import EngineSetup
from bench.gateway.asking import ask
from bench.gateway.figures import DIRECT, GATEWAY, Found
from bench.gateway.stage import staged
from bench.gateway.work import Work

Start = Callable[[], AbstractContextManager[Served]]
EXECUTOR = ("--distributed-executor-backend", "uni")
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Otherwise the CPU build takes its other executor whatever it is told."""


def by_turns(start: Start, work: Work, rounds: int) -> Found:
    """Start a server, with a gateway and a worker in front of it; ask both ways the same, so many rounds."""
    with start() as server:
        settings = {"STREAMFLEET_ENGINE": "openai", "VLLM_URL": server.url, "STREAMFLEET_REMOTE_SLOTS": work.batch}
        with behind(settings) as gateway:
            return asyncio.run(ask({DIRECT: server, GATEWAY: gateway}, work, rounds))


def side_by_side(starts: Mapping[str, Start], work: Work, rounds: int) -> Found:
    """Start both, one after the other, and ask both the same, so many rounds."""
    with starts[DIRECT]() as server, starts[GATEWAY]() as gateway:
        return asyncio.run(ask({DIRECT: server, GATEWAY: gateway}, work, rounds))


def with_vllm(setup: EngineSetup) -> dict[str, Start]:
    """`vllm serve`, and a gateway in front of a worker that hosts the same vLLM."""
    return {DIRECT: lambda: served(setup), GATEWAY: lambda: behind(setup.worker_environment())}


def sharing(setup: EngineSetup) -> EngineSetup:
    """A setup whose two instances do not disturb each other, see above."""
    return replace(setup, given=(*setup.given, *EXECUTOR), environment=ONE_PROCESS)


@contextmanager
def behind(environment: Mapping[str, object]) -> Iterator[Served]:
    """Start a gateway in front of a worker with these settings."""
    with staged(environment) as stage:
        yield Served(stage.url, stage.pids["gateway"], stage.headers)
