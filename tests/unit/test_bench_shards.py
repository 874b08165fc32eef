"""bench.shards: what INFO says, what calls cost, how many shards that makes, the page, the recipe."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from bench.blocks import PageError
from bench.core.reports import FULL, Report, Table, load
from bench.shards import checks, fleets, life, needs, page, server, tables, upkeep
from bench.shards.__main__ import arguments
from bench.shards.cluster import APART, ONE, recipe, rows
from bench.shards.costs import BESIDE, CALLS, LONE, LONE_CALLS, LONE_PAUSE_S, VERBS, CallCost, case, costs_of, growing
from bench.shards.simulation import Outcome
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
    "used_memory": 50_000,
    "mem_clients_normal": 8_000,
    "connected_clients": 4,
}
CASES = [(body, batch) for body in TINY.bodies for batch in TINY.batches]
SEEN = fleets.Seen(
    10, 200, fleets.Spell(2.0, 40.0, 1.0, 1.0), fleets.Spell(8.0, 90.0, 1.0, 1.0), 5.0, 5.0, 2e4, [1.0, 3.0], 0.5
)


def requests(us: float) -> dict[str, list[dict[str, float]]]:
    """Samples in which each verb of a request costs so much, in calls of whatever size."""
    figures = {f"{verb} {what}": value for verb in VERBS for what, value in (("us", us), ("in B", 1.0), ("out B", 2.0))}
    alone = {f"{LONE}requests{where}": [figures] for where in ("", BESIDE)}
    return {case(body, batch): [figures] for body, batch in CASES} | alone


def others(us: float) -> dict[str, list[dict[str, float]]]:
    return {name: [{"us": us, "number": 10.0, "in B": 1.0, "out B": 2.0}] for name in tables.TITLES}


def outcome(cpu_percent: float) -> Outcome:
    return Outcome(cpu_percent, {}, {}, 1.0, None, 1.0, 1.0)


# -- what a server says --------------------------------------------------------------------------------------


def test_the_thread_that_executes_is_what_counts() -> None:
    found = server.read(INFO)
    assert (found.cpu_us, found.script_us, found.script_calls) == (2_500_000.0, 1_300.0, 11)
    assert (found.memory_bytes, found.clients_bytes) == (50_000, 8_000)


def test_a_server_that_does_not_tell_threads_apart_is_read_as_a_whole() -> None:
    old = {name: value for name, value in INFO.items() if not name.endswith("main_thread") and "cmdstat" not in name}
    found = server.read(old)
    assert (found.cpu_us, found.script_us, found.script_calls) == (12_000_000.0, 0.0, 0)


def test_spent_is_the_difference() -> None:
    later = {**INFO, "used_cpu_user_main_thread": 2.1, "total_net_output_bytes": 3_500, "used_memory": 49_000}
    later["cmdstat_evalsha"] = {"calls": 15, "usec": 1_000}
    cost = server.spent(server.read(INFO), server.read(later))
    assert cost.cpu_us == pytest.approx(100_000)
    assert (cost.script_us, cost.script_calls, cost.out_bytes, cost.memory_bytes) == (100.0, 5, 500, -1_000)


def test_a_spell_is_by_the_second() -> None:
    before = server.read(INFO)
    after = server.read({**INFO, "used_cpu_sys_main_thread": 0.7, "cmdstat_eval": {"calls": 41, "usec": 400}})
    found = fleets.spell(before, after, 2.0)
    assert found.cpu_percent == pytest.approx(10.0)
    assert found.calls_per_s == 20.0


# -- costs ---------------------------------------------------------------------------------------------------


def test_a_call_costs_what_was_measured_and_between_and_beyond_it_in_a_line() -> None:
    cost = CallCost(((1, 100.0), (8, 170.0), (64, 730.0)))
    assert [cost.us(number) for number in (1, 8, 64)] == [100.0, 170.0, 730.0]
    assert cost.us(4) == pytest.approx(130.0)
    assert cost.us(128) == pytest.approx(730.0 + 64 * 10.0)
    assert CallCost(((1, 100.0),)).us(50) == 100.0


def test_noise_makes_nothing_cheaper_by_having_more_of_it() -> None:
    assert growing(100.0, 300.0, 50.0).us(10) == pytest.approx(140.0)
    assert growing(100.0, 90.0, 50.0).us(1_000) == 100.0


def test_costs_are_by_the_call_where_samples_are_by_the_request() -> None:
    found = costs_of(requests(20.0), others(7.0), 500, TINY.batches)
    assert found.us("pull", 1) == 20.0
    assert found.us("pull", 8) == 160.0
    assert {found.us(name) for name in CALLS} == {7.0}
    assert found.connection_us == 0.0


def test_what_a_server_spends_in_a_pause_is_no_cost_of_the_call_behind_it() -> None:
    lone = others(7.0) | {f"{LONE}{name}": [{"us": 100.0}] for name in LONE_CALLS}
    lone["alone"] = [{"us": 3_000.0}]
    found = costs_of(requests(20.0), lone, 500, TINY.batches)
    assert found.woken("heartbeat") == pytest.approx(100.0 - 3_000.0 * LONE_PAUSE_S - 7.0)


@pytest.mark.parametrize(("batch", "calls", "body"), [(1, 192, 500), (8, 192, 4_096), (64, 192, 32_768), (64, 16, 500)])
def test_a_round_has_whole_calls(batch: int, calls: int, body: int) -> None:
    number = life.number_of(batch, calls, body)
    assert number > 0
    assert number % batch == 0
    assert number * body <= life.MOST_BYTES or number == batch


def test_a_description_is_as_long_as_a_workers() -> None:
    assert 250 < len(json.dumps(upkeep.description(7))) < 400


# -- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each_percent", [0.004, 0.3, 7.0])
def test_the_most_that_a_shard_carries_is_close_below_the_limit(each_percent: float) -> None:
    number, found = needs.largest(lambda workers: outcome(0.2 + each_percent * workers))
    assert found.cpu_percent <= needs.MOST_PERCENT
    assert found.cpu_percent > 0.96 * needs.MOST_PERCENT or 0.2 + each_percent * (number + 1) > needs.MOST_PERCENT


def test_what_jumps_over_the_limit_is_brought_back_below_it() -> None:
    number, found = needs.largest(lambda workers: outcome(60.0 if workers > 100 else 10.0))
    assert found.cpu_percent == 10.0
    assert 95 <= number <= 100


def test_one_worker_is_the_least() -> None:
    assert needs.largest(lambda workers: outcome(80.0 * workers))[0] == 1


def test_shards_carry_the_whole_fleet_within_the_limit() -> None:
    costs = costs_of(requests(400.0), others(50.0), 500, TINY.batches)
    kind = needs.KINDS["chat"]
    most, _ = needs.most_workers(kind, costs, 1.0)
    found = needs.need(kind, 10 * most + 1, most, costs, 1.0)
    assert found.one.cpu_percent <= needs.MOST_PERCENT
    assert 11 <= found.shards <= 12
    hopeful = needs.need(kind, 10 * most, 5 * most, costs, 1.0)
    assert hopeful.one.cpu_percent <= needs.MOST_PERCENT, "whatever it starts from"


def test_a_kind_of_traffic_keeps_four_fifths_of_the_slots_busy() -> None:
    load = needs.KINDS["chat"].load(100)
    assert load.rate_per_s * load.run_s == pytest.approx(0.8 * 100 * 64)
    assert needs.KINDS["idle"].load(100).rate_per_s == 0


def test_the_error_of_the_simulation_is_of_what_was_measured() -> None:
    found = [checks.Check(10, "% of a core, idle", 4.0, 3.0), checks.Check(10, "script calls/s, idle", 10.0, 11.0)]
    assert [check.error_percent for check in found] == [pytest.approx(-25.0), pytest.approx(10.0)]
    assert checks.worst_percent(found, "% of a core") == pytest.approx(25.0)


def test_every_figure_of_a_fleet_is_held_against_the_simulation() -> None:
    costs = costs_of(requests(20.0), others(7.0), 500, TINY.batches)
    found = checks.checks([SEEN], costs, costs, 2.0)
    assert Counter(check.what.partition(",")[0] for check in found)["% of a core"] == 2
    assert all(check.measured > 0 for check in found)


def test_what_masters_carry_is_by_the_busiest() -> None:
    def sample(*masters: float) -> dict[str, float]:
        each = {f"master {number} us": cost for number, cost in enumerate(masters, 1)}
        return {**each, "busiest us": max(masters)}

    found = rows({ONE: [sample(300.0, 1.0, 1.0)], APART: [sample(100.0, 120.0, 100.0)]})
    assert [row["carries, of one queue"] for row in found] == [1.0, 2.5]


# -- the page ------------------------------------------------------------------------------------------------


def report(**tables_by_title: Any) -> Report:
    return Report(
        "shards",
        "2026-01-31",
        {"cores": 2},
        {},
        [Table(title, ["n"], found) for title, found in tables_by_title.items()],
    )


def test_a_block_of_the_page_is_a_table_of_the_report() -> None:
    text = "a\n<!-- shards:needs:begin -->\nold\n<!-- shards:needs:end -->\nz\n"
    made = page.fill(text, report(Needs=[{"n": 7}]))
    assert "| 7 |" in made
    assert "old" not in made
    assert made.startswith("a\n<!-- shards:needs:begin -->\n")
    assert page.fill(made, report(Needs=[{"n": 7}])) == made


def test_a_block_that_nothing_fills_is_named() -> None:
    with pytest.raises(PageError, match="no such block: neds; there are about, needs"):
        page.fill("<!-- shards:neds:begin -->\n<!-- shards:neds:end -->", report(Needs=[]))


def test_the_scaling_page_is_what_the_results_say() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.fill(text, load(FULL / "shards.json")) == text, "run: python -m bench.shards.page"


# -- the recipe ----------------------------------------------------------------------------------------------


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


# -- command line --------------------------------------------------------------------------------------------


def test_parts_are_read() -> None:
    assert arguments(["--quick", "--only", "costs,fleets"]).only == ("costs", "fleets")


@pytest.mark.parametrize(("parts", "says"), [("sharts", "no such part"), ("fleets", "costs,fleets")])
def test_what_cannot_be_is_refused(parts: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--only", parts])
    assert says in capsys.readouterr().err
