"""A worker that a measurement tells by which way requests reach vLLM.

`python -m bench.engine.either_way`: SIGUSR2 sends them through vLLM's HTTP application, SIGUSR1 directly again. So both
ways are measured by turns with one engine.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from streamfleet.common.metrics import ByApplication
from streamfleet.worker.__main__ import main as run_worker
from streamfleet.worker.engine import direct


@contextmanager
def by_application(pid: int) -> Iterator[None]:
    """Make a worker of this module send its requests through the application."""
    os.kill(pid, signal.SIGUSR2)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGUSR1)


def listen() -> None:
    """Heed the signals."""
    plain = direct.not_plain
    signal.signal(signal.SIGUSR1, lambda *_: setattr(direct, "not_plain", plain))
    signal.signal(signal.SIGUSR2, lambda *_: setattr(direct, "not_plain", lambda _: ByApplication.NO_OTHER_WAY))


if __name__ == "__main__":
    listen()
    sys.exit(run_worker())
