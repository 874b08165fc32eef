"""Metrics have names as Prometheus has them, and whatever a page names as a metric is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from reference_pages import all_metrics

from streamfleet.operator.exporter.families import Family

METRICS = [metric for table in all_metrics().values() for metric in table]


def documented(page: str) -> set[str]:
    """Metrics of the tables in docs/metrics.md."""
    return set(re.findall(r"^\| `(streamfleet_\w+)`", page, re.MULTILINE))


def test_names_are_as_prometheus_has_them() -> None:
    for name, kind, labels, _ in METRICS:
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb)\b", name), name
        assert not set(labels) & {"le", "quantile", "job", "instance", "queue"}, name
    assert len(METRICS) == len({metric.name for metric in METRICS}), "they do not share names"


def names_in(text: str) -> set[str]:
    """Metrics that a text names; a histogram's samples stand for it."""
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    found = set()
    for name in re.findall(r"\bstreamfleet_\w+", text):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        found.add(whole if whole in histograms else name)
    return found


def test_whatever_a_page_names_as_a_metric_is_one(repository: Path) -> None:
    wrong, known = [], {metric.name for metric in METRICS}
    now = [path for path in repository.glob("*.md") if path.name != "CHANGELOG.md"]  # which names former ones
    for path in (*now, *(repository / "docs").rglob("*.md"), *(repository / "k8s").rglob("*.md")):
        named = names_in(path.read_text(encoding="utf-8"))
        wrong += [f"{path.relative_to(repository)}: {name}" for name in sorted(named - known)]
    assert not wrong


def test_a_family_without_a_value_has_no_series() -> None:
    registry = CollectorRegistry()
    family = Family("streamfleet_queue_odd", "gauge", "for this test", ("lane",))

    class One:
        def collect(self) -> Any:
            yield family.of("q", [(("high",), None), (("low",), 2)])

    registry.register(One())
    assert registry.get_sample_value("streamfleet_queue_odd", {"queue": "q", "lane": "high"}) is None
    assert registry.get_sample_value("streamfleet_queue_odd", {"queue": "q", "lane": "low"}) == 2
