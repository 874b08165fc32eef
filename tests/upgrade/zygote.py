"""The fault harness's zygote out of a release: `python -m tests.upgrade.zygote` with the release in PYTHONPATH.

It says first what code it has. Then it forks workers and producers, as tests/fault/zygote.py does, with this harness
and that release's own streamfleet.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import structlog

from streamfleet.common import logs, scripts
from streamfleet.producer import client
from streamfleet.worker import worker
from streamfleet.worker.engine.base import EngineReply, EngineRequest, EngineUnavailable
from streamfleet.worker.engine.simulated import SimulatedEngine
from tests.upgrade.load import BUSY, BUSY_ATTEMPTS, BUSY_MS


def say_what_code() -> None:
    """One line on the standard output: where the modules are from, hashes of scripts, names of functions."""
    files = [module.__file__ for module in (scripts, client, worker)]
    shas = {verb: scripts.sha(verb) for verb in scripts.VERBS}
    functions = dict(scripts.library().functions) if "library" in vars(scripts) else {}
    sys.stdout.write(json.dumps({"files": files, "shas": shas, "functions": functions}) + "\n")
    sys.stdout.flush()


def stand_in() -> None:
    """Give the harness what it asks of today's code and a release of before does not have."""
    if "log_context" not in vars(logs):
        vars(logs)["log_context"] = _bound
    mutations: Any = ModuleType("tests.fault.mutations")
    mutations.apply = lambda _: None  # no guard is taken out here
    sys.modules["tests.fault.mutations"] = mutations


def _bound() -> SimpleNamespace | None:
    bound = structlog.contextvars.get_contextvars()
    return SimpleNamespace(**bound) if {"attempt", "entry"} <= bound.keys() else None


def be_busy() -> None:
    """The engine turns away requests that are marked for it, on their first attempts."""
    run = SimulatedEngine.run

    async def busy_run(engine: SimulatedEngine, request: EngineRequest) -> EngineReply:
        subject = vars(logs)["log_context"]()
        if BUSY in request.id and (subject is None or subject.attempt <= BUSY_ATTEMPTS):
            raise EngineUnavailable("busy", BUSY_MS)
        return await run(engine, request)

    SimulatedEngine.run = busy_run  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    say_what_code()
    stand_in()
    be_busy()
    from tests.fault import zygote

    sys.exit(zygote.main())
