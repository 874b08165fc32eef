"""The simulated engine where `bench` has vLLM: in a worker, under the name of the demo's model, and behind HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.core.processes import started
from bench.engine.either_way import listen
from bench.engine.served import Served
from streamfleet.cli.demo.model import MODEL_NAME
from streamfleet.common.settings import EngineSettings, load_all
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.main import run_worker


def make_engine(settings: EngineSettings, max_sequences: int, reserve: int) -> Engine:
    return SimulatedEngine(models=(MODEL_NAME,))


@contextmanager
def served() -> Iterator[Served]:
    """Start a server of the contract tests."""
    with started(["-m", "tests.contract.simulated_server"], talks=True) as child:
        yield Served(f"http://127.0.0.1:{child.answer()}", child.pid)


if __name__ == "__main__":
    listen()
    sys.exit(run_worker(*load_all(engine="simulated", health_port=0), make_engine))
