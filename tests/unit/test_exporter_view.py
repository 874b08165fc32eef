"""Metrics from a look: numbers that are right, and as many of them whatever anybody wrote into Redis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.common.replies import lane_of, ranked_member
from streamfleet.operator.broker.audit import Audit, LaneAudit, Sample
from streamfleet.operator.exporter.families import FAMILIES, families
from streamfleet.operator.exporter.view import STATES, View, view
from streamfleet.operator.tenants import TenantView

NOW = 1_790_000_000_000
PATIENCE_MS = 300_000


def audit(delayed: int = 0, counts: dict[str, int] | None = None, **lanes: tuple[int, int, int, int]) -> Audit:
    """Of each lane: length, ready, running, handed out."""
    rows = [LaneAudit(lane, *lanes.get(lane.value, (0, 0, 0, 0)), None, None) for lane in LANES]
    return Audit(counts or {}, delayed, 0, 3, rows)


def sample(workers: dict[str, Any] | None = None, **given: Any) -> Sample:
    return Sample(NOW, workers or {}, **given)


def seen(audited: Audit, sampled: Sample) -> View:
    return view(audited, sampled, PATIENCE_MS)


def lane(found: View, name: Lane) -> Any:
    return next(each for each in found.lanes if each.lane is name)


def test_ages_and_endings() -> None:
    counts = {"succeeded": 5, "expired": 2, "duplicate": 1, "id_reused": 2, "staged": 13, "vanished": 1}
    found = seen(audit(0, counts, normal=(3, 1, 1, 1)), sample(oldest_ms={Lane.NORMAL: NOW - 1_500}))
    assert lane(found, Lane.NORMAL).oldest_s == 1.5
    text = page(found)
    assert 'streamfleet_queue_oldest_age_seconds{lane="normal",queue="q"} 1.5' in text
    assert 'streamfleet_queue_oldest_age_seconds{lane="high",queue="q"} 0.0' in text
    assert 'streamfleet_queue_ready{lane="normal",queue="q"} 1.0' in text  # what is in order, not all that waits
    assert found.ended == {"succeeded": 5, "failed": 0, "expired": 2, "cancelled": 0, "dead": 0}
    assert (found.added, found.duplicates, found.reused, found.outstanding, found.dead_letters) == (14, 1, 2, 3, 3)


def test_work_is_what_is_outstanding_at_the_throughput() -> None:
    assert seen(audit(0, {}, normal=(80, 80, 0, 0)), sample()).work_s is None
    found = seen(audit(0, {}, normal=(80, 80, 0, 0)), sample(pace_per_s=2.0))
    assert found.throughput == 2
    assert found.work_s == 40


def test_living_workers_are_those_that_gave_a_sign_of_life() -> None:
    workers = {
        "a": {"state": "ready", "slots": 8, "running": 3, "seen_ms": NOW - 29_000},
        "b": {"state": "ready", "slots": 8, "running": 8, "seen_ms": NOW},
        "c": {"state": "unfit", "slots": 4, "running": 0, "seen_ms": NOW - 1},
        "silent": {"state": "ready", "slots": 8, "running": 8, "seen_ms": NOW - 31_000},
        "of the future": {"state": "ready", "slots": 8, "running": 8, "seen_ms": NOW + 10**9},
    }
    found = seen(audit(), sample(workers)).workers
    assert (found.by_state["ready"], found.by_state["unfit"], sum(found.by_state.values())) == (2, 1, 3)
    assert (found.slots, found.running) == (20, 11)


def test_a_long_lease_has_long_silences() -> None:
    long = {"state": "ready", "slots": 8, "lease_ms": 200_000}
    workers = {
        "between two signs": long | {"seen_ms": NOW - 50_000},
        "gone": long | {"seen_ms": NOW - 301_000},
    }
    assert seen(audit(), sample(workers)).workers.slots == 8


def test_tenants_have_series_where_there_are_some() -> None:
    found = seen(audit(), sample())
    assert "streamfleet_tenant_tokens{" not in page(found)
    tenants = [TenantView("a", waiting=3, running=2, requests=7, missed=1, tokens=900), TenantView("other", tokens=5)]
    text = page(replace(found, tenants=tenants))
    for name, value in (("waiting", 3), ("running", 2), ("requests", 7), ("missed", 1), ("tokens", 900)):
        assert f'streamfleet_tenant_{name}{{queue="q",tenant="a"}} {value:.1f}' in text
    assert 'streamfleet_tenant_tokens{queue="q",tenant="other"} 5.0' in text


def page(found: View | None) -> str:
    class Fixed:
        def collect(self) -> Any:
            return families("q", found)

    registry = CollectorRegistry()
    registry.register(Fixed())
    return generate_latest(registry).decode()


def series(text: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def test_without_redis_there_is_nothing_but_that() -> None:
    assert series(page(None)) == {'streamfleet_exporter_up{queue="q"}'}
    assert 'streamfleet_exporter_up{queue="q"} 0.0' in page(None)


MOST_SERIES = 1 + 5 * len(LANES) + 9 + len(STATES) + len(Status)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
descriptions = st.dictionaries(
    st.sampled_from(["state", "slots", "running", "credit", "seen_ms", "engine", "models", "lease_ms"])
    | st.text(max_size=5),
    json_values | st.sampled_from([NOW, NOW - 1, "ready"]),
    max_size=7,
)


@given(
    st.dictionaries(st.text(max_size=5), descriptions, max_size=5),
    st.dictionaries(
        st.sampled_from([*Status, "duplicate", "id_reused", "staged", "odd"]), st.integers(-(10**400), 10**400)
    ),
)
def test_whatever_workers_and_counters_say_the_series_are_these(
    workers: dict[str, Any], counts: dict[str, int]
) -> None:
    found = seen(audit(0, {str(name): number for name, number in counts.items()}), sample(workers))
    text = page(found)
    assert len(series(text)) <= MOST_SERIES
    states = {line.partition('state="')[2].partition('"')[0] for line in series(text) if "state=" in line}
    assert states == set(STATES)


def test_every_family_is_on_the_page() -> None:
    text = page(seen(audit(), sample()))
    for family in FAMILIES:
        assert f"# HELP {family.name} {family.help}" in text


@pytest.mark.parametrize(
    ("member", "lane"),
    [(b"1|1-0", Lane.CRITICAL), (b"4|1-0", Lane.LOW), (b"0|1-0", None), (b"5|1-0", None), (b"", None), (b"x", None)],
)
def test_lanes_of_delayed_members(member: bytes, lane: Lane | None) -> None:
    assert lane_of(member) is lane


@pytest.mark.parametrize("score", [b"inf", b"-inf", b"nan"])
def test_odd_scores_and_members_are_passed_over(score: bytes) -> None:
    assert ranked_member([b"M1790000000000-A0", b"1790000000005"]) == (NOW, NOW + 5)
    assert ranked_member([b"M1790000000000-A0", score]) is None
    assert ranked_member([b"junk", b"5"]) is None
    assert ranked_member([]) is None
