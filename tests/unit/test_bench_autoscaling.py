"""bench.autoscaling: the formula, what an autoscaler makes of it, and the queue that it is tried on."""

from __future__ import annotations

import pytest

from bench.autoscaling.model import SLOTS, START_S, TOKENS_PER_S, Outcome, Simulation
from bench.autoscaling.policies import (
    CATCH_UP_S,
    CLEAR_S,
    LEAD_S,
    STABLE_S,
    STEP_S,
    Scaler,
    View,
    by_deadlines,
    by_pending,
    fixed,
)
from bench.scheduling.traces import Arrival

SECOND = round(TOKENS_PER_S)  # tokens that take a second


def view(
    running: int = 0, outstanding: int = 0, ready: int = 4, work: float | None = None, late: float | None = None
) -> View:
    return View(ready, SLOTS, running, outstanding, work, late)


def run(trace: list[Arrival], workers: int, most: int | None = None) -> Outcome:
    """A fleet of so many from the start, that may grow to `most`."""
    policy = fixed(workers) if most is None else by_deadlines
    return Simulation(trace, Scaler(policy, most=most or workers), workers).run()


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (view(), 0.0),
        (view(outstanding=1), 1.0),
        (view(running=4 * SLOTS, outstanding=4 * SLOTS), 4.0),
        (view(running=SLOTS, outstanding=SLOTS), 1.25),
        (view(running=4 * SLOTS, outstanding=999, work=2 * CLEAR_S), 8.0),
        (view(running=4 * SLOTS, outstanding=999, work=1.0, late=CATCH_UP_S - LEAD_S), 8.0),
        (view(running=4 * SLOTS, outstanding=999, work=1.0, late=-LEAD_S - 1), 4.0),
    ],
)
def test_what_is_wanted_by_work_and_deadlines(seen: View, wanted: float) -> None:
    assert by_deadlines(seen) == pytest.approx(wanted)


def test_full_engines_alone_are_no_reason_to_grow_but_by_pending_they_are() -> None:
    full = view(running=4 * SLOTS, outstanding=4 * SLOTS)
    assert (by_deadlines(full), by_pending(full)) == (4.0, 5.0)


def test_up_at_once_and_down_only_after_a_while() -> None:
    wishes = iter([8.0, *[2.0] * 100])
    scaler = Scaler(lambda _: next(wishes), most=20)
    having, times = 4, [0.0]
    having = scaler.workers(0.0, having, view())
    assert having == 8
    while having == 8:
        times.append(times[-1] + STEP_S)
        having = scaler.workers(times[-1], having, view())
    assert (having, times[-1]) == (2, STABLE_S + STEP_S)


@pytest.mark.parametrize(("wish", "gets"), [(10.9, 10), (9.1, 10), (11.1, 12), (99.0, 20), (0.0, 1)])
def test_small_differences_are_left_alone_and_bounds_are_kept(wish: float, gets: int) -> None:
    scaler = Scaler(lambda _: wish, most=20)
    having = scaler.workers(0.0, 10, view())
    if gets < 10:
        having = scaler.workers(STABLE_S + STEP_S, having, view())
    assert having == gets


def test_more_urgent_lanes_and_earlier_deadlines_go_first() -> None:
    """One slot's worth of time for each; only the order decides who is late."""
    alone = [Arrival(0.0, "low", SECOND * 5) for _ in range(SLOTS)]
    crowd = [
        *(Arrival(1.0, "normal", SECOND * 5, 60_000) for _ in range(SLOTS)),
        *(Arrival(1.0, "normal", SECOND * 5, 10_500) for _ in range(SLOTS)),
        *(Arrival(1.1, "critical", SECOND * 5, 20_000) for _ in range(SLOTS)),
    ]
    outcome = run([*alone, *crowd], 1)
    # Critical ones run from 5 s to 10 s; the early normal ones would end at 15 s, and are due at 11.5 s.
    assert outcome.missed_by_lane == {"normal": SLOTS}


def test_a_worker_helps_only_after_it_has_started() -> None:
    """A burst that one worker cannot do in time, with lives shorter and longer than a start."""
    load = 40 * SLOTS
    short = [Arrival(0.0, "high", SECOND * 5, round(START_S * 500)) for _ in range(load)]
    long = [Arrival(0.0, "high", SECOND * 5, round(START_S * 3_000)) for _ in range(load)]
    assert run(short, 1).missed == run(short, 1, most=30).missed > 0
    assert run(long, 1).missed > run(long, 1, most=30).missed


def test_what_is_paid_for_is_from_start_to_end() -> None:
    trace = [Arrival(0.0, "normal", SECOND * 60)]
    outcome = run(trace, 3)
    assert outcome.worker_s == pytest.approx(3 * 60)
    assert (outcome.requests, outcome.missed, outcome.most) == (1, 0, 3)
