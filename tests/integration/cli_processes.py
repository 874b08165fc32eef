"""The real command line: commands run to their end, commands that go on, and workers with the simulated engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from streamfleet.cli.main import main
from streamfleet.common import logs
from tests.constants import SPEED
from tests.integration.forked import ForkedProcess
from tests.waiting import eventually_blocking

WITHIN_S = 30.0


def environment(url: str, **more: str) -> dict[str, str]:
    """This process's environment, with the settings of a test in place of its own."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
    return {**outer, "REDIS_URL": url, "STREAMFLEET_HEALTH_PORT": "0", "COLUMNS": "200", **more}


def command(*arguments: str) -> list[str]:
    """`streamfleet` with arguments, for subprocess."""
    return [sys.executable, "-m", "streamfleet.cli", *arguments]


@dataclass(frozen=True)
class Ended:
    """Outcome of a command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def streamfleet(url: str, *arguments: str, **settings: str) -> Ended:
    """Run a command to its end, whatever that is: inside this process, where it starts in no time."""
    outer, inner = dict(os.environ), environment(url, **settings)
    stdout, stderr, arguments_before = StringIO(), StringIO(), sys.argv
    configure, logs.configure = logs.configure, lambda *_: None  # the test's own logging stays as it is
    try:
        os.environ.clear()
        os.environ.update(inner)
        sys.argv = ["streamfleet", *arguments]
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        return Ended(code, stdout.getvalue(), stderr.getvalue())
    finally:
        logs.configure = configure
        sys.argv = arguments_before
        os.environ.clear()
        os.environ.update(outer)


def piped(
    url: str,
    *arguments: str,
    given: bytes = b"",
    cwd: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command to its end in a process of its own, forked, that has no terminal."""
    with TemporaryDirectory() as name:
        stdin, stdout, stderr = (Path(name, each) for each in ("stdin", "stdout", "stderr"))
        stdin.write_bytes(given)
        runs, variables = ["streamfleet.cli", *arguments], environment(url, **(settings or {}))
        process = ForkedProcess(runs, variables, stdout, folder=cwd, stdin=stdin, stderr=stderr)
        try:
            return Ended(process.wait(2 * WITHIN_S), stdout.read_text(), stderr.read_text())
        finally:
            process.kill()


@contextmanager
def worker(
    url: str,
    name: str = "w1",
    settings: Mapping[str, str] | None = None,
    workers: str = "{default}:workers",
    speed: float = 1.0,
) -> Iterator[ForkedProcess]:
    """A real worker with the simulated engine, from ready to drained."""
    runs = ["streamfleet.cli", "worker", "--engine", "simulated", "--name", name]
    process = ForkedProcess(runs, environment(url, **(settings or {})), Path(os.devnull), {SPEED: speed})
    try:
        with redis.Redis.from_url(url) as client:
            eventually_blocking(
                lambda: b'"state":"ready"' in (client.hget(workers, name) or b""), WITHIN_S, "the worker is ready"
            )
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def started(url: str, *arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on by itself; killed at the end should it still run."""
    process = subprocess.Popen(
        command(*arguments),
        env=environment(url),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def lines_of(path: Path) -> int:
    """Whole lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
