"""Processes of two releases in one run: a zygote out of each, and who is started by which."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fault.launcher import Ended, ZygoteLauncher
from tests.upgrade.kept import REPOSITORY

OLD = ("w0.", "w1.", "w2.", "producer-0")
"""Names of processes of the old release begin so; all others are today's."""


@dataclass(frozen=True)
class Code:
    """Code of a release's processes: files of its modules, hashes of its scripts and names of its functions by verb."""

    files: tuple[Path, ...]
    shas: dict[str, str]
    functions: dict[str, str]


class ReleaseLauncher(ZygoteLauncher):
    """Forks out of a process that has imported one release.

    Args:
        root: the release's folder; None for the installed one, today's.
        marks: as of its base.
    """

    def __init__(self, root: Path | None, marks: dict[str, str]) -> None:
        super().__init__(marks)
        self._root = root
        self.code = Code((), {}, {})

    async def __aenter__(self) -> ReleaseLauncher:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMFLEET_")}
        environment.pop("PYTHONPATH", None)
        if self._root is not None:
            environment["PYTHONPATH"] = str(self._root)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.upgrade.zygote",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
            env={**environment, **self._marks},
            start_new_session=True,
        )
        lines = self._process.stdout
        if lines is None or not (said := await lines.readline()) or not await lines.readline():
            raise RuntimeError("a release's zygote did not start: see above")
        code = json.loads(said)
        self.code = Code(tuple(map(Path, code["files"])), code["shas"], code["functions"])
        self._reader = asyncio.create_task(self._read(lines))
        return self


class SideBySide:
    """Starts each process out of the release that its name says."""

    def __init__(self, old: ReleaseLauncher, today: ReleaseLauncher) -> None:
        self.old, self.today = old, today
        self._starter: dict[int, ReleaseLauncher] = {}

    async def start(self, spec: dict[str, Any], ended: Ended) -> int:
        launcher = self.old if str(spec["name"]).startswith(OLD) else self.today
        pid = await launcher.start(spec, ended)
        self._starter[pid] = launcher
        return pid

    async def signal(self, pid: int, signum: signal.Signals) -> bool:
        return await self._starter[pid].signal(pid, signum)


@contextlib.asynccontextmanager
async def side_by_side(old: Path, today: Path | None, marks: dict[str, str]) -> AsyncIterator[SideBySide]:
    """Both, until the end of the context.

    Args:
        old: folder of the old release.
        today: folder of the other; None for the installed one.
        marks: environment variables of all processes.
    """
    both = ReleaseLauncher(old, marks), ReleaseLauncher(today, marks)
    async with contextlib.AsyncExitStack() as stack:
        for launcher in both:
            stack.push_async_exit(launcher)
        await asyncio.gather(*(launcher.__aenter__() for launcher in both))
        yield SideBySide(*both)
