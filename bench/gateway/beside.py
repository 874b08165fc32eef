"""The gateway side by side with a server that speaks HTTP itself, each with an engine of its own.

Both run all the time: an idle engine leaves the cores to the other. vLLM's CPU build would not: its worker, a process
of its own, spins for a second after each step. So both get the executor that they would have on a GPU, in the process
of the engine's core, which waits without spinning.
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
EXECUTOR = "--distributed-executor-backend"
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Otherwise the CPU build takes its other executor whatever it is told."""


def measure(starts: Mapping[str, Start], work: Work, rounds: int, model: str) -> Found:
    """Start both, one after the other, and ask both the same, so many rounds."""
    with starts[DIRECT]() as server, starts[GATEWAY]() as gateway:
        return asyncio.run(ask({DIRECT: server, GATEWAY: gateway}, work, rounds, model))


def with_vllm(setup: EngineSetup) -> dict[str, Start]:
    """`vllm serve`, and a gateway in front of a worker that hosts the same vLLM."""
    return {DIRECT: lambda: served(setup), GATEWAY: lambda: behind(setup.worker_environment())}


def simulated() -> dict[str, Start]:
    """The simulated engine behind plain HTTP, and a gateway in front of a worker that hosts the same."""
    return {DIRECT: _bare, GATEWAY: lambda: behind({"STREAMFLEET_ENGINE": "simulated"})}


def sharing(setup: EngineSetup) -> EngineSetup:
    """A setup whose two instances do not disturb each other. Arguments that the user gave stay unchanged.

    On a CPU, see above; on a GPU, vLLM takes nearly all memory by default.
    """
    option, value, environment = (EXECUTOR, "uni", ONE_PROCESS) if setup.cpu else (GPU_SHARE, "0.45", {})
    if any(word.replace("_", "-").partition("=")[0] == option for word in setup.given):
        return setup
    return replace(setup, given=(*setup.given, option, value), environment=environment)


@contextmanager
def behind(environment: Mapping[str, object]) -> Iterator[Served]:
    """Start a gateway in front of a worker with these settings."""
    with staged(environment) as stage:
        yield Served(stage.url, stage.pids["gateway"], stage.headers)


@contextmanager
def _bare() -> Iterator[Served]:
    port = free_port()
    url = f"http://{HOST}:{port}"
    with started(["-m", "bench.gateway.bare_server", str(port)], talks=False) as child:
        child.wait_until(lambda: is_ready(url))
        yield Served(url, child.pid)
