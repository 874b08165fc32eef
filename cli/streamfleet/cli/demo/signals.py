"""Signals that end the demo (Ctrl-C, SIGTERM, SIGHUP); each ends all parts in an orderly way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make each signal raise KeyboardInterrupt, while no event loop runs yet."""
    before = {signum: signal.signal(signum, _interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Signals:
    """Makes each signal cancel a task on the event loop, or end the wait at the end of the demo."""

    def __init__(self) -> None:
        self._leave: asyncio.Event | None = None

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """While this is open, signals cancel the task that opened it. Must be opened in a task."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        for signum in SIGNALS:
            loop.add_signal_handler(signum, self._came, task)
        try:
            yield
        finally:
            for signum in SIGNALS:
                loop.remove_signal_handler(signum)
                signal.signal(signum, _interrupt)

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[asyncio.Event]:
        """While this is open, the first signal sets the event instead."""
        self._leave = asyncio.Event()
        try:
            yield self._leave
        finally:
            self._leave = None

    def _came(self, task: asyncio.Task[object] | None) -> None:
        if self._leave is not None and not self._leave.is_set():
            self._leave.set()
        elif task is not None:
            task.cancel()
