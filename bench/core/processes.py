"""Processes that a measurement starts, workers among them: keeps their output for error messages, and ends all."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import redis

from bench.core.reports import ROOT
from streamfleet.worker.engine.engine_thread import descendants, end_all

START_S = 300.0  # a real engine on a busy machine
STOP_S = 60.0
OF_STREAMFLEET = ("STREAMFLEET_", "BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS", "VLLM_URL")
"""Beginnings of the names of settings: what a shell holds must not get into a measurement."""
LOOK_AGAIN_S = 0.1


class Child:
    """A Python process that answers lines, or is only started and ended."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes]) -> None:
        self._process, self._log = process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

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
            self.check(late=time.monotonic() > give_up)
            time.sleep(LOOK_AGAIN_S)

    def check(self, *, late: bool = False) -> None:
        """Raise RuntimeError if it has ended, or is `late`; the message has the end of its output."""
        if late or not self.running:
            raise RuntimeError(self._failed())

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


@contextmanager
def workers(
    redis_url: str,
    count: int = 1,
    *,
    module: str = "streamfleet.worker",
    environment: Mapping[str, object] | None = None,
    each: int = 1,
) -> Iterator[list[Child]]:
    """Start so many processes of workers, wait until all are ready, and drain them at the end.

    Args:
        redis_url: their Redis.
        count: number of processes.
        module: module to run: ``bench.core.noop_worker`` for an engine that does nothing.
        environment: settings, by the full names of their variables.
        each: workers of a process.

    Raises:
        RuntimeError: one did not become ready; the message has its output.
    """
    settings = {"REDIS_URL": redis_url, "STREAMFLEET_HEALTH_PORT": 0, "STREAMFLEET_LOG_LEVEL": "warning"}
    given = variables({**settings, **(environment or {})})
    with ExitStack() as stack, redis.Redis.from_url(redis_url) as client:
        running = [stack.enter_context(started(["-m", module], talks=False, environment=given)) for _ in range(count)]

        def ready() -> bool:
            for child in running:
                child.check()
            described: Any = client.hvals("{default}:workers")
            return sum(b'"state":"ready"' in value.replace(b" ", b"") for value in described) >= count * each

        running[0].wait_until(ready)
        yield running


@contextmanager
def fleet(
    redis_url: str, count: int, per_process: int, environment: Mapping[str, object] | None = None
) -> Iterator[list[Child]]:
    """Start so many workers, evenly in processes of `bench.core.fleet`, of at most `per_process` each; as `workers`."""
    number = -(-count // per_process)
    given = {"BENCH_FLEET_WORKERS": count // number, **(environment or {})}
    with workers(redis_url, number, module="bench.core.fleet", environment=given, each=count // number) as running:
        yield running


def variables(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment, with these settings of streamfleet alone."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_STREAMFLEET)}
    return {**inherited, **{name: str(value) for name, value in settings.items()}}


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, user and system, all threads."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): Python asks for those of threads only


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
