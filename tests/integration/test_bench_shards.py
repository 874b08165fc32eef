"""bench.shards at tiny sizes: real servers, a real fleet, a real cluster."""

from __future__ import annotations

import pytest

from bench.core.processes import workers
from bench.core.redis import own_server
from bench.shards import cluster, costs, fleets
from bench.shards.sizes import TINY

pytestmark = pytest.mark.timeout(150)


def test_requests_of_one_call_share_what_the_call_costs() -> None:
    (table,) = costs.measure(TINY, print).tables
    assert [row["in a call"] for row in table.rows] == [costs.LONE, *TINY.batches]
    assert all(row[f"{verb}, µs"] > 0 for row in table.rows for verb in costs.VERBS)
    assert all(row["waiting, B"] > 500 for row in table.rows)
    each = [row["all, µs"] for row in table.rows]
    assert each == sorted(each, reverse=True)


def test_a_worker_that_does_not_start_says_why() -> None:
    said = pytest.raises(RuntimeError, match=r"No module named bench\.none")
    with own_server() as server, said, workers(server.url, 2, module="bench.none"):
        pytest.fail("it is not there")


@pytest.mark.long
def test_a_fleet_is_seen_idle_and_under_load() -> None:
    (table,) = fleets.measure(TINY, print).tables
    (fleet,) = table.rows
    assert fleet["workers"] == 4
    assert 3 <= fleet["connections each"] <= 8
    assert fleet["pickup p50 ms"] > 0


@pytest.mark.long
def test_queues_on_masters_of_their_own_carry_more() -> None:
    part = cluster.measure(TINY, print)
    one, together, apart = part.tables[0].rows
    assert one["busiest, µs a request"] > 0
    assert apart["carries, of one queue"] > together["carries, of one queue"]
    assert apart["carries, of one queue"] > 1.5
    assert len(part.targets) == 1
