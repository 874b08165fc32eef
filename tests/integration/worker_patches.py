"""A worker with something changed that no setting changes: `python -m tests.integration.worker_patches NAME…`.

Most of these take one guard out, so that a test can show what the guard is for.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import structlog

from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.worker import __main__ as command
from streamfleet.worker import admission, configuration, containment, housekeeping, lease, pull, worker
from streamfleet.worker.engine import simulated, simulated_profile
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.in_flight import InFlightRequest
from tests.support import told_calls

DEADLY_AFTER_S = 0.15


async def _nothing(*_: Any, **__: Any) -> Any:
    return 0


def without_renewal() -> None:
    """Leases run out."""
    lease.LeaseKeeper._renew_all = _nothing  # type: ignore[method-assign]


def without_release() -> None:
    """A worker that leaves hands nothing back."""
    WorkerBroker.release = _nothing  # type: ignore[method-assign]


def without_names() -> None:
    """Nobody looks whether another worker has the name."""
    worker.Worker._wait_for_name = _nothing  # type: ignore[method-assign]


def without_disown() -> None:
    """Entries that a lost answer left in the worker's name stay there."""
    WorkerBroker.disown = _nothing  # type: ignore[method-assign]


def hasty() -> None:
    """A worker that leaves waits only a little for Redis."""
    worker.LAST_WRITES_S = 0.3


def patient() -> None:
    """A worker that leaves soon does so by itself, not because its last read or its last write gives up."""
    worker.LAST_WRITES_S = 30.0
    pull.WAIT_MS = 60_000


def short_rest() -> None:
    """An unfit worker tries again soon."""
    containment.REST_S = 0.3


def without_waiting_for_others() -> None:
    """A shorter lease is reclaimed by at once, and renewed by when the next renewal is due."""

    def apply(keeper: lease.LeaseKeeper, *, changed: bool) -> None:
        if changed:
            keeper._tell(keeper._configured, keeper._configuration.limits)

    configuration.LeaseLength.longest_ms = lambda length, _: length._lease_ms  # type: ignore[method-assign, assignment]
    lease.LeaseKeeper._apply = apply  # type: ignore[method-assign, assignment]


def freezable() -> None:
    """SIGUSR2 makes the event loop hang."""
    _on_signal(signal.SIGUSR2, lambda _: threading.Event().wait())


def breakable() -> None:
    """SIGUSR1 breaks the engine: it answers everything with a 500, at once. SIGUSR2 mends it."""
    _on_signal(signal.SIGUSR1, lambda engine: setattr(engine.faults, "errors", 1_000_000))
    _on_signal(signal.SIGUSR2, lambda engine: setattr(engine.faults, "errors", 0))


def buggy() -> None:
    """A bug of the worker's own, behind the engine's answer."""

    def weigh(*_: object) -> None:
        raise RuntimeError("a bug")

    containment.CircuitBreaker.weigh = weigh  # type: ignore[method-assign,assignment]


def deadly() -> None:
    """A request whose id begins with `poison` kills the process that runs it, some steps in."""
    run = simulated.SimulatedEngine.run

    async def run_or_die(engine: simulated.SimulatedEngine, request: EngineRequest) -> EngineReply:
        if request.id.startswith("poison"):
            await asyncio.sleep(DEADLY_AFTER_S)
            os.kill(os.getpid(), signal.SIGKILL)
        return await run(engine, request)

    simulated.SimulatedEngine.run = run_or_die  # type: ignore[method-assign,assignment]


def witnessed() -> None:
    """Each request that enters the engine is logged, with the machine's monotonic clock, which all processes share."""
    run = simulated.SimulatedEngine.run

    async def run_seen(engine: simulated.SimulatedEngine, request: EngineRequest) -> EngineReply:
        structlog.get_logger("witness").info("engine_entered", id=request.id, at_s=time.monotonic())
        return await run(engine, request)

    simulated.SimulatedEngine.run = run_seen  # type: ignore[method-assign,assignment]


def weighed() -> None:
    """The engine has slots for all; as a request enters it, the tokens that all inside may come to are logged."""
    run, inside = simulated.SimulatedEngine.run, Counter[str]()
    simulated_profile.SMOLLM2_135M_CPU = replace(simulated_profile.SMOLLM2_135M_CPU, slots=256)

    async def run_weighed(engine: simulated.SimulatedEngine, request: EngineRequest) -> EngineReply:
        inside[request.id] = request.body["max_tokens"]
        structlog.get_logger("witness").info("engine_holds", tokens=inside.total(), requests=len(inside))
        try:
            return await run(engine, request)
        finally:
            del inside[request.id]

    simulated.SimulatedEngine.run = run_weighed  # type: ignore[method-assign,assignment]


def broken() -> None:
    """A bug ends the housekeeping at its first round."""

    async def tick(housekeeper: housekeeping.Housekeeper, number: int, turns: int) -> None:
        url = os.environ["STREAMFLEET_REDIS_URL"]
        if url:  # which a traceback with local variables would show
            raise RuntimeError(f"a bug near {housekeeper._broker!r} and {housekeeper._broker.connection!r}")

    housekeeping.Housekeeper.tick = tick  # type: ignore[method-assign,assignment]


def clumsy() -> None:
    """A bug whose message quotes the request."""

    def fail(_: admission.Admission, request: InFlightRequest, *others: Any) -> Any:
        raise ValueError(f"invalid literal: {request.claim.fields!r}")

    admission.Admission.admit = fail  # type: ignore[method-assign,assignment]


def mortal() -> None:
    """SIGUSR1 kills the engine."""
    _on_signal(signal.SIGUSR1, lambda engine: engine.die("killed by the test"))


class _Utf8(str):
    """Is encoded as UTF-8, whatever is asked for."""

    __slots__ = ()

    def encode(self, *_: str, **__: str) -> bytes:
        return super().encode()


def outspoken() -> None:
    """Chunks have their characters as they are, as vLLM's have, and not as escapes."""

    def dumps(value: Any, **how: Any) -> str:
        return _Utf8(json.dumps(value, ensure_ascii=False, **how))

    simulated.json = SimpleNamespace(dumps=dumps)  # type: ignore[assignment,attr-defined]


def told() -> None:
    """The engine calls the functions that users name."""
    simulated.SimulatedEngine.run = told_calls.run  # type: ignore[method-assign,assignment]


def _on_signal(signum: signal.Signals, act: Callable[[simulated.SimulatedEngine], object]) -> None:
    start = simulated.SimulatedEngine.start

    async def start_listening(engine: simulated.SimulatedEngine) -> None:
        await start(engine)
        asyncio.get_running_loop().add_signal_handler(signum, act, engine)

    simulated.SimulatedEngine.start = start_listening  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    for patch in sys.argv[1:]:
        globals()[patch]()
    sys.exit(command.main())
