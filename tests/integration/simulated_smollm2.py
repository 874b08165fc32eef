"""A worker with the simulated engine under the name of the demo's model, which the bodies of `bench.engine` name."""

from __future__ import annotations

import sys

from bench.engine.either_way import listen
from streamfleet.cli.demo.model import MODEL_NAME
from streamfleet.common.settings import EngineSettings, load_all
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.main import run_worker


def make_engine(settings: EngineSettings, max_sequences: int, reserve: int) -> Engine:
    return SimulatedEngine(models=(MODEL_NAME,))


if __name__ == "__main__":
    listen()
    sys.exit(run_worker(*load_all(engine="simulated", health_port=0), make_engine))
