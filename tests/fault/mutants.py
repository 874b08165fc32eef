"""`python -m tests.fault.mutants`: every guard taken out, one at a time; the harness must notice each within a minute.

The same scenarios are run with every guard in place first: they must pass, or what fails without a guard says nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.fault import mutations
from tests.fault.harness import Harness, harness_on, left_over, warm_launcher
from tests.fault.history import History, collect
from tests.fault.judge import Violation, innocent_dead, judge
from tests.fault.launcher import Launcher
from tests.fault.mutations import MUTATIONS, PATIENT, Mutation
from tests.fault.redis_faults import server_binary
from tests.fault.scenarios import SCENARIOS, Scenario
from tests.fault.stage import Stage
from tests.long.others import Others
from tests.long.parts import WHOLE, part, share
from tests.shifted_clock import no_shifting
from tests.waiting import eventually

MOST_S = 60.0
LEAVE_S = 5.0


@dataclass(frozen=True)
class Seen:
    """The harness's complaints about a scenario; empty if it passed."""

    said: tuple[str, ...]
    seconds: float
    folder: Path

    @property
    def failed(self) -> bool:
        return bool(self.said)

    def reason(self, mutation: Mutation) -> str:
        """The first complaint of the kind that the mutation is expected to cause; empty if there is none."""
        return next((line for line in self.said if mutation.expected in line), "")


async def play(name: str, mutation: str, launcher: Launcher, mark: str, binary: Path | None) -> Seen:
    """A scenario with a guard out, or with all in place."""
    began, scenario = time.monotonic(), SCENARIOS[name]
    async with harness_on(binary, scenario.setup, launcher, mark) as harness:
        complaint, history = "", History()
        try:
            async with asyncio.timeout(MOST_S):
                complaint = await _acted(scenario, Stage(harness, mutation))
                history = await _ended(harness, scenario, complaint)
        except TimeoutError:
            complaint = f"not over within {MOST_S:g} s"
        folder = harness.folder
        said = [complaint] if complaint else []
        said += [_line(violation) for violation in judge(history).violations]
        if len(dead := innocent_dead(history)) > scenario.most_innocent_dead:
            said.append(f"innocent dead: {', '.join(dead)}")
    return Seen(tuple(said), time.monotonic() - began, folder)


async def _acted(scenario: Scenario, stage: Stage) -> str:
    try:
        await scenario.play(stage)
    except (AssertionError, TimeoutError) as error:
        return str(error) or "a worker was not ready in time"
    except Exception as error:  # noqa: BLE001 - a broken scenario is one that fails: the others are still played
        return f"{type(error).__name__}: {error}"
    return ""


async def _ended(harness: Harness, scenario: Scenario, complaint: str) -> History:
    """Everything in order after the play; no waiting where it failed already."""
    settled = bool(complaint) or await harness.settled(scenario.settle_s)
    harness.stuck += await harness.fleet.drain(LEAVE_S)
    await asyncio.sleep(0.3)  # for the collector's last look
    history = await collect(harness)
    if not settled:
        history.problems.append(f"not everything had ended after {scenario.settle_s:g} s")
    await harness.dismiss_producers()
    history.stuck += harness.stuck
    return history


def _line(violation: Violation) -> str:
    return " ".join(part for part in (violation.kind + ":", violation.id, violation.message) if part)


