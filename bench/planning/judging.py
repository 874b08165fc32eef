"""Compares predicted and observed figures: tables, targets, and the series of the picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.reports import Table, Target
from bench.core.tables import shown
from streamfleet.operator.plan.figures import Figures
from streamfleet.operator.plan.profile import EngineProfile

MOST_P99_ERROR, MOST_TOKENS_ERROR, MOST_LATE_POINTS, MOST_OUTSIDE = 25.0, 10.0, 5.0, 1
FOLLOWED = "arrivals known"
ANSWER = "late on the planned number of workers, really run"
NAMES = {"simulated": "Simulated engine", "vllm": "vLLM"}


@dataclass(frozen=True)
class Compared:
    """One load, predicted and observed.

    Attributes:
        name: name of the load.
        workers: number of workers.
        followed: prediction for the same arrivals that were sent, as from a recorded trace.
        blind: prediction from rate, lengths and deadlines alone, over other arrivals.
        blind_p99_s: p99 of the time until the answer, for each of those runs.
        observed: figures of the real run.
        sent_late_s: delay of the latest request at its enqueueing.
    """

    name: str
    workers: int
    followed: Figures
    blind: Figures
    blind_p99_s: Sequence[float]
    observed: Figures
    sent_late_s: float

    def series(self) -> dict[str, Any]:
        """Data for the picture and for a closer look."""
        return {
            "name": self.name,
            "workers": self.workers,
            "requests": self.observed.requests,
            "sent_late_ms": self.sent_late_s * 1000,
            "blind_p99_ms": [min(self.blind_p99_s) * 1000, max(self.blind_p99_s) * 1000],
            **{name: _plain(getattr(self, name)) for name in ("followed", "blind", "observed")},
        }


def tables(engine: str, compared: Sequence[Compared], profile: EngineProfile) -> list[Table]:
    """Both predictions beside the observed figures, and the profile behind them."""
    rows = [_row(each) for each in compared]
    steps = [
        {"at once": together, "step ms": together / per_s * 1000, "output tokens/s": per_s}
        for together, per_s in profile.engine.throughput
    ]
    prefill_ms = profile.engine.prefill_s_per_token * 1000
    title = f"{NAMES[engine]}: measured profile, {prefill_ms:.3g} ms for a prompt token"
    return [
        Table(f"{NAMES[engine]}: predicted (arrivals known / rate known) and observed", list(rows[0]), rows),
        Table(f"Settings of {title}", list(steps[0]), steps),
    ]


def _row(each: Compared) -> dict[str, Any]:
    def both(value: str, scale: float) -> str:
        return " / ".join(shown(getattr(found, value) * scale) for found in (each.followed, each.blind))

    row: dict[str, Any] = {"load": each.name, "workers": each.workers, "requests": each.observed.requests}
    for name, value, scale in (
        ("late %", "late", 100.0),
        ("wait p99 ms", "wait_p99_s", 1000.0),
        ("answer p50 ms", "total_p50_s", 1000.0),
        ("answer p99 ms", "total_p99_s", 1000.0),
        ("tokens/s", "tokens_per_s", 1.0),
    ):
        row[name] = both(value, scale)
        row[f"{name}, observed"] = getattr(each.observed, value) * scale
    return row


def targets(engine: str, compared: Sequence[Compared]) -> list[Target]:
    """Targets of the predictions."""
    name = NAMES[engine]
    late_s, tokens = (_errors(compared, "followed", value) for value in ("total_p99_s", "tokens_per_s"))
    found = [
        _worst(f"{name}: p99 until the answer, {FOLLOWED}, largest error", late_s),
        _worst(f"{name}: tokens per second, {FOLLOWED}, largest error", tokens, MOST_TOKENS_ERROR),
    ]
    points = {each.name: abs(each.followed.late - each.observed.late) * 100 for each in compared}
    found.append(_worst(f"{name}: late share, {FOLLOWED}, largest difference", points, MOST_LATE_POINTS, "points"))
    outside = [each.name for each in compared if not _within(each)]
    words = (
        f"{name}: loads whose p99 is outside of what {len(compared[0].blind_p99_s)} other runs of their rate come to"
    )
    return [*found, Target(words, len(outside), MOST_OUTSIDE, "at most", "", ", ".join(outside))]


def answer_target(engine: str, workers: int, late: float, tried: Figures, fewer: Figures | None) -> Target:
    """Target: the proposed fleet is really enough; the note tells the result of one worker fewer."""
    note = f"{workers} worker{'s' * (workers != 1)}"
    if fewer is not None:
        note += f"; with one fewer {fewer.late * 100:.3g} %"
    return Target(
        f"{NAMES[engine]}: {ANSWER}", tried.late * 100, late * 100,
        "at most", "%", note,
    )  # fmt: skip


def no_answer(engine: str, late: float, reason: str) -> Target:
    """The same if the plan says that no fleet is enough."""
    return Target(f"{NAMES[engine]}: {ANSWER}", None, late * 100, "at most", "%", f"no plan: {reason}")


def _within(each: Compared) -> bool:
    return min(each.blind_p99_s) <= each.observed.total_p99_s <= max(each.blind_p99_s)


def _errors(compared: Sequence[Compared], predicted: str, value: str) -> dict[str, float]:
    """Relative errors in per cent, by load."""
    return {
        each.name: abs(getattr(getattr(each, predicted), value) / getattr(each.observed, value) - 1) * 100
        for each in compared
    }


def _worst(name: str, errors: dict[str, float], most: float = MOST_P99_ERROR, unit: str = "%") -> Target:
    worst = max(errors, key=lambda load: errors[load])
    return Target(name, errors[worst], most, "at most", unit, worst)


def _plain(found: Figures) -> dict[str, float]:
    return {
        "late_percent": found.late * 100,
        "wait_p50_ms": found.wait_p50_s * 1000,
        "wait_p99_ms": found.wait_p99_s * 1000,
        "total_p50_ms": found.total_p50_s * 1000,
        "total_p99_ms": found.total_p99_s * 1000,
        "tokens_per_s": found.tokens_per_s,
    }
