"""streamfleet beside other queues and beside the raw limits of Redis and of its client library, in one run.

Jobs do nothing; payload and result are 500 B. Every figure is taken on an empty Redis of its own, right after raw
redis-py with the same work, so that each ratio compares neighbours in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from rich.console import Console

from bench.broker.environments import prepare, versions
from bench.broker.judging import main_table, series, settings_table, targets
from bench.broker.measuring import Measurer
from bench.broker.sizes import FULL_SIZES, QUICK_SIZES
from bench.broker.systems import SYSTEMS
from bench.core.redis import own_server
from bench.core.reports import Report, new_report
from bench.core.rounds import Sample, interleave


def run(quick: bool, only: Sequence[str]) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes.
        only: names of systems.
    """
    console = Console(stderr=True)
    sizes = QUICK_SIZES if quick else FULL_SIZES
    systems = [system for system in SYSTEMS if system.name in only]
    with own_server() as started:
        release = f"{started.label} ({started.version})"
    reasons = prepare(systems, console)
    measurer = Measurer(sizes, console)
    there = [system for system in systems if system.name not in reasons]
    measures: dict[str, Callable[[], Sample]] = {each.name: partial(measurer.sample, each) for each in there}
    samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
    samples |= interleave(measures, sizes.rounds, title="broker: round")
    failures = {name: {"enqueue": [reason], "drain": [reason]} for name, reason in reasons.items()} | measurer.failures
    known = {system.name: versions(system) if system.name not in reasons else {} for system in systems}
    settings = {"quick": quick, "redis": release, **asdict(sizes), "payload_bytes": 500, "result_bytes": 500}
    report = new_report("broker", settings)
    report.tables = [main_table(systems, samples, failures), settings_table(systems, known)]
    report.targets = targets(systems, samples)
    report.data = {"systems": series(systems, samples), "samples": samples}
    return report
