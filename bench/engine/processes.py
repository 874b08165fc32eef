"""Processes that a measurement starts: keeps their output for error messages, and ends all of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from bench.core.reports import ROOT
from streamfleet.worker.engine.engine_thread import descendants, end_all

START_S = 300.0
STOP_S = 30.0
LOOK_AGAIN_S = 0.1


class Child:
    """A Python process that answers lines, or is only started and ended."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes]) -> None:
        self._process, self._log = process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> str:
        """Write a line and read the next one.

        Raises:
            RuntimeError: the process has ended; the message has the end of its output.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("it was started without pipes")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.answer()

    def wait_for(self, word: str) -> None:
        """Wait for a line that holds this word.

        Raises:
            RuntimeError: the process has ended, or printed something else.
        """
        if (said := self.answer()) != word:
            raise RuntimeError(f"a process said {said[:200]!r} in place of {word!r}")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns True.

        Raises:
            RuntimeError: it has ended, or is not ready in time; the message has the end of its output.
        """
        give_up = time.monotonic() + START_S
        while not ready():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(self._failed())
            time.sleep(LOOK_AGAIN_S)

    def answer(self) -> str:
        """Read the next line.

        Raises:
            RuntimeError: the process has ended; the message has the end of its output.
        """
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(self._failed())
        return line.rstrip("\n")

    def _failed(self) -> str:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-4000:]
        return f"{' '.join(map(str, self._process.args))[:200]} failed:\n{said}"  # type: ignore[arg-type]


@contextmanager
def started(words: Sequence[str], *, talks: bool, environment: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Run Python with these words; at the end it is asked to stop, then killed with all processes below it.

    Args:
        words: arguments of `python`.
        talks: true if it answers lines; if not, its output goes to its log.
        environment: the whole environment; None for this process's own.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else log,
            stderr=log,
            text=True,
        )
        try:
            yield Child(process, log)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    below = descendants(process.pid)
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end_all(below, STOP_S)
    if process.stdout is not None:
        process.stdout.close()
