"""A worker with something changed that no setting changes: `python -m tests.integration.worker_patches NAME…`.

Most of these take one guard out, so that a test can show what the guard is for.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from streamfleet.common.broker import Broker
from streamfleet.worker import __main__ as command
from streamfleet.worker import fitness, lease, worker
from streamfleet.worker.engine import simulated


async def _nothing(*_: Any, **__: Any) -> Any:
    return 0


def without_renewal() -> None:
    """Leases run out."""
    lease.LeaseKeeper._renew_all = _nothing  # type: ignore[method-assign]


def without_release() -> None:
    """A worker that leaves hands nothing back."""
    Broker.release = _nothing  # type: ignore[method-assign]


def without_disown() -> None:
    """What a lost answer left in the worker's name stays there."""
    Broker.disown = _nothing  # type: ignore[method-assign]


def hasty() -> None:
    """A worker that leaves waits only a little for Redis."""
    worker.LAST_WRITES_S = 0.3


def short_rest() -> None:
    """An unfit worker tries again soon."""
    fitness.REST_S = 0.3


def freezable() -> None:
    """SIGUSR2 makes the event loop hang."""
    _on_signal(signal.SIGUSR2, lambda _: threading.Event().wait())


def mortal() -> None:
    """SIGUSR1 kills the engine."""
    _on_signal(signal.SIGUSR1, lambda engine: engine.die("killed by the test"))


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
