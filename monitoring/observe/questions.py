"""The queries of every panel, with values in place of the dashboards' variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monitoring.panels import DASHBOARDS

VALUES = {"$__rate_interval": "30s", "$queue": "default", "$lane": "normal", "$instance": ".+"}


@dataclass(frozen=True)
class Question:
    """The queries of one panel.

    Attributes:
        dashboard, panel: their titles.
        queries: PromQL.
        outside: reads metrics that streamfleet does not serve itself.
    """

    dashboard: str
    panel: str
    queries: tuple[str, ...]
    outside: bool


def questions() -> Iterator[Question]:
    """Questions of all dashboards, in order."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            queries = tuple(filled(query) for query, _ in panel.queries)
            yield Question(dashboard.title, panel.title, queries, panel.outside)


def filled(query: str) -> str:
    """A query with values in place of variables."""
    for name, value in VALUES.items():
        query = query.replace(name, value)
    return query