class Runner:
    """Plays scenarios out of one warm process."""

    def __init__(self, launcher: Launcher, mark: str, binary: Path | None, keep: bool) -> None:
        self._launcher, self._mark, self._binary, self._keep = launcher, mark, binary, keep

    async def passes(self, name: str, mutation: str = "", *, again: bool = True) -> bool:
        """True if a scenario passes with every guard in place; prints the outcome.

        On a busy machine a worker may lose a lease of a second, so one that fails there is played once more.
        """
        others = Others()
        seen = await play(name, mutation, self._launcher, self._mark, self._binary)
        print(f"{'FAILS ' if seen.failed else 'passes'}  {name:<32} {seen.seconds:5.1f} s", flush=True)
        for line in seen.said:
            print(f"        {line}", flush=True)
        self._tidy(seen, seen.failed)
        if seen.failed and again and (noise := others.noise()):
            print(f"        {noise}: once more", flush=True)
            return await self.passes(name, mutation, again=False)
        return not seen.failed

    async def catches(self, mutation: Mutation) -> Seen:
        """Returns the harness's complaints about a run without a guard."""
        seen = await play(mutation.scenario, mutation.name, self._launcher, self._mark, self._binary)
        said = seen.reason(mutation)
        print(f"{'caught' if said else 'MISSED'}  {mutation.name:<24} {seen.seconds:5.1f} s  {said}", flush=True)
        for line in () if said else seen.said:
            print(f"        not what was expected: {line}", flush=True)
        self._tidy(seen, not said)
        return seen

    def _tidy(self, seen: Seen, bad: bool) -> None:
        if self._keep or bad:
            print(f"        logs: {seen.folder}", flush=True)
        else:
            shutil.rmtree(seen.folder, ignore_errors=True)


async def run(chosen: list[Mutation], binary: Path | None, keep: bool) -> tuple[list[tuple[Mutation, Seen]], list[str]]:
    """All scenarios with every guard, then each mutation; what was seen, and the scenarios that fail by themselves."""
    mark = uuid.uuid4().hex
    async with warm_launcher(mark, "simulated", Path()) as launcher:
        runner = Runner(launcher, mark, binary, keep)
        failing = [
            name
            for name in dict.fromkeys(mutation.scenario for mutation in chosen)
            if not await runner.passes(name, PATIENT.name if name == PATIENT.scenario else "")
        ]
        seen = [(mutation, await runner.catches(mutation)) for mutation in chosen]
    with contextlib.suppress(AssertionError):
        await eventually(lambda: not left_over(mark), 5)
    return seen, failing + [f"left over: {process}" for process in left_over(mark)]


def table(seen: list[tuple[Mutation, Seen]]) -> Table:
    shown = Table("guard", "mutation", "caught", "s", "what the harness said", title="guards taken out")
    for mutation, what in seen:
        said = what.reason(mutation)
        shown.add_row(mutation.guard, mutation.how, "yes" if said else "NO", f"{what.seconds:.0f}", said[:160])
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations to try (default: all)")
    parser.add_argument("--part", type=part, default=WHOLE, metavar="I/N", help="only one of N parts of them")
    parser.add_argument("--list", action="store_true", help="list guards and mutations, and stop")
    parser.add_argument("--server", default="", help="6.2, 7.0, 8.2, valkey (default: the newest Redis)")
    parser.add_argument("--keep", action="store_true", help="keep all logs")
    args = parser.parse_args()
    if unknown := set(args.names) - set(mutations.BY_NAME):
        parser.error(f"no mutation is called {', '.join(unknown)}; there are {', '.join(mutations.BY_NAME)}")
    chosen = share([mutation for mutation in MUTATIONS if not args.names or mutation.name in args.names], args.part)
    if gone := [(mutation.name, text) for mutation in chosen for text in mutation.missing()]:
        for name, text in gone:
            print(f"{name}: no script has this any more: change the mutation along with the guard\n  {text}")
        return 1
    if (reason := no_shifting()) is not None:
        left_out = [mutation.name for mutation in chosen if SCENARIOS[mutation.scenario].shifts_clock]
        chosen = [mutation for mutation in chosen if mutation.name not in left_out]
        print(f"left out: {', '.join(left_out)}: {reason}")
    if args.list:
        for mutation in chosen:
            print(f"{mutation.name:<24} {mutation.guard}\n{'':<24} {mutation.how}; scenario {mutation.scenario}")
        return 0
    seen, failing = asyncio.run(run(chosen, server_binary(args.server), args.keep))
    Console(width=200).print(table(seen))
    caught = sum(bool(what.reason(mutation)) for mutation, what in seen)
    if failing:
        print(f"fails with every guard in place: {', '.join(failing)}")
    slow = [mutation.name for mutation, what in seen if what.seconds > MOST_S + LEAVE_S + 20]
    print(f"mutants={len(seen)} caught={caught} unmutated_failing={len(failing)} slow={len(slow)}")
    return 0 if caught == len(seen) and not failing else 1


if __name__ == "__main__":
    sys.exit(main())
