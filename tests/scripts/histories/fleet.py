"""Runs histories on the real scripts and a real server, comparing everything after every step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.scripts.histories.faults import Faults
from tests.scripts.histories.finishing import Finishing
from tests.scripts.histories.producing import Producing
from tests.scripts.histories.pulling import Pulling
from tests.scripts.histories.state import Worker
from tests.scripts.histories.steps import ON_A_FULL_SERVER, Step


class Fleet(Producing, Pulling, Finishing, Faults):
    """Runs steps, keeps the model, and compares after each."""

    async def run(self, steps: Sequence[Step]) -> None:
        """Raises AssertionError as soon as something is not as it must be."""
        self.dump = await self.queue.dump()
        for step in steps:
            await self.step(step)

    async def step(self, step: Step) -> None:
        verb: Callable[[Step], Coroutine[Any, Any, None]] = getattr(self, f"_{step.verb}")
        self.full = step.z % 9 == 0 and step.verb in ON_A_FULL_SERVER
        if self.full:
            async with self.queue.full_memory():
                await verb(step)
        else:
            await verb(step)
        await self.check()

    async def drain(self) -> None:
        """The faults stop; whatever is still there ends, and nothing of it stays."""
        last = Worker("last")
        self.workers = [last]
        self.dead_watches = {"all others": self.now + 10**9}
        for _ in range(60):
            if not any(key.startswith(("delayed", "tries", "lane:", "ready:")) for key in self.dump):
                return
            await self._drain_once(last)
            await self.check()
        raise AssertionError(f"these never ended: {self.model.places}, and there is {self.dump.keys()}")

    async def _drain_once(self, last: Worker) -> None:
        await self._clock(Step("clock", 3, 0, 1))
        self.aged = set(self.model.places)
        await self.queue.command("HDEL", self.queue.keys.clock, "reclaimed")  # all leases expire at once
        await self._reclaim_older(0)
        await self._promote(Step("promote", 0, 0, 0))
        last.state = "awake"
        await self._pull(last, Step("act", 0, 0, 0))
        await self._finish("last", last.leases, Step("complete", 0, 0, 0))
        last.leases = []
