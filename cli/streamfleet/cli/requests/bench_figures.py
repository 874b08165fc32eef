"""Figures of `streamfleet bench`: the answers of a step go in; its figures, the table and the picture come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.plan.figures import at_share

Step: TypeAlias = Mapping[str, Any]
"""Figures of a step by name, as --json prints them; None where something cannot be known."""
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FULL_CPU_PERCENT, LATE_MS = 90.0, 50.0
"""Use of one core, and lateness of the event loop (p95), from which on the client is the limit."""
HEADS = {
    "concurrency": "at once",
    "requests_per_s": "requests/s",
    "tokens_per_s": "tokens/s",
    **{f"{name}_ms": f"{name} ms" for name in SHARES},
    **{f"first_token_{name}_ms": f"first {name} ms" for name in SHARES},
    "in_engine": "in engine",
    "gpu_percent": "GPU %",
    "client_cpu_percent": "client CPU %",
}


class Answer(NamedTuple):
    """One whole answer: the client's monotonic seconds, output tokens, seconds in the engine; None where unknown."""

    began_s: float
    first_s: float | None
    ended_s: float
    tokens: int | None
    engine_s: float | None = None


def step_of(at_once: int, answers: Sequence[Answer], gpu: float | None, cpu: float, late_s: Sequence[float]) -> Step:
    """Compute the figures of a step.

    Args:
        at_once: number of requests at once.
        answers: at least one.
        gpu: mean use of the busiest GPU, per cent.
        cpu: share of a core that the client used.
        late_s: lateness of the client's event loop, at many moments.
    """
    seconds = max(answer.ended_s for answer in answers) - min(answer.began_s for answer in answers)
    totals_ms = sorted((answer.ended_s - answer.began_s) * 1000 for answer in answers)
    firsts_ms = sorted((answer.first_s - answer.began_s) * 1000 for answer in answers if answer.first_s is not None)
    late_ms = at_share(sorted(late_s), 0.95) * 1000 if late_s else 0.0
    return {
        "concurrency": at_once,
        "requests": len(answers),
        "seconds": seconds,
        "requests_per_s": len(answers) / seconds,
        "tokens_per_s": _a_second([answer.tokens for answer in answers], seconds),
        **{f"{name}_ms": at_share(totals_ms, share) for name, share in SHARES.items()},
        **{f"first_token_{name}_ms": at_share(firsts_ms, at) if firsts_ms else None for name, at in SHARES.items()},
        "in_engine": _a_second([answer.engine_s for answer in answers], seconds),
        "gpu_percent": gpu,
        "client_cpu_percent": cpu * 100,
        "client_late_ms": late_ms,
        "client_limit": client_limit(cpu * 100, late_ms),
    }


def _a_second(values: Sequence[float | None], seconds: float) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / seconds if len(known) == len(values) else None


def client_limit(cpu_percent: float, late_ms: float) -> str | None:
    """Reason why the client was the limit; None if it was not."""
    if cpu_percent >= FULL_CPU_PERCENT:
        return f"it used {cpu_percent:.0f} % of a core"
    return f"its event loop was {late_ms:.0f} ms late" if late_ms >= LATE_MS else None


def render(steps: Sequence[Step]) -> RenderableType:
    """Render the steps without columns of which nothing is known, and a line for each step that the client limited."""
    table = FittedTable()
    known = [name for name in HEADS if any(step[name] is not None for step in steps)]
    for name in known:
        table.add_column(HEADS[name], justify="right")
    for step in steps:
        table.add_row(*(_cell(step[name]) for name in known))
    limited = [step for step in steps if step["client_limit"]]
    said = (
        "{concurrency} at once: this client was the limit ({client_limit}); others would see more. Run several of it."
    )
    return Group(table, *(Text(said.format_map(step)) for step in limited))


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"


def draw(steps: Sequence[Step], path: Path) -> None:
    """Draw throughput and latencies by concurrency, as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 2.9), layout="constrained")
    whole, at = [f"{name}_ms" for name in SHARES], [step["concurrency"] for step in steps]
    panels = {
        "throughput": ["tokens_per_s"],
        "whole answer": whole,
        "first token": [f"first_token_{it}" for it in whole],
    }
    for axes, (title, names) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name in names:
            values = [float("nan") if step[name] is None else step[name] for step in steps]
            axes.plot(at, values, marker="o", label=HEADS[name])
        axes.set(title=title, xlabel="requests at once", xscale="log", ylim=(0, None))
        axes.set_xticks(at, map(str, at))
        axes.minorticks_off()
        axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})
