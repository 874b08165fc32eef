"""Runs a plan: producers, faults as progress comes, an end in order, a verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fault.faults import Striker
from tests.fault.harness import Harness
from tests.fault.history import History, collect
from tests.fault.judge import Verdict, judge
from tests.fault.plan import Fault, Plan
from tests.waiting import eventually

Say = Callable[[int, int, int, str], None]
"""Told how far a run is: ended requests, faults, started workers, what is going on."""


@dataclass
class Ran:
    """A run that is over."""

    verdict: Verdict
    history: History
    struck: dict[tuple[str, str], int] = field(default_factory=dict)
    missed: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: float = 0.0


async def run_plan(harness: Harness, plan: Plan, say: Say) -> Ran:
    """From the first worker to the verdict."""
    began = time.monotonic()
    harness.fleet.supervise()
    await harness.fleet.all_ready()
    for steps in plan.producers:
        await harness.produce(steps)
    striker = Striker(harness)
    await _strike_all(harness, plan, striker, say)
    say(harness.collector.ended, len(plan.faults), harness.fleet.started, "waiting for the last requests")
    settled = await harness.settled(plan.setup.settle_s)
    await harness.leave()
    history = await collect(harness)
    if not settled:
        history.problems.append(f"not everything had ended {plan.setup.settle_s:g} s after the last fault")
    await harness.dismiss_producers()
    history.stuck += harness.stuck
    return Ran(judge(history), history, dict(striker.struck), dict(striker.missed), time.monotonic() - began)


async def _strike_all(harness: Harness, plan: Plan, striker: Striker, say: Say) -> None:
    running: set[asyncio.Task[None]] = set()
    # Twice the time that progress should take: then something holds it up, perhaps what the next fault ends.
    patience = Patience(2 * plan.seconds / max(1, plan.requests), 5.0)
    for number, fault in enumerate(plan.faults):
        await _reached(harness, fault, patience)
        say(harness.collector.ended, number + 1, harness.fleet.started, fault.kind)
        harness.journal.write("plan", number=number, ended=harness.collector.ended, fault=fault.line())
        task = asyncio.create_task(striker.strike(fault))
        running.add(task)
        task.add_done_callback(running.discard)
    while running:
        done, _ = await asyncio.wait(set(running), timeout=1.0)
        say(harness.collector.ended, len(plan.faults), harness.fleet.started, "last faults")
        for task in done:
            task.result()
    await striker.finish()


class Patience:
    """Time limit, after which a fault strikes although the run has not progressed so far."""

    def __init__(self, seconds_each: float, least_s: float) -> None:
        self._each, self._least = seconds_each, least_s
        self._at, self._since = 0, time.monotonic()

    def over(self, fault: Fault) -> bool:
        waited = time.monotonic() - self._since
        return waited > self._least + self._each * max(0, fault.at - self._at)

    def struck(self, fault: Fault) -> None:
        self._at, self._since = fault.at, time.monotonic()


async def _reached(harness: Harness, fault: Fault, patience: Patience) -> None:
    await eventually(lambda: harness.collector.ended >= fault.at or patience.over(fault), 3_600)
    patience.struck(fault)
