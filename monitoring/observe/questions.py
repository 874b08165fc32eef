"""What is asked: the queries of every panel, as a Prometheus takes them, with values for the dashboards' variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monitoring.panels import DASHBOARDS

VALUES = {"$__rate_interval": "30s", "$queue": "default", "$lane": "normal", "$instance": ".+"}


@dataclass(frozen=True)
class Question:
    """One panel.

    Attributes:
        dashboard, panel: their titles.
        queries: PromQL.
        outside: reads what streamfleet does not serve itself.
    """

    dashboard: str
    panel: str
    queries: tuple[str, ...]
    outside: bool


def questions() -> Iterator[Question]:
    """Of all dashboards, in order."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            queries = tuple(filled(query) for query, _ in panel.queries)
            yield Question(dashboard.title, panel.title, queries, panel.outside)


def filled(query: str) -> str:
    """With values in place of variables."""
    for name, value in VALUES.items():
        query = query.replace(name, value)
    return query
