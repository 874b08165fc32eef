"""One long-lived thread that builds an engine, keeps it, and shuts it down.

The kernel ends an engine's processes when the thread that made them ends, because PR_SET_PDEATHSIG follows the thread,
not the process. So a thread of a pool will not do. The event loop's thread will not do either, because building
blocks for many seconds.

It compares the processes below this one before and after an engine starts, and ends those that outlive it, so that none
is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import psutil
from psutil import Process

T = TypeVar("T")
_END_TIMEOUT_S = 10.0
_POLL_S = 0.02


class EngineThread(Generic[T]):
    """Builds the engine on a thread of its own, keeps it from `start` to `stop`, and shuts it down there.

    Args:
        build: makes the engine; it may block.
        shutdown: ends it; it must not block for long.
    """

    def __init__(self, build: Callable[[], T], shutdown: Callable[[T], None]) -> None:
        self._build = build
        self._shutdown = shutdown
        self._release = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: frozenset[Process] = frozenset()
        self._children: frozenset[Process] = frozenset()

    @property
    def children(self) -> frozenset[Process]:
        """Processes that ``build`` started and that still run."""
        return frozenset(filter(alive, self._children))

    async def start(self) -> T:
        """Build the engine and wait for it.

        Raises:
            Exception: the exception of ``build``; no process is left running then.
        """
        loop = asyncio.get_running_loop()
        built: asyncio.Future[T] = loop.create_future()
        self._before = descendants(os.getpid())
        self._thread = threading.Thread(target=self._run, args=(loop, built), name="streamfleet-engine", daemon=True)
        self._thread.start()
        return await built

    async def stop(self) -> None:
        """Shut down and leave no process behind, even if ``build`` has not ended yet."""
        thread = self._thread
        if thread is None:
            return
        self._release.set()
        await asyncio.to_thread(self._join, thread)

    def _join(self, thread: threading.Thread) -> None:
        thread.join(_END_TIMEOUT_S / 2)
        # Either ``build`` still runs, and fails once its processes are gone, or the shutdown left some processes.
        end_all(self._children or self._created(), _END_TIMEOUT_S / 2)
        thread.join(_END_TIMEOUT_S / 2)

    def _run(self, loop: asyncio.AbstractEventLoop, built: asyncio.Future[T]) -> None:
        try:
            engine = self._build()
        except BaseException as error:  # noqa: BLE001 - passed on to the awaiting task, SystemExit included
            end_all(self._created(), _END_TIMEOUT_S)
            _tell(loop, built, error=error)
            return
        self._children = self._created()
        _tell(loop, built, result=engine)
        self._release.wait()
        try:
            self._shutdown(engine)
        finally:
            end_all(self._children, _END_TIMEOUT_S)

    def _created(self) -> frozenset[Process]:
        new = descendants(os.getpid()) - self._before
        # multiprocessing's resource tracker serves the whole process, and ends with it.
        return frozenset(process for process in new if "resource_tracker" not in command_line(process))


def _tell(
    loop: asyncio.AbstractEventLoop,
    built: asyncio.Future[T],
    *,
    result: T | None = None,
    error: BaseException | None = None,
) -> None:
    def resolve() -> None:
        if built.done():  # nobody waits any more
            return
        if error is None:
            built.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, Exception):
            built.set_exception(error)
        else:
            built.set_exception(RuntimeError(f"the engine gave up while starting: {error!r}"))

    if not loop.is_closed():
        loop.call_soon_threadsafe(resolve)


def descendants(pid: int) -> frozenset[Process]:
    """All processes below ``pid`` that still run."""
    try:
        return frozenset(filter(alive, Process(pid).children(recursive=True)))
    except psutil.Error:  # it is gone
        return frozenset()


def alive(process: Process) -> bool:
    """True if it still runs. A zombie, which only waits for its parent to reap it, does not."""
    try:
        return process.is_running() and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.Error:
        return False


def command_line(process: Process) -> str:
    """Its command line; empty if it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def end_all(processes: frozenset[Process], timeout_s: float) -> frozenset[Process]:
    """SIGKILL the processes that still run and wait until they are gone. Blocks.

    It does not reap them: their exit status is for whoever started them.

    Returns:
        the processes that outlived ``timeout_s`` (stuck in the kernel).
    """
    deadline = time.monotonic() + timeout_s
    remaining = frozenset(filter(alive, processes))
    while remaining and time.monotonic() < deadline:
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_POLL_S)
        remaining = frozenset(filter(alive, remaining))
    return remaining
