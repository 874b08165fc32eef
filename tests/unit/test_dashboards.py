"""The dashboards: what is committed is what the code writes, on metrics that there are."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from monitoring.observe.questions import questions
from monitoring.panels import DASHBOARDS
from monitoring.panels.__main__ import files
from monitoring.panels.grafana import COLUMNS, rendered
from monitoring.panels.model import Dashboard

SERIES = re.compile(r"\bstreamfleet_\w+")
SUFFIXES = ("_bucket", "_count", "_sum")


def documented(repository: Path) -> set[str]:
    """Metrics of the table in docs/metrics.md."""
    page = (repository / "docs" / "metrics.md").read_text("utf-8")
    return set(re.findall(r"^\| `(streamfleet_\w+)`", page, re.MULTILINE))


def test_the_committed_dashboards_are_what_would_be_written() -> None:
    for path, text in files().items():
        assert path.read_text("utf-8") == text, f"{path.name} is out of date: run python -m monitoring.panels"
    assert {path.name for path in next(iter(files())).parent.iterdir()} == {path.name for path in files()}


def test_every_metric_on_a_panel_is_documented(repository: Path) -> None:
    named = {name for each in questions() for query in each.queries for name in SERIES.findall(query)}
    families = {next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name) for name in named}
    assert len(families) > 40
    assert families - documented(repository) == set()


def test_every_documented_metric_is_on_a_panel(repository: Path) -> None:
    """A metric that nobody looks at is one that nobody will think of at night."""
    shown = {name for each in questions() for query in each.queries for name in SERIES.findall(query)}
    families = {next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name) for name in shown}
    assert documented(repository) - families == set()


def test_only_panels_on_others_metrics_are_outside() -> None:
    for each in questions():
        ours = all(SERIES.search(query) for query in each.queries)
        assert each.outside is not ours, each.panel


def test_vllms_metrics_on_panels_are_those_of_the_installed_vllm() -> None:
    """They change their names with releases."""
    there = of_vllm()
    named = {name for each in questions() for query in each.queries for name in re.findall(r"vllm:\w+", query)}
    families = {next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name) for name in named}
    assert families - there == set()
    assert {"vllm:inter_token_latency_seconds", "vllm:iteration_tokens_total"} <= families


def of_vllm() -> set[str]:
    """Returns the metrics of the installed vLLM."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    source = (Path(found.origin).parent / "v1/metrics/loggers.py").read_text("utf-8")
    return set(re.findall(r'name="(vllm:\w+)"', source))


def test_the_page_names_vllms_metrics_as_they_are_and_as_they_were(repository: Path) -> None:
    page = (repository / "docs" / "metrics.md").read_text("utf-8")
    renamed = dict(re.findall(r"^\| `(vllm:\w+)` \| `(vllm:\w+)`", page, re.MULTILINE))
    assert len(renamed) == 2
    assert set(re.findall(r"vllm:\w+", page)) - of_vllm() == set(renamed)


def test_no_variable_is_left_without_a_value() -> None:
    for each in questions():
        assert not [query for query in each.queries if "$" in query], each.panel


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_grafana_can_import_it(dashboard: Dashboard) -> None:
    made = json.loads(json.dumps(rendered(dashboard)))
    assert len({panel["id"] for panel in made["panels"]}) == len(dashboard.panels)
    places = [panel["gridPos"] for panel in made["panels"]]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie over each other"
    variables = {variable["name"] for variable in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made["panels"]))) - {"__rate_interval"}
    assert used <= variables
    assert all(panel["description"].endswith(".") for panel in made["panels"])
