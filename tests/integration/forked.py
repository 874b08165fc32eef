"""Processes of streamfleet that are forked from one that has imported everything: see `tests.fault.zygote`.

A start from nothing costs more than a second of CPU, a fork some milliseconds.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.constants import Constants, set_constants

IMPORTED = (
    "streamfleet.worker.main",
    "streamfleet.cli.main",
    "streamfleet.cli.gateway_command",
    "streamfleet.operator.exporter.endpoint",
    "streamfleet.gateway.server",
    "tests.integration.forked",
)


def run(spec: dict[str, Any]) -> int:
    """Be `python -m` with this module and these arguments, in the forked process."""
    os.chdir(spec["folder"])
    os.environ.clear()
    os.environ.update(spec["environment"])
    sys.argv = list(spec["command"])
    set_constants(spec["constants"])
    sys.modules.pop(f"{sys.argv[0]}.__main__", None)  # else runpy warns
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


class ForkedProcess:
    """One process, with those operations of `subprocess.Popen` that tests use.

    Args:
        command: the module to run, and its arguments.
        environment: all its variables.
        log: gets what it prints; emptied before.
        constants: values of its constants in place of their own.
        folder: where it runs; this process's own otherwise.
        files: `stdin`, and `stderr` where that is not to go into the log.
    """

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        log: Path,
        constants: Constants | None = None,
        folder: Path | None = None,
        **files: Path,
    ) -> None:
        log.write_bytes(b"")
        spec = {"role": "module", "command": command, "environment": dict(environment), "log": str(log.absolute())}
        spec |= {name: str(path.absolute()) for name, path in files.items()}
        spec |= {"constants": dict(constants or {}), "folder": str((folder or Path()).absolute())}
        self._zygote = _zygote()
        self.pid: int = self._zygote.ask(do="start", spec=spec)["pid"]

    def poll(self) -> int | None:
        """Returns the exit status, negative for a signal; None while it runs."""
        return self._zygote.ended(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self._zygote.ended(self.pid, 0.05)) is None:
            if give_up is not None and time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._zygote.ask(do="signal", pid=self.pid, signal=int(signum))

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Zygote:
    """The side of the tests; blocking, for any thread."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
        command = [sys.executable, "-m", "tests.fault.zygote", *IMPORTED]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        atexit.register(self._end)
        self._numbers = itertools.count()
        self._codes: dict[int, int] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._unread = b""
        self._lock = threading.Lock()

    def ask(self, **order: Any) -> dict[str, Any]:
        """Returns the answer to an order."""
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            self._process.stdin.write((json.dumps({"n": number, **order}) + "\n").encode())
            self._process.stdin.flush()
            while number not in self._answers:
                self._read(None)
            return self._answers.pop(number)

    def ended(self, pid: int, within_s: float) -> int | None:
        """Returns the exit status of a process; None where it still runs after so many seconds."""
        with self._lock:
            if pid not in self._codes:
                self._read(within_s)
            return self._codes.get(pid)

    def _read(self, within_s: float | None) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], within_s)[0]:
            return
        data = os.read(descriptor, 1 << 16)
        assert data, f"the zygote has ended with {self._process.wait(5)}"
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "ended" in told:
                self._codes[told["ended"]] = told["code"]
            elif "n" in told:
                self._answers[told["n"]] = told
                if "pid" in told:  # the id may have been another's before
                    self._codes.pop(told["pid"], None)

    def _end(self) -> None:
        """Its end takes along whatever it forked."""
        self._process.kill()
        self._process.wait()


@cache
def _zygote() -> _Zygote:
    return _Zygote()
