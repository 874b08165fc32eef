"""The harness's side of the zygote: start real processes cheaply, signal them, hear of their ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Ended = Callable[[int], None]


class Launcher(Protocol):
    """Starts the processes of a run."""

    async def start(self, spec: dict[str, Any], ended: Ended) -> int:
        """Start one; its pid. `ended` is called with its exit status, negative for a signal."""
        ...

    async def signal(self, pid: int, signum: signal.Signals) -> bool:
        """Send a signal; False when the process had ended."""
        ...


class ZygoteLauncher:
    """Forks out of one warm process. An asynchronous context manager.

    Args:
        marks: environment variables of all processes, so that any that is left over can be told.
        modules: imported beside what workers and producers need.
    """

    def __init__(self, marks: dict[str, str], *modules: str) -> None:
        self._marks, self._modules = marks, modules
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ended: dict[int, Ended] = {}
        self._early: dict[int, int] = {}
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ZygoteLauncher:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.fault.zygote",
            *self._modules,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**environment, **self._marks},
            start_new_session=True,
        )
        if self._process.stdout is None or not await self._process.stdout.readline():
            raise RuntimeError("the zygote did not start: see above")
        self._reader = asyncio.create_task(self._read(self._process.stdout))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Its death takes along whatever it started."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def start(self, spec: dict[str, Any], ended: Ended) -> int:
        answer = await self._ask(do="start", spec=spec)
        pid = int(answer["pid"])
        if pid in self._early:
            ended(self._early.pop(pid))
        else:
            self._ended[pid] = ended
        return pid

    async def signal(self, pid: int, signum: signal.Signals) -> bool:
        return bool((await self._ask(do="signal", pid=pid, signal=int(signum)))["alive"])

    async def _ask(self, **order: Any) -> dict[str, Any]:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the launcher is not open")
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write((json.dumps({"n": number, **order}) + "\n").encode())
        told: dict[str, Any] = await answer
        return told

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            told = json.loads(line)
            if "n" in told:
                answer = self._answers.pop(told["n"])
                if not answer.done():  # who asked may have been cancelled meanwhile
                    answer.set_result(told)
            elif told["ended"] in self._ended:
                self._ended.pop(told["ended"])(told["code"])
            else:
                self._early[told["ended"]] = told["code"]
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RuntimeError("the zygote has ended"))


class PlainLauncher:
    """Starts each process by its command: for engines that start processes of their own and cannot be forked."""

    def __init__(self, folder: Path, marks: dict[str, str]) -> None:
        self._folder, self._marks = folder, marks
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

    async def start(self, spec: dict[str, Any], ended: Ended) -> int:
        path = self._folder / f"spec-{next(self._numbers)}.json"
        path.write_text(json.dumps(spec))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
        with Path(spec["log"]).open("ab") as log:  # noqa: ASYNC230 - a local file, opened once
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"tests.fault.{spec['role']}_process",
                str(path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **self._marks},
                start_new_session=True,
            )
        self._processes[process.pid] = process
        waiting = asyncio.create_task(self._wait(process, ended))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return process.pid

    async def signal(self, pid: int, signum: signal.Signals) -> bool:
        process = self._processes.get(pid)
        if process is None or process.returncode is not None:
            return False
        process.send_signal(signum)
        return True

    async def close(self) -> None:
        """Kill what still runs."""
        for process in list(self._processes.values()):
            if process.returncode is None:
                process.kill()
        if self._waiting:
            await asyncio.wait(self._waiting)

    async def _wait(self, process: asyncio.subprocess.Process, ended: Ended) -> None:
        code = await process.wait()
        self._processes.pop(process.pid, None)
        ended(code)
