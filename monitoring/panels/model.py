"""Parts of a dashboard: panels, variables, and common PromQL expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RATE = "$__rate_interval"
QUEUE = 'queue="$queue"'


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: its title.
        what: one sentence, shown as its description.
        queries: PromQL and legend of each query.
        unit: Grafana's name of the unit.
        kind: ``timeseries`` or ``stat``.
        width: width in columns, of 24.
        outside: reads metrics that streamfleet does not serve itself.
    """

    title: str
    what: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    outside: bool = False


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    query: str


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; its file is named after `uid`."""

    uid: str
    title: str
    variables: Sequence[Variable]
    panels: Sequence[Panel]


def quantiles(metric: str, by: str, more: str = "") -> list[tuple[str, str]]:
    """p50 and p95 of a histogram, by a label."""
    inner = f"sum by (le, {by}) (rate({metric}_bucket{{{more}}}[{RATE}]))"
    return [(f"histogram_quantile({q}, {inner})", f"{{{{{by}}}}} p{round(q * 100)}") for q in (0.5, 0.95)]


def rate(metric: str, by: str, more: str = "") -> tuple[str, str]:
    """Rate per second of a counter, by a label."""
    return f"sum by ({by}) (rate({metric}{{{more}}}[{RATE}]))", f"{{{{{by}}}}}"


BY_QUEUE = Variable("queue", "label_values(streamfleet_queue_outstanding, queue)")
