"""bench.goodput: its engine in virtual time, its work and its figures. Nothing is started."""

from __future__ import annotations

import math

import pytest

from bench.goodput import tenants, urgent
from bench.goodput.engine import Engine
from bench.goodput.runs import paired
from bench.goodput.urgent import ALONE, CASES, ORDER, RESERVE, Case
from bench.goodput.work import SPEED, Request, Session, Turn, of_tenants, sessions


def request(name: str = "s1", *, new: int = 100, output: int = 100, lane: str = "low", history: int = 0) -> Request:
    """A request without a deadline."""
    session = Session(name, 0.0, [Turn(new, output, output)], lane=lane)
    return Request(session, 0, history, 0.0, math.inf)


def running(engine: Engine, asked: Request, at_s: float = 0.0) -> float:
    """Give a request to an engine; returns when it decodes."""
    engine.take(asked)
    read_s = engine.next_prompt(at_s)
    assert read_s is not None
    engine.read(read_s)
    return read_s


def test_a_request_takes_its_prompt_and_a_step_for_each_token() -> None:
    engine, asked = Engine(0, SPEED, 32), request()
    began_s = running(engine, asked)
    assert began_s == pytest.approx(100 * SPEED.prompt_s)
    assert asked.first_s == pytest.approx(began_s + SPEED.step(1))
    end_s = engine.next_end(began_s) or 0.0
    assert end_s == pytest.approx(began_s + 100 * SPEED.step(1))
    assert engine.ended(end_s - 0.001) == []
    assert engine.ended(end_s) == [asked]
    assert engine.tokens["low"] == pytest.approx(100)


def test_an_interrupted_request_goes_on_where_it_was() -> None:
    engine, asked = Engine(0, SPEED, 32), request()
    began_s = running(engine, asked)
    engine.abort(asked, began_s + 40.5 * SPEED.step(1))
    assert (asked.made, engine.held) == (40, set())
    again_s = running(engine, asked, 10.0)
    assert again_s == pytest.approx(10.0), "all of it is in the cache"
    assert engine.next_end(again_s) == pytest.approx(again_s + 60 * SPEED.step(1))


def test_a_prompt_is_read_at_the_end_of_a_step_and_who_ends_there_ends_before() -> None:
    engine, first, second = Engine(0, SPEED, 32), request("s1", output=2), request("s2", new=1_000)
    began_s = running(engine, first)
    engine.take(second)
    step_s = SPEED.step(1)
    assert engine.next_prompt(began_s + 1.5 * step_s) == pytest.approx(began_s + 2 * step_s + 1_000 * SPEED.prompt_s)
    assert engine.next_end(began_s + 1.5 * step_s) == pytest.approx(began_s + 2 * step_s)
    assert engine.ended(began_s + 2 * step_s) == [first]


def test_the_most_urgent_prompt_is_read_first_and_none_beyond_the_slots() -> None:
    engine, patient, hurried = Engine(0, SPEED, 1), request("s1"), request("s2", lane="critical")
    engine.take(patient)
    engine.take(hurried)
    read_s = engine.next_prompt(0.0)
    assert engine.reading is hurried
    assert read_s is not None
    engine.read(read_s)
    assert engine.next_prompt(read_s) is None


def test_a_session_finds_its_last_turn_where_it_ran() -> None:
    engine, asked = Engine(0, SPEED, 32), request()
    running(engine, asked)
    engine.ended(100.0)
    assert engine.found(request(history=200)) == 200
    assert Engine(1, SPEED, 32).found(request(history=200)) == 0
    assert engine.found(request("s2", history=200)) == 0


def test_work_is_as_much_as_was_asked_and_the_same_every_time() -> None:
    work = sessions(1, 8, 0.5, 200.0, turns=1)
    assert work == sessions(1, 8, 0.5, 200.0, turns=1)
    tokens = sum(session.turns[0].output for session in work)
    assert tokens / 200 == pytest.approx(0.5 * 8 * SPEED.tokens_per_s, rel=0.15)
    several = of_tenants(1, 8, 1.0, 60.0, tenants=20)
    assert len({session.tenant for session in several}) == 21
    assert len({session.name for session in several}) == len(several)


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("figure", "kept", "broken"),
    [("p99_ms", 86.0, 86.1), ("patient_per_s", 855.0, 854.0), ("most_interrupted", 3, 4)],
)
def test_each_claim_has_its_bound(figure: str, kept: float, broken: float) -> None:
    usual = {"p99_ms": 20.0, "urgent_per_s": 100.0, "patient_per_s": 900.0, "most_interrupted": 0}
    order = {**usual, "urgent_per_s": 0.0, "patient_per_s": 1_000.0}

    def missed(value: float) -> int:
        found = {ALONE: usual, ORDER: order, RESERVE: {**usual, figure: value}}
        return sum(not target.holds for target in urgent.targets(Case(1, 0.1), found))

    assert (missed(kept), missed(broken)) == (0, 1)


def test_the_gap_is_the_largest_of_any_window_for_the_weight() -> None:
    all_alike = [(tenant, round(100 * weight)) for tenant, weight in tenants.WEIGHTS.items()]
    assert tenants.largest_gap(all_alike * 3) == 100
    picks = [*all_alike, ("t1", 100), ("t2", 200), ("t1", 100), ("t1", 100), ("t2", 200)]
    assert tenants.largest_gap(picks) == 300, "t1 had three beside the others' none"


def test_a_ratio_of_one_run_has_no_interval() -> None:
    one, other = [{"x": 3.0}], [{"x": 2.0}]
    assert paired(one, other, "x")[0] == 1.5
    assert math.isnan(paired(one, other, "x")[1])
    assert paired(one * 2, other * 2, "x") == (1.5, 0.0)
