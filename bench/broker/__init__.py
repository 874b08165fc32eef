"""streamfleet beside other queues and beside the raw limits of Redis and of its client library, in one run.

Jobs do nothing; payload and result are 500 B. Every figure is taken on an empty Redis of its own, right after raw
redis-py with the same work, so that each ratio compares neighbours in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial

from rich.console import Console

from bench.broker.environments import prepare, versions
from bench.broker.judging import main_table, series, settings_table, targets
from bench.broker.measuring import Measurer
from bench.broker.sizes import FULL_SIZES, QUICK_SIZES
from bench.broker.systems import choose
from bench.core import machine
from bench.core.redis import own_server
from bench.core.reports import Report
from bench.core.rounds import Sample, interleave
from tests.support.redis_server import find_servers


def run(quick: bool, rounds: int | None = None, only: Sequence[str] = (), server: str = "") -> Report:
    """Run the measurement.

    Args:
        quick: small sizes.
        rounds: number of rounds instead of the size's own.
        only: names of systems; all if empty.
        server: release of Redis such as ``redis-7.0``; the newest found if empty.

    Raises:
        ValueError: a name of a system or a server is unknown.
    """
    console = Console(stderr=True)
    sizes = QUICK_SIZES if quick else FULL_SIZES
    sizes = replace(sizes, rounds=rounds or sizes.rounds)
    systems = choose(only)
    if server and server not in (found := find_servers()):
        raise ValueError(f"no Redis is called {server}; found: {', '.join(found) or 'none'}")
    with own_server(server) as started:
        release = f"{started.label} ({started.version})"
    reasons = prepare(systems, console)
    measurer = Measurer(sizes, server, console)
    there = [system for system in systems if system.name not in reasons]
    measures: dict[str, Callable[[], Sample]] = {each.name: partial(measurer.sample, each) for each in there}
    samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
    samples |= interleave(measures, sizes.rounds, title="broker: round")
    failures = {name: {"enqueue": [reason], "drain": [reason]} for name, reason in reasons.items()} | measurer.failures
    known = {system.name: versions(system) if system.name not in reasons else {} for system in systems}
    report = Report("broker", datetime.now(UTC).date().isoformat(), machine.describe(), {})
    report.settings = {"quick": quick, "redis": release, **asdict(sizes), "payload_bytes": 500, "result_bytes": 500}
    report.tables = [main_table(systems, samples, failures), settings_table(systems, known)]
    report.targets = targets(systems, samples)
    report.data = {"systems": series(systems, samples), "samples": samples}
    return report
