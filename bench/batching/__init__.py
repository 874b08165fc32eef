"""Batching policies of the worker on real vLLM: the size of a batch, window and continuous, and the adaptive limit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from bench.batching import served_runs, tables
from bench.batching.served_runs import SLOTS, Run
from bench.batching.sizes import FULL_SIZES, PROMPT_WORDS, QUICK_SIZES, Sizes
from bench.core.machine import describe
from bench.core.reports import Report
from bench.core.rounds import Sample, interleave, middle
from bench.engine.served import Served, served
from bench.engine.setup import engine_setup
from bench.engine.work import Body, bodies

Policy = Mapping[str, object]
Runs = dict[str, list[Run]]


def run(quick: bool, rounds: int | None = None) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        rounds: number of rounds instead of the size's own.
    """
    sizes = QUICK_SIZES if quick else FULL_SIZES
    sizes = replace(sizes, rounds=rounds or sizes.rounds)
    setup = engine_setup("--max-num-seqs", str(SLOTS))
    settings = {"quick": quick, **asdict(sizes), "engine_arguments": " ".join(setup.argv)}
    report = Report("batching", datetime.now(UTC).date().isoformat(), describe(), settings)
    report.data["samples"] = {}
    with served(setup) as server:
        served_runs.run(server, continuous(4), bodies(8, 8, 0))  # one-time work, not measured
        alone_ms = _sizes(report, server, sizes)
        _policies(report, server, sizes)
        _adaptive(report, server, sizes, alone_ms)
    return report


def _sizes(report: Report, server: Served, sizes: Sizes) -> float:
    """Returns the run time of a request alone, in ms."""
    wanted = {
        str(size): (continuous(size), bodies(count, sizes.tokens, size, PROMPT_WORDS))
        for size, count in sizes.batches.items()
    }
    samples, _ = _interleaved(report, server, sizes, wanted, "sizes")
    tables.add_sizes(report, samples)
    return middle(samples[str(min(sizes.batches))], "run_ms_p50")


def _policies(report: Report, server: Served, sizes: Sizes) -> None:
    mixed = bodies(sizes.mixed_requests, sizes.mixed_tokens, 1, PROMPT_WORDS)
    size = sizes.mixed_size
    wanted = {tables.CONTINUOUS: (continuous(size), mixed), tables.WINDOW: (window(size), mixed)}
    samples, runs = _interleaved(report, server, sizes, wanted, "policies")
    tables.add_policies(report, samples, runs, size)


def _adaptive(report: Report, server: Served, sizes: Sizes, alone_ms: float) -> None:
    backlog = bodies(sizes.adaptive_requests, sizes.tokens, 1, PROMPT_WORDS)
    wanted = {tables.CONTINUOUS: (continuous(0), backlog)}
    for times in sizes.targets:
        target_ms = round(alone_ms * times)
        wanted[str(target_ms)] = (adaptive(target_ms), backlog)
    samples, runs = _interleaved(report, server, sizes, wanted, "adaptive")
    tables.add_adaptive(report, samples, runs, alone_ms)


def continuous(size: int) -> Policy:
    """Settings for at most so many at once; 0 for all slots."""
    return {"STREAMFLEET_BATCHING": "continuous", "STREAMFLEET_BATCH_SIZE": size}


def window(size: int) -> Policy:
    """Settings for so many together, and the next ones when all of these are done."""
    return {"STREAMFLEET_BATCHING": "window", "STREAMFLEET_BATCH_SIZE": size}


def adaptive(target_ms: int) -> Policy:
    """Settings for as many as keep the target."""
    return {"STREAMFLEET_BATCHING": "adaptive", "STREAMFLEET_TARGET_LATENCY_MS": target_ms}


def _interleaved(
    report: Report, server: Served, sizes: Sizes, wanted: Mapping[str, tuple[Policy, Sequence[Body]]], part: str
) -> tuple[dict[str, list[Sample]], Runs]:
    """Run each policy once a round. Returns figures, which also go into the report under `part`, and runs."""
    runs: Runs = {name: [] for name in wanted}

    def measure(name: str, policy: Policy, asked: Sequence[Body]) -> Sample:
        found = served_runs.run(server, policy, asked)
        runs[name].append(found)
        return found.figures()

    measures: dict[str, Callable[[], Sample]] = {
        name: functools.partial(measure, name, policy, asked) for name, (policy, asked) in wanted.items()
    }
    samples = interleave(measures, sizes.rounds, title=part)
    report.data["samples"][part] = samples
    return samples, runs
