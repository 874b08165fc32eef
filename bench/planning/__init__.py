"""Accuracy of `streamfleet plan` for runs that it has not seen.

A worker is measured as users do it, by requests through its queue; the plan never sees the real profile of the
simulated
engine. From the measurement it predicts several loads, which are then run: real Redis, real worker processes. The same
with real vLLM, at a smaller size: ``--engine vllm``. If one engine is measured, the other's part of the report stays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from bench.core.machine import describe
from bench.core.reports import Report, Table, Target
from bench.core.reports import load as load_report
from bench.planning import judging
from bench.planning.loads import SEED, VLLM_SLOTS, Load, Sizes, other_runs, sizes_of
from bench.planning.running import Environment, measured, observed
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.figures import Figures, figures
from streamfleet.operator.plan.measure import MeasureOptions
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.operator.plan.simulate import Fleet, Simulation
from streamfleet.operator.plan.size import NoFleet, busy_workers, evaluator, smallest

ENGINES = ("simulated", "vllm")
MOST_WORKERS = 8


class Say:
    """Prints the present step, in a few words, on the terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, words: str) -> None:
        self._progress.update(self._task, description=words)


def run(quick: bool, engine: str, earlier: Path, seconds: float | None = None) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        engine: one of `ENGINES`.
        earlier: earlier report, whose parts of other engines stay; it may be missing.
        seconds: length of each load, instead of the size's own.
    """
    sizes = sizes_of(engine, quick)
    sizes = replace(sizes, seconds=seconds or sizes.seconds)
    busy = round(os.getloadavg()[0], 1)  # other work on this machine adds to the error
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        say = Say(progress, progress.add_task("planning", total=None))
        say("measuring a profile")
        environment = environment_of(engine, sizes)
        options = MeasureOptions(sizes.prompt_tokens, sizes.output_tokens, sizes.up_to, sizes.rounds)
        profile = measured(environment, options)
        compared = [_compare(profile, environment, each, sizes, say) for each in sizes.loads]
        targets = judging.targets(engine, compared)
        if sizes.sized is not None:
            targets.append(_try_answer(engine, profile, environment, sizes.sized, sizes, say))
    report = Report("planning", datetime.now(UTC).date().isoformat(), describe(), {"quick": quick})
    part = {"profile": profile.to_json(), "loads": [each.series() for each in compared]}
    settings = {
        "speed": sizes.speed,
        "seconds of a load": sizes.seconds,
        "rounds of waves": sizes.rounds,
        "load average before": busy,
    }
    add_part(report, engine, settings, judging.tables(engine, compared, profile), targets, part)
    keep_other(report, engine, earlier)
    return report


def environment_of(engine: str, sizes: Sizes) -> Environment:
    """Returns the settings of a worker."""
    if engine == "vllm":
        from bench.engine.setup import engine_setup

        return engine_setup("--max-num-seqs", str(VLLM_SLOTS)).worker_environment()
    return {
        "STREAMFLEET_ENGINE": "simulated",
        "STREAMFLEET_SIMULATED_PROFILE": "smollm2-cpu",
        "STREAMFLEET_SIMULATED_SPEED": sizes.speed,
    }


def predicted(profile: EngineProfile, workers: int, runs: Sequence[Sequence[Arrival]]) -> Figures:
    """Figures predicted for the runs on so many workers."""
    found = [Simulation(Fleet(profile, workers), arrivals).run() for arrivals in runs]
    return figures(workers, profile.engine.slots, found)


def add_part(report: Report, engine: str, settings: Any, tables: list[Table], targets: list[Target], data: Any) -> None:
    """Add an engine's part to the report."""
    report.settings = {**report.settings, judging.NAMES[engine]: settings}
    report.tables += tables
    report.targets += targets
    report.data[engine] = data


def keep_other(report: Report, engine: str, earlier: Path) -> None:
    """Copy an earlier report's parts of other engines."""
    if not earlier.is_file():
        return
    before = load_report(earlier)
    for other in ENGINES:
        name = judging.NAMES[other]
        if other != engine and other in before.data:
            add_part(
                report,
                other,
                before.settings.get(name, {}),
                [table for table in before.tables if f"{name}:" in table.title],
                [target for target in before.targets if target.name.startswith(f"{name}:")],
                before.data[other],
            )


def _compare(profile: EngineProfile, environment: Environment, load: Load, sizes: Sizes, say: Say) -> judging.Compared:
    arrivals = load.arrivals(SEED, sizes.seconds)
    followed = predicted(profile, load.workers, [arrivals])
    fleet = Fleet(profile, load.workers)
    others = [Simulation(fleet, other).run() for other in other_runs(load, sizes.seconds)]
    blind, *each = (figures(load.workers, profile.engine.slots, runs) for runs in (others, *([run] for run in others)))
    say(f"{load.name}: {len(arrivals)} requests on {load.workers} workers, {sizes.seconds:g} s")
    seen, late_s = observed(environment, load.workers, arrivals)
    blind_p99_s = [found.total_p99_s for found in each]
    return judging.Compared(load.name, load.workers, followed, blind, blind_p99_s, seen, late_s)


def _try_answer(
    engine: str, profile: EngineProfile, environment: Environment, load: Load, sizes: Sizes, say: Say
) -> Target:
    """Ask the plan for a fleet, given only the traffic, and run this fleet and one with one worker fewer."""
    fleet, runs = Fleet(profile, 1), other_runs(load, sizes.seconds)
    evaluate = evaluator(fleet, runs)
    try:
        workers = smallest(evaluate, sizes.late, busy_workers(fleet, runs), MOST_WORKERS)
    except NoFleet as error:
        return judging.no_answer(engine, sizes.late, str(error))
    tried = []
    for count in (workers, workers - 1):
        if count > 0:
            named = replace(load, workers=count)
            say(f"{named.name}: {count} workers, {sizes.seconds:g} s")
            tried.append(observed(environment, count, named.arrivals(SEED, sizes.seconds))[0])
    return judging.answer_target(engine, workers, sizes.late, tried[0], tried[1] if len(tried) > 1 else None)
