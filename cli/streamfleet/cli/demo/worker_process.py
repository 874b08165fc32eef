"""The demo's worker: the real one, as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from streamfleet.common.errors import StreamfleetError

STOP_TIMEOUT_S = 60.0


class WorkerEnded(StreamfleetError):
    """The demo's worker ended before its time; the message holds its last lines."""


class WorkerProcess:
    """`streamfleet worker` on a queue, its log in a file.

    Args:
        redis_url, queue: the queue to work on.
        log_file: where its log goes.
        arguments: further command-line arguments of the worker.
    """

    def __init__(self, redis_url: str, queue: str, log_file: Path, arguments: Sequence[str]) -> None:
        self._environment = {
            **os.environ,
            "REDIS_URL": redis_url,
            "STREAMFLEET_HEALTH_PORT": "0",
            "STREAMFLEET_LOG_FORMAT": "console",
        }
        # Names well known elsewhere may be set for another program: here they would change what is shown.
        for name in ("BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS"):
            self._environment.pop(name, None)
        self._command = [sys.executable, "-m", "streamfleet.cli", "worker", "--queue", queue, *arguments]
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the worker in order
            )

    async def until(self, ready: Callable[[], object], poll_s: float = 0.25) -> None:
        """Wait until `ready` awaits to something true.

        Raises:
            WorkerEnded: the process ended first.
        """
        while not await ready():  # type: ignore[misc]
            if self._process is None or self._process.returncode is not None:
                raise WorkerEnded(
                    f"the worker ended before it was ready; its log is {self._log_file}:\n{self.tail(15)}"
                )
            await asyncio.sleep(poll_s)

    async def stop(self) -> int | None:
        """Ask it to drain, and wait for that. Returns its exit status; None when it never started."""
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        return self._process.returncode

    def tail(self, lines: int) -> str:
        """The last lines of its log."""
        with self._log_file.open(errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()
