"""bench.coserving: figures of what engines logged, claims, and the engine that logs. Nothing is started."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.reports import Report
from bench.coserving import figures, tables
from bench.coserving.__main__ import _groups
from bench.coserving.cases import ALONE, GROUPS, LONG_S, ONLY_LOW, ORDER, RESERVE, Case, chosen
from bench.coserving.observed import Log, Observed, Run, Slots
from bench.coserving.traffic import Outcome, Seen, Urgent, arrivals
from streamfleet.common.protocol import COMPLETIONS, Lane
from streamfleet.worker.engine.base import EngineRequest
from streamfleet.worker.engine.simulated import SimulatedEngine

WHOLE = Run("p1", "low", 100.0, 110.0, 0.0, 0, 512, whole=True)


def cut(name: str, began_s: float, ended_s: float, tokens: int, kept: int = 0) -> Run:
    """A patient run that was ended early."""
    return Run(name, "low", began_s, ended_s, None, kept, tokens, whole=False)


# -- figures -----------------------------------------------------------------------------------------------


def test_tokens_count_in_the_seconds_in_which_they_were_written() -> None:
    assert figures.tokens_between(WHOLE, 0.1, 100.0, 105.0) == 256
    assert figures.tokens_between(replace(WHOLE, first_ms=5_000.0), 0.1, 100.0, 105.0) == 0
    waited_first = cut("p2", 100.0, 110.0, 50)
    assert figures.tokens_between(waited_first, 0.1, 100.0, 105.0) == 0, "it wrote in its last five seconds"
    assert figures.tokens_between(waited_first, 0.1, 105.0, 120.0) == pytest.approx(50)


def test_tokens_of_an_interrupted_run_are_lost_unless_a_later_run_takes_them_over() -> None:
    first = cut("p1", 100.0, 105.0, 100)
    again, goes_on = replace(WHOLE, began_s=106.0), replace(WHOLE, began_s=106.0, kept=92, tokens=420)
    assert figures.repeated([first, again], [first]) == {"p1": 100}
    assert figures.repeated([first, goes_on], [first]) == {"p1": 8}
    assert figures.repeated([first], [first]) == {"p1": 100}, "nothing shows that they were kept"
    second = cut("p1", 106.0, 107.0, 20, kept=92)
    last = replace(WHOLE, began_s=108.0, kept=112, tokens=400)
    assert figures.repeated([first, second, last], [first, second]) == {"p1": 8}


def test_a_stop_of_the_worker_and_a_wait_for_a_slot_are_no_interruptions() -> None:
    runs = [cut("p1", 100.0, 105.0, 10), cut("p2", 100.0, 105.0, 0), cut("p3", 100.0, 120.0, 10), WHOLE]
    assert figures.interruptions(runs, stopped_s=119.0) == [runs[0]]


def test_a_pick_that_was_returned_is_no_second_pick() -> None:
    runs = [cut("p1", 100.0, 101.0, 5), Run("u1", "critical", 101.0, 102.0, 5.0, 0, 32, whole=True), WHOLE]
    runs.append(cut("p3", 102.0, 110.0, 7))
    assert [run.id for run in figures.unreturned(runs, 110.0)] == ["u1", "p1", "p3"]


def test_a_round_has_the_figures_of_its_urgent_traffic() -> None:
    urgent = Run("u1", "critical", 104.0, 106.0, 0.0, 0, 32, whole=True)
    log = Log([cut("p1", 100.0, 105.0, 50), urgent, replace(WHOLE, began_s=105.0, ended_s=115.0)], [[104.0, 104.1]])
    asked = [Urgent("client", 30.0, answered=True), Urgent("XADD", 900.0, answered=False)]
    found = figures.round_of(Seen(104.0, 108.0, 116.0, asked, [log]))
    assert list(found.steps_ms) == pytest.approx([100])
    assert found.values["urgent_per_s"] == pytest.approx(8)
    assert found.values["patient_per_s"] == pytest.approx((10 + 0.3 * 512 - 50) / 4)
    assert (found.values["interrupted"], found.values["most_interrupted"]) == (1, 1)
    assert found.values["repeated_percent"] == pytest.approx(100 * 50 / (10 + 0.3 * 512 + 32))
    shown = figures.summary([found])
    assert (shown["client_p99_ms"], shown["XADD_p50_ms"], shown["unanswered"]) == (30.0, 900.0, 1)
    assert shown["very_first_ms"] == [30.0]


# -- claims ------------------------------------------------------------------------------------------------


def contender(**more: Any) -> dict[str, Any]:
    first = {f"{way}_{share}_ms": 50.0 for way in ("client", "XADD") for share in ("p50", "p99")}
    steps = {"step_p50_ms": 20.0, "step_p99_ms": 25.0}
    work = {"urgent_per_s": 100.0, "patient_per_s": 900.0, "patient_picks_percent": 5.0, "picks": 500}
    ends = {"interrupted": 0, "most_interrupted": 0, "repeated_percent": 0.0, "unanswered": 0, "requests": 90}
    return {**first, **steps, **work, **ends, **more}


def judged(found: Mapping[str, float] | None = None, *, judges_first_token: bool = True) -> dict[str, bool]:
    """Returns the verdicts on a fleet with these figures, by the last words of their names."""
    alone = contender(client_p50_ms=20.0, client_p99_ms=20.0, XADD_p50_ms=20.0, XADD_p99_ms=20.0)
    contenders = {
        ALONE: alone,
        ORDER: contender(urgent_per_s=0.0, patient_per_s=1_000.0),
        RESERVE: contender(**found or {}),
    }
    report = Report("coserving", "2026-01-31", {}, {})
    report.data["cases"] = {"case": {"judges_first_token": judges_first_token, "contenders": contenders}}
    tables.judge(report)
    assert len(list(tables.verdicts(report))) == len(report.targets)
    return {target.name.removeprefix("case: "): target.holds for target in report.targets}


FIRST, LEFT = "first token, beyond alone and two steps", "patient work, of what is left"
TWICE, ENDED, PICKS = "tokens written twice", "interruptions of one request", "picks of low"


def test_a_fleet_that_keeps_every_claim() -> None:
    assert judged() == {FIRST: True, LEFT: True, TWICE: True, ENDED: True}
    assert judged(judges_first_token=False) == {PICKS: True, TWICE: True, ENDED: True}


@pytest.mark.parametrize(
    ("figure", "kept", "broken", "claim"),
    [
        ("XADD_p99_ms", 80.0, 80.1, FIRST),
        ("client_p50_ms", 80.0, 80.1, FIRST),
        ("patient_per_s", 855.0, 854.0, LEFT),
        ("repeated_percent", 2.0, 2.1, TWICE),
        ("most_interrupted", 3, 4, ENDED),
    ],
)
def test_each_claim_has_its_bound(figure: str, kept: float, broken: float, claim: str) -> None:
    assert judged({figure: kept})[claim]
    assert [name for name, holds in judged({figure: broken}).items() if not holds] == [claim]


def test_without_the_order_of_0_1_the_work_is_held_against_a_fleet_in_which_only_low_gives_way() -> None:
    contenders = {ONLY_LOW: contender(requests=0), RESERVE: contender(patient_per_s=882.0, requests=0)}
    report = Report("coserving", "2026-01-31", {}, {})
    report.data["cases"] = {"case": {"judges_first_token": True, "left_percent": 98.0, "contenders": contenders}}
    tables.judge(report)
    held = {target.name.removeprefix("case: "): (target.value, target.holds) for target in report.targets}
    assert held[LEFT] == (98.0, True)
    assert not [name for name in held if "first token" in name], "nothing urgent came"
    contenders = {ONLY_LOW: contender(), RESERVE: contender(client_p50_ms=110.1)}
    report.data["cases"] = {"case": {"judges_first_token": True, "contenders": contenders}}
    tables.judge(report)
    (first,) = [target for target in report.targets if "with only low giving way" in target.name]
    assert not first.holds


def test_the_first_token_is_held_against_each_fleet_that_is_there() -> None:
    before = contender(XADD_p99_ms=40.0, very_first_ms=[])
    report = Report("coserving", "2026-01-31", {}, {})
    found = contender(XADD_p99_ms=100.1, very_first_ms=[7.0, 9.0])
    contenders = {ALONE: contender(very_first_ms=[1.0, 2.0]), ONLY_LOW: before, RESERVE: found}
    case = {"made": "2026-01-30", "judges_first_token": True, "patient_s": LONG_S + 1, "contenders": contenders}
    report.data["cases"] = {"case": case}
    tables.judge(report)
    held = [target.holds for target in report.targets if "first token" in target.name]
    assert held == [True, False]
    (table,) = report.tables
    assert "case, 2026-01-30" in table.title, "a case of an earlier day says so"
    assert [row[tables.FIRST_ONE] for row in table.rows] == ["1 / 2", "", "7 / 9"], "they found the reserve lent"


def test_the_share_of_low_has_its_bound() -> None:
    assert judged({"patient_picks_percent": 4.5}, judges_first_token=False)[PICKS]
    assert not judged({"patient_picks_percent": 4.4}, judges_first_token=False)[PICKS]


# -- the engine under observation --------------------------------------------------------------------------


def asked(name: str, tokens: int, lane: Lane = Lane.LOW) -> EngineRequest:
    return EngineRequest(name, COMPLETIONS, {"prompt": "go on", "max_tokens": tokens, "ignore_eos": True}, lane)


async def test_an_observed_engine_logs_whole_and_cancelled_runs(tmp_path: Path) -> None:
    log = Log()
    engine = Observed(SimulatedEngine(speed=50.0), log, sharers=2)
    await engine.start()
    await engine.start()
    reply = await engine.run(asked("whole", 20))
    several, chunks = asyncio.Event(), list[bytes]()

    def take(chunk: bytes) -> None:
        chunks.append(chunk)
        if len(chunks) == 3:
            several.set()

    long = asked("cut", 4_000)
    long.on_chunk = take
    task = asyncio.create_task(engine.run(long))
    await several.wait()
    task.cancel()
    await asyncio.wait({task})
    await engine.stop()
    assert (await engine.run(asked("between", 2))).status == 200, "the other worker still needs it"
    await engine.stop()
    log.save(tmp_path / "1.json")
    whole, cancelled, _ = Log.load(tmp_path / "1.json").runs
    assert (whole.id, whole.lane, whole.kept, whole.tokens, whole.whole) == ("whole", "low", 0, 20, True)
    assert whole.first_ms == reply.first_token_ms
    assert (cancelled.id, cancelled.kept, cancelled.whole) == ("cut", 0, False)
    assert 0 < cancelled.tokens < 4_000
    assert len(log.token_times[1]) >= len(chunks)


def test_a_part_of_the_slots_has_as_large_a_part_of_the_cache() -> None:
    whole = SimulatedEngine()
    part = Slots(Observed(whole, Log()), 8).capacity()
    assert (part.slots, part.kv_tokens) == (8, (whole.capacity().kv_tokens or 0) // 4)


# -- sizes -------------------------------------------------------------------------------------------------


def test_urgent_requests_are_as_many_as_asked_and_the_same_every_time() -> None:
    case = Case(2, 0.5, 3, 400)
    found = arrivals(case, case.tokens_per_s)
    assert found == arrivals(case, case.tokens_per_s)
    assert len(found) * 32 / 400 == pytest.approx(0.5 * case.tokens_per_s, rel=0.1)
    assert max(found) < 400


def test_they_come_one_by_one_where_that_is_asked() -> None:
    assert arrivals(Case(1, 0.0, 4, 35.0, every_s=10.0), 1_000.0) == [10.0, 20.0, 30.0]
    assert arrivals(Case(1, 0.0, 4, 35.0, every_s=math.inf), 1_000.0) == []


@pytest.mark.parametrize("case", [*GROUPS["normal"], *GROUPS["behind-low"]])
def test_cases_of_normal_are_longer_than_the_minute_after_which_a_reserve_is_lent(case: Case) -> None:
    assert {case.running, case.comes} & {"normal"}
    assert {ONLY_LOW, RESERVE} <= set(case.contenders)
    assert case.patient_s + case.seconds > LONG_S
    assert case.every_s < LONG_S < case.patient_s or case.patient_s < LONG_S


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for group in GROUPS.values() for case in group]
    assert len(set(names)) == len(names)
    assert {case.rounds for case in chosen(quick=True)} == {1}
    assert len(chosen(quick=True)) < len(chosen(quick=False))
    assert {case.rounds for case in chosen(quick=False, rounds=3)} == {3}
    assert _groups("1,vllm") == ("1", "vllm")


def test_an_outcome_reads_what_a_result_hash_says() -> None:
    assert Outcome.read([b"succeeded", b"1000", b"5", b"0.5", b"12.5"]) == Outcome("succeeded", 1000.0, 1018.0)
    assert Outcome.read([b"expired", b"1000", None, None, None]) == Outcome("expired", 1000.0, None)
    assert Outcome.read([None] * 5) == Outcome("", 0.0, None)
