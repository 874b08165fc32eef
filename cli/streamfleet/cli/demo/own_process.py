"""Runs a part of the demo as a separate process: starts it, waits for it, and ends it by its id."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from streamfleet.cli.demo.parent import with_parent
from streamfleet.common.errors import StreamfleetError

STOP_TIMEOUT_S = 60.0
# These may be set for another program, and would change the demo.
_FOREIGN = ("BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS", "REDIS_URL_FILE")


class ProcessEnded(StreamfleetError):
    """A process of the demo ended too early; the message holds the last lines of its log."""


def environment(redis_url: str, **settings: str) -> dict[str, str]:
    """This process's environment with the demo's settings, without settings for other fleets.

    Args:
        redis_url: the Redis to use.
        settings: in lower case, without the prefix `STREAMFLEET_`.
    """
    outer = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STREAMFLEET_") and name not in _FOREIGN
    }
    return {
        **outer,
        "REDIS_URL": redis_url,
        **{f"STREAMFLEET_{name.upper()}": value for name, value in settings.items()},
    }


class OwnProcess:
    """A `streamfleet` command in the background, with its log in a file. It ends with this process.

    Args:
        arguments: arguments of the command.
        log_file: file for its log.
        env: its environment.
    """

    def __init__(self, arguments: Sequence[str], log_file: Path, env: dict[str, str]) -> None:
        self._command = with_parent([sys.executable, "-m", "streamfleet.cli", *arguments])
        self._what = arguments[0]
        self._environment = env
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
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the process in order
            )

    async def until(self, ready: Callable[[], Awaitable[object]], poll_s: float = 0.25) -> None:
        """Wait until `ready` returns a true value.

        Raises:
            ProcessEnded: the process ended first.
        """
        while not await ready():
            if self._process is None or self._process.returncode is not None:
                raise ProcessEnded(
                    f"the {self._what} ended before it was ready; its log is {self._log_file}:\n{self.tail(15)}"
                )
            await asyncio.sleep(poll_s)

    async def stop(self) -> int | None:
        """Ask the process to drain, and wait for its end. Returns its exit status; None if it never started."""
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

    @property
    def log_file(self) -> Path:
        """File of its log."""
        return self._log_file

    def tail(self, lines: int) -> str:
        """The last lines of its log."""
        with self._log_file.open(errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()
