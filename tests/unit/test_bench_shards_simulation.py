"""bench.shards.simulation: calls come when workers make them, cost what they cost, and nothing is lost on the way."""

from __future__ import annotations

import heapq
from dataclasses import replace

import pytest

from bench.shards.costs import CALLS, VERBS, CallCost, Costs, Growing
from bench.shards.simulation import LINK_S, TICK_SCRIPTS, Load, Shard, simulate
from streamfleet.worker.lease import RENEWALS_PER_LEASE

FREE = Costs(
    verbs={verb: CallCost(((1, 0.0),)) for verb in VERBS},
    calls=dict.fromkeys(CALLS, 0.0),
    tick=Growing(0.0, 0.0),
    forget=Growing(0.0, 0.0),
    connection_us=0.0,
    alone_us=0.0,
    woken_us={"PING": 0.0},
    connections=5.0,
)
LEASE_S = 8.0


def costs(**us: float) -> Costs:
    """Everything is free but these verbs and calls."""
    verbs = {name: CallCost(((1, us[name]),)) for name in us if name in VERBS}
    calls = {name: each for name, each in us.items() if name in CALLS}
    return replace(FREE, verbs={**FREE.verbs, **verbs}, calls={**FREE.calls, **calls})


def test_an_idle_fleet_costs_its_signs_of_life() -> None:
    """Four fifths of a lease have to pass, which the fourth renewal is the first to find: one sign a lease."""
    outcome = simulate(Load(400, 8, 0.0, 0.0, LEASE_S), costs(heartbeat=250.0), 16.0)
    assert outcome.calls_per_s["heartbeat"] == pytest.approx(400 / LEASE_S, rel=0.05)
    assert outcome.cpu_percent == pytest.approx(100 * 400 / LEASE_S * 250e-6, rel=0.05)
    assert "renew" not in outcome.calls_per_s
    assert outcome.pickup_ms is None


def test_leases_are_renewed_four_times() -> None:
    outcome = simulate(Load(50, 4, 1_000.0, 0.2 * 4 * 50, LEASE_S), costs(renew=100.0), 16.0)
    assert outcome.calls_per_s["renew"] == pytest.approx(50 * RENEWALS_PER_LEASE / LEASE_S, rel=0.05)


def test_what_grows_with_the_fleet_is_counted_once_for_each() -> None:
    found = replace(FREE, connection_us=2.0, alone_us=1_000.0, tick=Growing(500.0, 0.0), forget=Growing(0.0, 55.0))
    outcome = simulate(Load(100, 4, 0.0, 0.0, LEASE_S), found, 16.0)
    connections, alone, tick, forget = 100 * 5 * 2.0, 1_000.0, 500.0, 100 * 55.0 / 55
    assert outcome.cpu_percent == pytest.approx((connections + alone + tick + forget) / 1e4, rel=0.02)


def test_the_housekeeping_grows_with_what_is_held() -> None:
    load = Load(10, 50, 1_000.0, 10 * 50 / 1_000.0, LEASE_S)
    outcome = simulate(load, replace(FREE, tick=Growing(0.0, 20.0)), 10.0)
    assert outcome.cpu_percent == pytest.approx(500 * 20.0 / 1e4, rel=0.06)


def test_a_lone_request_waits_for_a_read_and_a_pull() -> None:
    outcome = simulate(Load(20, 4, 0.05, 2.0), costs(watch=3_000.0, pull=5_000.0), 60.0)
    assert outcome.pickup_ms is not None
    assert outcome.pickup_ms[0] == pytest.approx(8.0 + 3_000 * LINK_S, abs=0.01)


def test_the_server_does_one_call_after_the_other() -> None:
    shard = Shard(Load(1, 1, 1.0, 0.0), costs(enqueue=1_000.0))
    answers = [shard._call(sent, "enqueue") for sent in (0.0, 0.0, 5.0)]
    assert answers == pytest.approx([0.001 + 2 * LINK_S, 0.002 + 2 * LINK_S, 5.001 + 2 * LINK_S])


def test_as_many_end_as_come() -> None:
    outcome = simulate(Load(20, 16, 2.0, 100.0), costs(enqueue=100.0, pull=300.0, complete=200.0, results=50.0), 30.0)
    assert outcome.ended_per_s == pytest.approx(100.0, rel=0.06)
    busy = sum(outcome.share[verb] for verb in ("enqueue", "pull", "complete", "results"))
    assert busy == pytest.approx(1.0)
    assert outcome.cpu_percent == pytest.approx(100.0 * 650e-6 * 100, rel=0.06)


