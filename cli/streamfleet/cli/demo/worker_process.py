"""The demo's worker: the real one, as a separate process, ended by its id."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

from rich.console import Console

from streamfleet.cli.demo.model import MODEL_NAME
from streamfleet.cli.demo.server import with_parent
from streamfleet.common.errors import StreamfleetError
from streamfleet.operator.broker import OperatorBroker

STOP_TIMEOUT_S, POLL_S = 60.0, 0.25
PLAIN_PROGRESS_S = 10.0
ENGINE_ARGS = ("--max-num-seqs", "4", "--max-model-len", "2048", "--served-model-name", MODEL_NAME)
# These may be set for another program, and would change the demo.
_FOREIGN = ("BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS", "REDIS_URL_FILE")


class ProcessEnded(StreamfleetError):
    """The worker ended too early; the message holds the last lines of its log."""


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


class WorkerProcess:
    """`streamfleet worker` on a queue in the background, with its log in a file. It ends with this process.

    Args:
        redis_url, queue: the queue to work on.
        log_file: file for its log.
        model: the model's folder.
    """

    def __init__(self, redis_url: str, queue: str, log_file: Path, model: Path) -> None:
        worker = ["worker", "--queue", queue, "--model", str(model), "--", *ENGINE_ARGS]
        self._command = with_parent([sys.executable, "-m", "streamfleet.cli", *worker])
        self._environment = environment(redis_url, health_port="0", log_format="console")
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

    async def until_ready(self, broker: OperatorBroker, screen: Console, step: str) -> None:
        """Wait until the engine is loaded, and show the elapsed time meanwhile.

        Raises:
            ProcessEnded: the worker ended first.
        """
        started = said = time.monotonic()
        with screen.status(f"[bold]{step}[/] Worker is starting") as status:
            while not any(worker["state"] == "ready" for worker in (await broker.workers()).values()):
                if self._process is None or self._process.returncode is not None:
                    log = f"its log is {self._log_file}:\n{self._tail(15)}"
                    raise ProcessEnded(f"the worker ended before it was ready; {log}")
                now = time.monotonic()
                text = f"Worker is loading its engine ({now - started:.0f} s; log: {self._log_file})"
                status.update(f"[bold]{step}[/] {text}")
                if not screen.is_terminal and now - said >= PLAIN_PROGRESS_S:
                    said = now
                    screen.print(f"    {text}", soft_wrap=True, highlight=False)
                await asyncio.sleep(POLL_S)
        screen.print(f"[bold]{step}[/] Worker is ready after {time.monotonic() - started:.0f} s")

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

    def _tail(self, lines: int) -> str:
        """The last lines of its log."""
        with self._log_file.open(errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()
