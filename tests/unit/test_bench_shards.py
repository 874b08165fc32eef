"""bench.shards: what INFO says, what calls cost, the recipe."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bench.core import redis as server
from bench.shards import costs, fleets, life
from bench.shards.cluster import APART, ONE, recipe, rows
from bench.shards.sizes import TINY

INFO: dict[str, Any] = {
    "used_cpu_user": 9.0,
    "used_cpu_sys": 3.0,
    "used_cpu_user_main_thread": 2.0,
    "used_cpu_sys_main_thread": 0.5,
    "cmdstat_evalsha": {"calls": 10, "usec": 900},
    "cmdstat_eval": {"calls": 1, "usec": 400},
    "cmdstat_xadd": {"calls": 20, "usec": 50},
    "total_net_input_bytes": 1_000,
    "total_net_output_bytes": 3_000,
    "used_memory": 57_000,
    "used_memory_scripts": 7_000,
    "mem_clients_normal": 8_000,
    "connected_clients": 4,
}


def test_the_thread_that_executes_is_what_counts() -> None:
    found = server.read(INFO)
    assert (found.cpu_us, found.script_calls, found.script_us) == (2_500_000.0, 11, 1_300.0)
    assert (found.memory_bytes, found.clients_bytes) == (50_000, 8_000), "scripts are of no request"


def test_a_server_that_does_not_tell_threads_apart_is_read_as_a_whole() -> None:
    old = {name: value for name, value in INFO.items() if not name.endswith("main_thread") and "cmdstat" not in name}
    found = server.read(old)
    assert (found.cpu_us, found.script_calls) == (12_000_000.0, 0)


def test_a_spell_is_by_the_second() -> None:
    before = server.read(INFO)
    after = server.read({**INFO, "used_cpu_sys_main_thread": 0.7, "cmdstat_eval": {"calls": 41, "usec": 400}})
    found = fleets.spell(before, after, 2.0)
    assert found.cpu_percent == pytest.approx(10.0)
    assert found.calls_per_s == 20.0


def test_what_a_server_carries_is_by_the_cost_of_all_verbs() -> None:
    each = {"us": 20.0, "in B": 1.0, "out B": 2.0}
    figures = {f"{verb} {what}": value for verb in costs.VERBS for what, value in each.items()}
    batches: list[int | str] = [costs.LONE, *TINY.batches]
    samples = {costs.case(500, batch): [figures] for batch in batches}
    found = costs.table(samples | {costs.memory_case(500): [{"queued B": 800.0, "kept B": 900.0}]}, TINY).rows
    assert [row["in a call"] for row in found] == batches
    assert {row["all, µs"] for row in found} == {100.0}
    assert [row["requests/s at half a core"] for row in found] == [None, *[5_000.0] * len(TINY.batches)]


@pytest.mark.parametrize(("batch", "calls", "body"), [(1, 192, 500), (8, 192, 4_096), (64, 192, 32_768), (64, 16, 500)])
def test_a_round_has_whole_calls(batch: int, calls: int, body: int) -> None:
    number = life.number_of(batch, calls, body)
    assert number > 0
    assert number % batch == 0
    assert number * body <= life.MOST_BYTES or number == batch


def test_what_masters_carry_is_by_the_busiest() -> None:
    def sample(*masters: float) -> dict[str, float]:
        each = {f"master {number} us": cost for number, cost in enumerate(masters, 1)}
        return {**each, "busiest us": max(masters)}

    found = rows({ONE: [sample(300.0, 1.0, 1.0)], APART: [sample(100.0, 120.0, 100.0)]})
    assert [row["carries, of one queue"] for row in found] == [1.0, 2.5]


def test_a_name_always_has_the_same_queue_and_a_new_queue_takes_its_share_alone() -> None:
    three, four = ["a", "b", "c"], ["c", "a", "d", "b"]
    before = {name: recipe().queue_for(name, three) for name in map(str, range(3_000))}
    after = {name: recipe().queue_for(name, four) for name in before}
    assert min(Counter(before.values()).values()) > 900
    moved = {name for name in before if before[name] != after[name]}
    assert {after[name] for name in moved} == {"d"}
    assert 600 < len(moved) < 900


def test_a_queues_slot_is_that_of_its_keys() -> None:
    assert recipe().slot_of("foo") == 12_182  # as the Redis Cluster specification computes it for foo


def test_names_lie_on_masters_of_their_own() -> None:
    ranges = [(0, 5_460, "one"), (5_461, 10_922, "two"), (10_923, 16_383, "three")]
    for stem, number, most in (("chat", 3, 1), ("fleet", 3, 1), ("long", 3, 1), ("chat", 7, 3)):
        names = recipe().names_apart(stem, number, ranges)
        assert len(set(names)) == number
        slots = [recipe().slot_of(name) for name in names]
        owners = Counter(owner for slot in slots for first, last, owner in ranges if first <= slot <= last)
        assert len(owners) == 3
        assert max(owners.values()) == most


def test_a_cluster_without_slots_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match="CLUSTER INFO"):
        recipe().names_apart("chat", 3, [])
