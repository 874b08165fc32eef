"""Durations show what the library's own histogram would show, whoever observes meanwhile."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from streamfleet.common.metrics import _SECONDS, ADDED_UP, Durations

NAME = "durations_of_a_test_seconds"


@pytest.fixture
def durations() -> Iterator[Durations]:
    made = Durations(NAME, "Of a test.", ["lane"])
    yield made
    REGISTRY.unregister(made)


def samples(collector: Durations | Histogram) -> set[tuple[str, str, float]]:
    found = [sample for family in collector.collect() for sample in family.samples]
    return {(each.name, str(each.labels), round(each.value, 6)) for each in found if "_created" not in each.name}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(_SECONDS) | st.floats(0, 9_999)), max_size=40))
def test_they_show_what_a_histogram_shows(observed: list[tuple[str, float]]) -> None:
    ours = Durations(f"{NAME}_{uuid.uuid4().hex}", "Of a test.", ["lane"])
    theirs = Histogram(ours._name, "Of a test.", ["lane"], registry=CollectorRegistry(), buckets=_SECONDS)
    for lane, seconds in observed:
        ours.labels(lane).observe(seconds)
        theirs.labels(lane).observe(seconds)
    REGISTRY.unregister(ours)
    assert samples(ours) == samples(theirs)


def test_nothing_is_lost_while_others_read(durations: Durations, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # threads change places within a line

    def observe() -> None:
        for _ in range(150 * ADDED_UP):
            durations.labels("a").observe(1)

    threads = [threading.Thread(target=observe) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples(durations)
    assert (f"{NAME}_count", "{'lane': 'a'}", 450 * ADDED_UP) in samples(durations)


def test_what_nobody_reads_is_added_up_all_the_same(durations: Durations) -> None:
    series = durations.labels("a")
    for _ in range(3 * ADDED_UP):
        series.observe(1)
    assert len(series._new) < ADDED_UP
