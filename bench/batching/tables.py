"""The tables, targets and series of the report on batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.batching.served_runs import SLOTS, Run
from bench.core.reports import Report, Table, Target
from bench.core.rounds import Sample, middle, ratio

CONTINUOUS, WINDOW = "continuous", "window"
Samples = Mapping[str, Sequence[Sample]]


def add_sizes(report: Report, samples: Samples) -> None:
    """Throughput, latency and occupancy of the engine, by batch size."""
    found = [{"size": int(name), **_middles(each)} for name, each in samples.items()]
    found.sort(key=lambda row: row["size"])
    alone = found[0]["tokens_per_s"]
    rows = [
        {
            "batch size": row["size"],
            "tokens/s": row["tokens_per_s"],
            "to size 1": row["tokens_per_s"] / alone,
            "run p50 ms": row["run_ms_p50"],
            "p99 ms": row["run_ms_p99"],
            "in the engine": row["running"],
            "% of its slots": row["running"] / SLOTS * 100,
            "tokens a step": row["tokens_a_step"],
        }
        for row in found
    ]
    report.tables.append(Table("Batch sizes: continuous batching, answers of one length", list(rows[0]), rows))
    report.data["sizes"] = found


def add_policies(report: Report, samples: Samples, runs: Mapping[str, Sequence[Run]], size: int) -> None:
    """Continuous beside window, with answers of mixed length."""
    found = {name: _middles(each) for name, each in samples.items()}
    rows = [
        {
            "policy": name,
            "tokens/s": row["tokens_per_s"],
            "run p50 ms": row["run_ms_p50"],
            "p99 ms": row["run_ms_p99"],
            "from enqueueing p50 ms": row["total_ms_p50"],
            "p99 ms ": row["total_ms_p99"],
            "in the engine": row["running"],
            f"% of {size}": row["running"] / size * 100,
        }
        for name, row in found.items()
    ]
    report.tables.append(Table(f"Policies: mixed lengths, {size} at once", list(rows[0]), rows))
    gain = ratio(samples[CONTINUOUS], samples[WINDOW], "tokens_per_s")
    report.targets.append(Target("tokens/s of continuous batching, to a window's", gain, 1.0, "at least", "x"))
    report.data["policies"] = {"size": size, "gain": gain, "figures": found, **_series(runs)}


def add_adaptive(report: Report, samples: Samples, runs: Mapping[str, Sequence[Run]], alone_ms: float) -> None:
    """Cost and gain of a target latency, compared with no limit."""
    found = {name: _middles(each) for name, each in samples.items()}
    unlimited = found[CONTINUOUS]["tokens_per_s"]
    rows: list[dict[str, Any]] = [
        {
            "target ms": "none (continuous)" if name == CONTINUOUS else int(name),
            "settled run p50 ms": row["settled_run_ms_p50"],
            "p99 ms": row["settled_run_ms_p99"],
            "to target": None if name == CONTINUOUS else row["settled_run_ms_p50"] / int(name),
            "in the engine": row["settled_running"],
            "tokens/s": row["tokens_per_s"],
            "to continuous": row["tokens_per_s"] / unlimited,
        }
        for name, row in found.items()
    ]
    title = f"Adaptive limit: a backlog of answers of one length, {alone_ms:,.0f} ms each when alone"
    report.tables.append(Table(title, list(rows[0]), rows))
    worst = max(row["to target"] for row in rows if row["to target"] is not None)
    report.targets.append(
        Target("median run time under the adaptive limit, to its target, the worst", worst, 1.05, "at most", "x")
    )
    report.data["adaptive"] = {"alone_ms": alone_ms, "figures": found, **_series(runs)}


def _middles(samples: Sequence[Sample]) -> dict[str, float]:
    return {figure: middle(samples, figure) for figure in samples[0]}


def _series(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Series by name of the run.

    Each has the number of requests in the engine over time, of the first run, as pairs of seconds and number; and all
    times spent there, sorted, in ms.
    """
    return {
        "timeline": {
            name: [(round(at_s, 2), round(running, 2)) for at_s, running in found[0].timeline()]
            for name, found in runs.items()
        },
        "run_ms": {
            name: sorted(round(stay.run_ms) for each in found for stay in each.stays) for name, found in runs.items()
        },
    }
