"""Every metric stands in docs/metrics.md as it is, and whatever a page names as a metric is one."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamfleet.common import metrics
from streamfleet.common.protocol import LANES, Status
from streamfleet.gateway import metrics as gateway_metrics
from streamfleet.gateway.batches import metrics as batch_metrics
from streamfleet.gateway.files import metrics as file_metrics
from streamfleet.gateway.webhooks import metrics as webhook_metrics
from streamfleet.operator.exporter.families import FAMILIES, Family
from streamfleet.operator.exporter.view import STATES

ROW = re.compile(r"^\| `(streamfleet_\w+)` \| (\w+) \| (\w+) \| (.*?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
BUILD_LABELS = ("version", "python", "vllm")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/metrics.md").read_text(encoding="utf-8")


Metrics = dict[str, tuple[str, tuple[str, ...]]]


def of_workers() -> Metrics:
    """Name as on the page, to type and labels, of all that metrics.py defines."""
    return defined_in(metrics)


def of_gateways() -> Metrics:
    """The same of the gateway's own."""
    found: Metrics = {}
    for module in (gateway_metrics, batch_metrics, file_metrics, webhook_metrics):
        found |= defined_in(module)
    return found


def defined_in(module: ModuleType) -> Metrics:
    """The same of any module."""
    found = {}
    for value in vars(module).values():
        if not hasattr(value, "_labelnames"):
            continue
        family: Any = value.describe()[0]
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        found[name] = (family.type, BUILD_LABELS if family.type == "info" else tuple(value._labelnames))
    return found


def documented(page: str) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """The same of the table, with whose it is."""
    rows = ROW.findall(page)
    assert len(rows) == len({name for name, *_ in rows}), "each metric has one row"
    return {name: (of, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, of, kind, labels, _, _ in rows}


def test_the_table_has_every_metric_as_it_is(page: str) -> None:
    expected: dict[str, tuple[str, str, tuple[str, ...]]] = {
        name: ("all" if kind == "info" else "worker", kind, labels) for name, (kind, labels) in of_workers().items()
    }
    expected |= {name: ("gateway", kind, labels) for name, (kind, labels) in of_gateways().items()}
    expected |= {family.name: ("exporter", family.type, family.labels) for family in FAMILIES}
    assert documented(page) == expected


def test_names_are_as_prometheus_has_them() -> None:
    known = {**of_workers(), **of_gateways(), **{family.name: (family.type, family.labels) for family in FAMILIES}}
    for name, (kind, labels) in known.items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb)\b", name), name
        assert not set(labels) & {"le", "quantile", "job", "instance", "queue"}, name
    assert len(known) == len(of_workers()) + len(of_gateways()) + len(FAMILIES), "they do not share names"


def names_in(text: str) -> set[str]:
    """Metrics that a text names; a histogram's samples stand for it."""
    histograms = {name for name, (kind, _) in {**of_workers(), **of_gateways()}.items() if kind == "histogram"}
    found = set()
    for name in re.findall(r"\bstreamfleet_\w+", text):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        found.add(whole if whole in histograms else name)
    return found


def test_whatever_a_page_names_as_a_metric_is_one(repository: Path, page: str) -> None:
    wrong = []
    for path in (*repository.glob("*.md"), *(repository / "docs").rglob("*.md"), *(repository / "k8s").rglob("*.md")):
        named = names_in(path.read_text(encoding="utf-8"))
        wrong += [f"{path.relative_to(repository)}: {name}" for name in sorted(named - set(documented(page)))]
    assert not wrong


def test_the_values_of_labels_are_listed(page: str) -> None:
    listed = dict(re.findall(r"^\| `(\w+)`(?: of a dead letter)? \| (.*) \|$", page, re.MULTILINE))
    (refusals,) = re.findall(r"^\| `reason` of a refusal \| (.*) \|$", page, re.MULTILINE)
    assert set(re.findall(r"`([a-z_]+)`", refusals)) == set(gateway_metrics.REASONS)

    def values(label: str) -> set[str]:
        return set(re.findall(r"`([a-z_]+)`", listed[label]))

    def of(row: str) -> set[str]:
        (text,) = re.findall(rf"^\| `{row} \| (.*) \|$", page, re.MULTILINE)
        return set(re.findall(r"`([a-z_]+)`", text))

    assert of("status` of open batches") == set(batch_metrics.STATUSES)
    assert of("how`") == {batch_metrics.FIRST, batch_metrics.AGAIN}
    assert of("outcome` of a batch at a gateway") == {batch_metrics.ENDED, *batch_metrics.RUNS}
    assert of("outcome` of a line") == set(batch_metrics.LINES)
    assert of("outcome` of a stream") == set(gateway_metrics.STREAM_ENDS)
    assert of("outcome` of an upload") == set(file_metrics.UPLOADS)
    assert of("direction`") == set(file_metrics.DIRECTIONS)
    assert of("reason` of a store error") == set(file_metrics.ERRORS)

    assert values("lane") == {*LANES}
    assert values("status") == {*Status, "postponed", "released", "lost"}
    assert values("reason") == {*metrics.Reason}
    assert values("state") == {*STATES}


def test_a_name_that_is_none_is_found() -> None:
    assert names_in("`streamfleet_run_seconds_bucket`, `streamfleet_nonsense`") == {
        "streamfleet_run_seconds",
        "streamfleet_nonsense",
    }


def test_a_family_without_a_value_has_no_series() -> None:
    registry = CollectorRegistry()
    family = Family("streamfleet_queue_odd", "gauge", "for this test", ("lane",))

    class One:
        def collect(self) -> Any:
            yield family.of("q", [(("high",), None), (("low",), 2)])

    registry.register(One())
    assert registry.get_sample_value("streamfleet_queue_odd", {"queue": "q", "lane": "high"}) is None
    assert registry.get_sample_value("streamfleet_queue_odd", {"queue": "q", "lane": "low"}) == 2
