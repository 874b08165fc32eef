"""A rolling upgrade and the way back, under load: workers and clients of two releases on one real Redis, then judged.

The judge is the fault harness's: every accepted request has one result, everybody was told once, attempts were counted
across the releases, and nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from redis.exceptions import ResponseError

from streamfleet.common.protocol import LANES
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.repair import Inspection
from streamfleet.operator.snapshot import read_workers
from tests.fault.fleet import Member
from tests.fault.harness import MARK, Harness, harness_on
from tests.fault.history import History, collect
from tests.fault.judge import Violation, judge
from tests.fault.plan import Setup
from tests.fault.stage import Stage
from tests.upgrade.launchers import Code, side_by_side
from tests.upgrade.load import BUSY, steps
from tests.waiting import eventually

SETUP = Setup(workers=6, lease_ms=1_500, drain_ms=600, watchdog_s=30.0, batch_size=8)
OLD_SLOTS, NEW_SLOTS = (0, 1, 2), (3, 4, 5)
LOAD_S = 3.5
MOST_S, SETTLE_S = 40.0, 20.0
TIDIED = 9
"""Looks of today's housekeeping at charges and homes of requests that the old release took."""
PROMPT, PROMPT_S = 5, 3.0
"""An idle fleet answers one after the other of so many short requests within so long: far less than the time after
which workers that were not woken look by themselves."""


@dataclass
class Played:
    """A rollout that is over.

    Attributes:
        history: what happened.
        violations: what must not have happened.
        old, today: what the two releases ran.
        ran: verbs of either whose scripts or functions Redis knows at the end.
        workers: the fleet while both were in it, as `streamfleet workers` saw it.
        folder: logs, kept where something is wrong.
    """

    history: History
    violations: list[str]
    old: Code
    today: Code
    ran: dict[str, set[str]] = field(default_factory=dict)
    workers: list[WorkerView] = field(default_factory=list)
    folder: Path = Path()


class Rollout:
    """Hands on a fleet whose workers change."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.stage = harness, Stage(harness, "")
        self.workers: list[WorkerView] = []
        self._asked = 0

    async def come(self, slots: tuple[int, ...]) -> list[Member]:
        """New workers, ready."""
        return list(await asyncio.gather(*(self.stage.worker(slot) for slot in slots)))

    async def load(self, *names: str) -> None:
        """A client for each of these names begins to ask; the first of all is of the old release."""
        for name in names:
            await self.harness.produce(steps(name, LOAD_S))

    async def look(self) -> None:
        """Note who is alive."""
        self.workers = await read_workers(self.harness.broker)

    async def after(self, ended: int) -> None:
        """Wait until so many requests have ended."""
        await eventually(lambda: self.harness.collector.ended >= ended, MOST_S, f"{ended} requests have ended")

    async def stop(self, member: Member) -> None:
        """SIGTERM; it leaves in order."""
        await self.stage.send(member, signal.SIGTERM, "term")
        assert await self.stage.exit_code(member, 10) == 0

    async def drain(self, member: Member) -> None:
        """`streamfleet drain`; it leaves in order."""
        self.stage.striker.mark("term", member.name)
        await self.harness.broker.drain(member.name)
        assert await self.stage.exit_code(member, 10) == 0

    async def kill(self, member: Member) -> None:
        """SIGKILL, with requests in its hands."""

        async def holds() -> bool:
            held = [(await self.harness.broker.running_by_worker(lane)).get(member.name, 0) for lane in LANES]
            return sum(held) > 0

        await eventually(holds, 10, f"{member.name} runs something")
        await self.stage.send(member, signal.SIGKILL, "kill")
        await self.stage.exit_code(member, 10)

    async def prompt(self) -> None:
        """An idle fleet takes what comes at once, whoever of it waits for it."""
        for _ in range(PROMPT):
            self._asked += 1
            name = f"prompt-{self._asked}"
            await self.stage.add(name, 1)
            await self.stage.ended(name, PROMPT_S)


async def upgrade(rollout: Rollout, old: list[Member]) -> list[Member]:
    """Today's workers come, then the old ones go: by SIGKILL, and in order."""
    today = await rollout.come(NEW_SLOTS)
    await rollout.prompt()
    await rollout.load("old", "new")
    await rollout.after(20)
    await rollout.look()
    await rollout.kill(old[0])
    await rollout.after(45)
    await asyncio.gather(*map(rollout.stop, old[1:]))
    return today


async def way_back(rollout: Rollout, today: list[Member]) -> None:
    """The old ones come back, then today's go: by SIGKILL, told to drain, in order."""
    await rollout.come(OLD_SLOTS)
    await rollout.load("later", "last")  # the first load may have ended by now
    await rollout.after(rollout.harness.collector.ended + 15)
    await rollout.kill(today[0])
    await rollout.after(rollout.harness.collector.ended + 15)
    await asyncio.gather(rollout.drain(today[1]), rollout.stop(today[2]))


async def play(old: Path, today: Path | None, binary: Path | None) -> Played:
    """There and back, from the first worker to the verdict.

    Args:
        old: folder of the old release.
        today: folder of the new one; None for the installed one.
        binary: the Redis server; None for the newest.

    Raises:
        AssertionError: something was waited for in vain.
    """
    mark = uuid.uuid4().hex
    async with (
        side_by_side(old, today, {MARK: mark}) as releases,
        harness_on(binary, SETUP, releases, mark) as harness,
    ):
        rollout = Rollout(harness)
        async with asyncio.timeout(MOST_S):
            await way_back(rollout, await upgrade(rollout, await rollout.come(OLD_SLOTS)))
            settled = await harness.settled(SETTLE_S)
            if settled:
                await rollout.prompt()
        played = await _judged(rollout, settled, releases.old.code, releases.today.code)
        await harness.dismiss_producers()
    if not played.violations:
        shutil.rmtree(played.folder)
    return played


async def _judged(rollout: Rollout, settled: bool, old: Code, today: Code) -> Played:
    harness = rollout.harness
    await harness.leave()
    for _ in range(TIDIED):
        await harness.broker.expire()
        await harness.broker.promote()
    history = await collect(harness)
    if not settled:
        history.problems.append(f"not everything had ended {SETTLE_S:g} s after the last move")
    history.problems += (await Inspection(harness.broker, mend=False).run()).problems
    violations = [f"{each.kind}: {each.id} {each.message}" for each in judge(history).violations if not _meant(each)]
    ran = {name: await _known(harness, code) for name, code in (("old", old), ("today", today))}
    return Played(history, violations, old, today, ran, rollout.workers, harness.folder)


def _meant(violation: Violation) -> bool:
    """An engine that turns a request away wastes an attempt, and no fault touched its worker."""
    return violation.kind == "unexplained" and violation.id.startswith(BUSY)


async def _known(harness: Harness, code: Code) -> set[str]:
    verbs = list(code.shas)
    known = await harness.redis.direct.script_exists(*(code.shas[verb] for verb in verbs))
    found = {verb for verb, there in zip(verbs, known, strict=True) if there}
    with contextlib.suppress(ResponseError):  # Redis 6.2 has no functions
        listed = str(await harness.redis.direct.function_list())
        # A worker loads the library, at its first call of a function that it does not find.
        found |= {verb for verb, name in code.functions.items() if name in listed}
    return found
