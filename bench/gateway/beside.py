"""The gateway side by side with a server that speaks HTTP itself, each with an engine of its own: what it adds.

Both are up all the time: an engine that is not asked leaves the cores to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from bench.engine.processes import started
from bench.engine.served import HOST, Served, free_port, is_ready, served
from bench.engine.setup import EngineSetup
from bench.gateway.asking import ask
from bench.gateway.figures import DIRECT, GATEWAY, Found
from bench.gateway.stage import staged
from bench.gateway.work import Work

Start = Callable[[], AbstractContextManager[Served]]
GPU_SHARE = "--gpu-memory-utilization"


def measure(starts: Mapping[str, Start], work: Work, rounds: int, model: str) -> Found:
    """Start both, one after the other, and ask both the same, so many rounds."""
    with starts[DIRECT]() as server, starts[GATEWAY]() as gateway:
        return asyncio.run(ask({DIRECT: server, GATEWAY: gateway}, work, rounds, model))


def with_vllm(setup: EngineSetup) -> dict[str, Start]:
    """`vllm serve`, and a gateway before a worker that hosts the same vLLM."""
    return {DIRECT: lambda: served(setup), GATEWAY: lambda: behind(setup.worker_environment())}


def simulated() -> dict[str, Start]:
    """The simulated engine behind bare HTTP, and a gateway before a worker that hosts the same."""
    return {DIRECT: _bare, GATEWAY: lambda: behind({"STREAMFLEET_ENGINE": "simulated"})}


def sharing(setup: EngineSetup) -> EngineSetup:
    """A setup of which two fit on one GPU: vLLM takes nearly all of its memory unless told otherwise."""
    named = any(word.replace("_", "-").partition("=")[0] == GPU_SHARE for word in setup.given)
    return setup if setup.cpu or named else replace(setup, given=(*setup.given, GPU_SHARE, "0.45"))


@contextmanager
def behind(environment: Mapping[str, object]) -> Iterator[Served]:
    """A gateway before a worker with these settings."""
    with staged(environment) as stage:
        yield Served(stage.url, stage.pids["gateway"], stage.headers)


@contextmanager
def _bare() -> Iterator[Served]:
    port = free_port()
    url = f"http://{HOST}:{port}"
    with started(["-m", "bench.gateway.bare_server", str(port)], talks=False) as child:
        child.wait_until(lambda: is_ready(url))
        yield Served(url, child.pid)
