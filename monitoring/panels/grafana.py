"""Renders dashboards in Grafana's import format."""

from __future__ import annotations

from typing import Any

from monitoring.panels.model import Dashboard, Panel, Variable

COLUMNS = 24


def rendered(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard in Grafana's import format."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(dashboard.panels, 1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > COLUMNS:
            x, y = 0, y + panels[-1]["gridPos"]["h"]
        panels.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["streamfleet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend or panel.title, "datasource": source}
        for at, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "title": panel.title,
        "description": panel.what,
        "type": panel.kind,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": variable.query,
        "definition": variable.query,
        "refresh": 2,
        "sort": 1,
        "includeAll": variable.name == "instance",
        "multi": variable.name == "instance",
    }
