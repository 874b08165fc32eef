"""The tables, targets and series of the engine's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.core.reports import Report, Table, Target
from bench.core.rounds import Sample, ratio
from bench.engine.batch import Batch
from bench.engine.front_end import RATE_PER_S, FrontEnd

BARE = "bare AsyncLLM.generate"
HTTP = "vllm serve over HTTP"
STREAMED = "vllm serve over HTTP, streamed"
WORKER = "streamfleet worker, fed from Redis"
TO_BARE, TO_HTTP = 0.97, 1.0
"""Least tokens/s of a worker, as ratios to both."""
CONTENDERS = (BARE, HTTP, STREAMED, WORKER)
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "first_ms_p50": "first token p50 ms",
    "first_ms_p99": "p99 ms",
    "between_ms_p50": "between tokens p50 ms",
    "between_ms_p99": "p99 ms ",
    "front_ms_per_request": "front end's CPU ms a request",
}


def fill(
    report: Report,
    samples: Mapping[str, Sequence[Sample]],
    batches: Mapping[str, Sequence[Batch]],
    front_end: FrontEnd,
) -> None:
    """Put all tables, targets and series into the report.

    Args:
        report: report to fill.
        samples: one for each round of each engine that was started.
        batches: every batch of every contender; those of one number belong together.
        front_end: result of the worker without an engine.
    """
    to_bare = ratio(samples[WORKER], samples[BARE], "tokens_per_s")
    to_http = ratio(samples[WORKER], samples[HTTP], "tokens_per_s")
    report.tables = [_contenders(batches, samples), _front_ends(batches, front_end)]
    report.targets = [
        Target("tokens/s of a worker fed from Redis, to bare AsyncLLM.generate", to_bare, TO_BARE, "at least", "x"),
        Target("tokens/s of a worker fed from Redis, to vllm serve over HTTP", to_http, TO_HTTP, "at least", "x"),
        Target(
            f"a worker's front end without engine, at {RATE_PER_S} requests/s",
            front_end.busy_percent,
            5.0,
            "at most",
            "%",
            "of one core; what vLLM's own front end takes is in the table beside it",
        ),
    ]
    report.data = {
        "samples": {name: [dict(each) for each in found] for name, found in samples.items()},
        "batches": {name: [batch.figures() for batch in found] for name, found in batches.items()},
    }


def _figures(batches: Mapping[str, Sequence[Batch]]) -> dict[str, dict[str, float]]:
    """Medians over all batches, by contender and figure."""
    found = {}
    for name, each in batches.items():
        figures = [batch.figures() for batch in each]
        found[name] = {figure: median(one[figure] for one in figures) for figure in figures[0]}
    return found


def _contenders(batches: Mapping[str, Sequence[Batch]], samples: Mapping[str, Sequence[Sample]]) -> Table:
    rows: list[dict[str, Any]] = []
    for name, figures in _figures(batches).items():
        # Streamed answers come from the same server as whole ones, so they share the figure of that start.
        start, figure = (HTTP, "streamed_per_s") if name == STREAMED else (name, "tokens_per_s")
        shares = [mine[figure] / base["tokens_per_s"] for mine, base in zip(samples[start], samples[BARE], strict=True)]
        shown = {column: figures.get(figure) for figure, column in COLUMNS.items()}
        rows.append({"": name, **shown, "to bare": median(shares)})
    columns = ["", "tokens/s", "to bare", *(column for column in COLUMNS.values() if column != "tokens/s")]
    return Table("Engine: the same requests, all submitted at once", columns, rows)


def _front_ends(batches: Mapping[str, Sequence[Batch]], front_end: FrontEnd) -> Table:
    """Share of a core that 50 requests a second would take, by measured CPU time for each."""
    rows: list[dict[str, Any]] = [
        {
            "front end": "streamfleet worker, an engine that does nothing",
            "CPU ms a request": front_end.busy_s / front_end.requests * 1000,
            "% of a core": front_end.busy_percent,
            "how": f"measured at {RATE_PER_S} requests/s; {front_end.idle_percent:.2g}% of it without any",
        }
    ]
    for name, figures in _figures(batches).items():
        spent_ms = figures["front_ms_per_request"]
        rows.append(
            {
                "front end": name,
                "CPU ms a request": spent_ms,
                "% of a core": spent_ms * RATE_PER_S / 10,
                "how": f"of all that is not the engine core's, times {RATE_PER_S}; vLLM's own front end is in it",
            }
        )
    return Table(
        f"Front end: CPU at {RATE_PER_S} requests/s", ["front end", "CPU ms a request", "% of a core", "how"], rows
    )
