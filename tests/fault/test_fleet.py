"""The fleet of a fault run, with a launcher that takes its time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fault.fleet import Fleet
from tests.fault.journal import Journal
from tests.fault.plan import Setup
from tests.passwords import Passwords


class _SlowLauncher:
    """Forks once it is allowed to; what it has forked ends at SIGTERM."""

    def __init__(self) -> None:
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()
        self._ended: dict[int, Callable[[int], None]] = {}

    async def start(self, spec: dict[str, Any], ended: Callable[[int], None]) -> int:
        assert spec["role"] == "worker"
        self.asked.set()
        await self.allowed.wait()
        self._ended[7] = ended
        return 7

    async def signal(self, pid: int, signum: signal.Signals) -> bool:
        if signum is signal.SIGTERM and pid in self._ended:
            self._ended.pop(pid)(0)
            return True
        return pid in self._ended


async def test_who_is_forked_while_the_fleet_drains_leaves_too(tmp_path: Path) -> None:
    launcher = _SlowLauncher()
    fleet = Fleet(launcher, Setup(workers=1), tmp_path, 1, Journal(tmp_path / "events.jsonl"), Passwords(tmp_path))
    await fleet.open()
    fleet.supervise()
    async with asyncio.timeout(10):
        await launcher.asked.wait()
        draining = asyncio.create_task(fleet.drain())
        await asyncio.sleep(0)
        launcher.allowed.set()
        assert await draining == []
    await fleet.close()