@pytest.mark.parametrize("rate_per_s", [30.0, 75.0, 400.0])
def test_nothing_is_lost_and_no_worker_holds_more_than_its_slots(rate_per_s: float) -> None:
    """Under, near and far above what the fleet can do."""
    shard = Shard(Load(10, 8, 1.0, rate_per_s), costs(pull=300.0, complete=2_000.0))
    shard.run(20.0, warm_s=0.0)
    held = [worker.held for worker in shard._workers]
    assert max(held) <= 8
    started = min(round(rate_per_s), 80)
    came = shard._spent.requests["enqueue"]
    on_the_way = sum(event[4] for event in shard._events if event[2] == "enter")
    unheard = sum(event[4] for event in shard._events if event[2] == "completed")
    assert started + came == sum(held) + len(shard._waiting) + on_the_way + shard._ended
    assert unheard <= sum(held)


def test_a_full_fleet_goes_on_pulling() -> None:
    """It is told of no arrival: that room came is what makes it pull."""
    outcome = simulate(Load(4, 4, 0.5, 200.0), costs(pull=100.0, complete=100.0), 20.0)
    assert outcome.ended_per_s == pytest.approx(4 * 4 / 0.5, rel=0.05)


def test_work_spreads_when_the_watchers_are_full() -> None:
    """More than two workers have slots for; no idle waiter looks by itself so soon."""
    shard = Shard(Load(12, 2, 30.0, 0.0, fresh=True), costs(pull=100.0))
    shard._begin()
    shard._on_enter(0.0, 0, 20)
    while shard._events[0][0] < 10.0:
        now, _, kind, who, number = heapq.heappop(shard._events)
        getattr(shard, f"_on_{kind}")(now, who, number)
    assert sum(worker.held for worker in shard._workers) == 20


def test_outcomes_that_wait_while_others_are_written_go_together() -> None:
    load = Load(1, 64, 1.0, 60.0)
    assert simulate(load, costs(complete=10.0), 20.0).completed < 1.1
    assert simulate(load, costs(complete=100_000.0), 20.0).completed > 3


def test_a_server_that_falls_behind_shows_more_than_its_core() -> None:
    outcome = simulate(Load(4, 16, 0.1, 300.0), costs(enqueue=5_000.0), 10.0)
    assert outcome.cpu_percent == pytest.approx(150.0, rel=0.1)


def test_a_call_costs_more_where_the_server_has_slept() -> None:
    scripts = ("enqueue", "pull", "empty_pull", "complete", "renew", "heartbeat", "acquire_housekeeping_lock", "tick")
    waking = replace(costs(pull=500.0, complete=500.0), woken_us={**dict.fromkeys(scripts, 300.0), "PING": 0.0})
    quiet = simulate(Load(10, 4, 0.0, 0.0, LEASE_S), replace(FREE, woken_us=waking.woken_us), 32.0)
    calls = quiet.scripts_per_s - quiet.calls_per_s["tick"] * (1 - 1 / TICK_SCRIPTS)
    assert quiet.cpu_percent == pytest.approx(calls * 300 / 1e4, rel=0.1)
    busy = Load(10, 64, 0.1, 4_000.0, LEASE_S)
    ours, warm = simulate(busy, waking, 2.0), simulate(busy, costs(pull=500.0, complete=500.0), 2.0)
    assert ours.cpu_percent > 90
    assert ours.cpu_percent == pytest.approx(warm.cpu_percent, rel=0.05)


def test_a_verb_that_is_rare_is_cold_on_a_busy_server_too() -> None:
    """A server that renews leases all the time: what all calls share stays warm, what a pull alone needs does not."""
    load, free = Load(100, 64, 100.0, 2.0, 0.4), {"PING": 0.0, "pull": 0.0}
    busy = simulate(load, replace(costs(renew=1.0), woken_us=free), 16.0)
    rare = simulate(load, replace(costs(renew=1.0), woken_us={**free, "pull": 300.0}), 16.0)
    pulls, calls = busy.calls_per_s["pull"], sum(busy.calls_per_s.values())
    assert calls > 100 * pulls
    assert rare.cpu_percent - busy.cpu_percent == pytest.approx(pulls * 300 / 1e4, rel=0.15)
    shared = simulate(load, replace(costs(renew=1.0), woken_us=dict.fromkeys(("PING", "pull"), 300.0)), 16.0)
    assert shared.cpu_percent < 0.5 * calls * 300 / 1e4


def test_the_same_seed_gives_the_same_outcome() -> None:
    load, some = Load(30, 8, 1.0, 50.0), costs(pull=300.0, complete=200.0)
    assert simulate(load, some, 5.0, seed=3) == simulate(load, some, 5.0, seed=3)
    assert simulate(load, some, 5.0, seed=3) != simulate(load, some, 5.0, seed=4)


def test_a_worker_that_holds_more_leaves_the_watch_to_an_idle_one() -> None:
    """A watcher takes two at most while another has none: so few requests are on many workers."""
    shard = Shard(Load(20, 8, 8.0, 2.0, LEASE_S), costs(enqueue=1.0))
    shard.run(60.0, 0.0)
    held = sorted(worker.held for worker in shard._workers)
    assert sum(held) == pytest.approx(16, abs=12)
    assert held[-1] <= 3
