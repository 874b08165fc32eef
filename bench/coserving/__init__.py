"""Urgent requests on engines that are full of patient work: real Redis, real workers, simulated engines or vLLM."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.core.machine import describe
from bench.core.reports import Report, load
from bench.core.rounds import Sample, interleave
from bench.coserving import tables
from bench.coserving.cases import CONTENDERS, KV_VARIABLE, ORDER, PATIENT_TOKENS, SLOTS, URGENT_TOKENS, Case, Contender
from bench.coserving.figures import Round, round_of, summary
from bench.coserving.traffic import run as run_once

CALIBRATION_S, WARM_S = 20.0, 15.0


def run(cases: Sequence[Case], *, quick: bool, earlier: Path | None = None) -> Report:
    """Run the measurement.

    Args:
        cases: what to run.
        quick: true if these are small ones.
        earlier: an earlier report, whose other cases stay; it may be missing.
    """
    settings = {
        "quick": quick,
        "patient_tokens": PATIENT_TOKENS,
        "urgent_tokens": URGENT_TOKENS,
        "slots_without_reserve": SLOTS,
    }
    report = Report("coserving", datetime.now(UTC).date().isoformat(), describe(), settings)
    found = load(earlier).data["cases"] if earlier is not None and earlier.is_file() else {}
    report.data["cases"] = found
    for case in cases:
        found[case.name] = measure(case)
    tables.judge(report)
    return report


def measure(case: Case) -> dict[str, object]:
    """Run all contenders of a case by turns; returns the case and the figures of each."""
    engine, tokens_per_s = engine_of(case), case.tokens_per_s
    if not case.speed:
        tokens_per_s = _calibrated(case, engine)
    found: dict[str, list[Round]] = {name: [] for name in case.contenders}

    def once(name: str, contender: Contender) -> Sample:
        figures = round_of(run_once(case, contender, engine, tokens_per_s))
        found[name].append(figures)
        return figures.values

    measures: dict[str, Callable[[], Sample]] = {
        name: functools.partial(once, name, CONTENDERS[name]) for name in case.contenders
    }
    interleave(measures, case.rounds, title=case.name)
    made = datetime.now(UTC).date().isoformat()
    return {"made": made, **asdict(case), "contenders": {name: summary(each) for name, each in found.items()}}


def engine_of(case: Case) -> Mapping[str, object]:
    """Returns the settings of the workers' engine."""
    if not case.speed:
        from bench.engine.setup import engine_setup

        return engine_setup("--enable-prefix-caching").worker_environment()
    return {
        "STREAMFLEET_ENGINE": "simulated",
        "STREAMFLEET_SIMULATED_PROFILE": "smollm2-cpu",
        "STREAMFLEET_SIMULATED_SPEED": case.speed,
        KV_VARIABLE: case.kv_tokens,
    }


def _calibrated(case: Case, engine: Mapping[str, object]) -> float:
    """Output tokens a second of patient work alone, on this machine."""
    alone = Case(case.workers, 0.0, case.speed, CALIBRATION_S, min(case.patient_s, WARM_S))
    return round_of(run_once(alone, CONTENDERS[ORDER], engine, 1_000.0, quiet=True)).values["patient_per_s"]
