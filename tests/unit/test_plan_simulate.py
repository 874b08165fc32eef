"""The simulated fleet: closed forms where there are any, the simulated engine itself, and the fleet's own order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import COMPLETIONS, Lane
from streamfleet.operator.plan.arrivals import Arrival, Traffic
from streamfleet.operator.plan.figures import figures
from streamfleet.operator.plan.profile import NO_LIMIT, EngineProfile
from streamfleet.operator.plan.simulate import WATCHERS, Fleet, Lanes, RequestTimes, Run, Simulation
from streamfleet.worker.engine.base import EngineRequest
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU, Profile

NORMAL = Lane.NORMAL


def engine(
    slots: int = 1, *, prefill_s: float = 0.0, step_s: float = 1.0, slower_s: float | None = None, kv: int = NO_LIMIT
) -> EngineProfile:
    """Steps take `step_s` alone, and `slower_s` with two or more."""
    throughput = ((1, 1 / step_s), (2, 2 / (step_s if slower_s is None else slower_s)))
    return EngineProfile(Profile("test", prefill_s, throughput, slots, kv, NO_LIMIT, 0.0))


def arrival(at_s: float, tokens: int = 1, due_s: float | None = None, lane: Lane = NORMAL, prompt: int = 1) -> Arrival:
    return Arrival(at_s, lane, prompt, tokens, due_s)


def run(profile: EngineProfile, arrivals: list[Arrival], workers: int = 1, **settings: int) -> Run:
    fleet = Fleet(profile, workers, settings.get("prefetch", 0), settings.get("batch_size", 0))
    return Simulation(fleet, arrivals).run()


def totals(found: Run) -> list[float | None]:
    return [None if each.total_s is None else round(each.total_s, 6) for each in found.times]


def waits(found: Run) -> list[float | None]:
    return [None if each.waited_s is None else round(each.waited_s, 6) for each in found.times]


def test_d_d_1_overloaded_each_waits_for_all_before_it() -> None:
    found = run(engine(), [arrival(0.5 * at) for at in range(50)])
    assert waits(found) == [0.5 * at for at in range(50)]
    assert figures(1, 1, [found]).used == pytest.approx(1.0)


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_m_d_1_waits_as_pollaczek_and_khinchine_say(busy: float) -> None:
    traffic = Traffic(busy, 1, 1, shape="fixed")
    found = [run(engine(), traffic.arrivals(seed, 8_000)) for seed in (1, 2)]
    waited = [each.waited_s or 0.0 for run in found for each in run.times]
    assert sum(waited) / len(waited) == pytest.approx(busy / (2 * (1 - busy)), rel=0.08)
    assert figures(1, 1, found).used == pytest.approx(busy, rel=0.05)


def test_a_prompt_is_read_before_the_first_step_and_holds_up_the_others() -> None:
    profile = engine(2, prefill_s=0.1, step_s=1.0, slower_s=1.5)
    found = run(profile, [arrival(0.0, 3, prompt=10), arrival(1.5, 1, prompt=20)])
    # Alone: 1 s of reading, a step until 3 s. Then 2 s of reading and a step of 1.5 s together until 5.5 s; one more.
    # The second one came in the first step, which ended at 2 s.
    assert [round(each.first_token_s or 0, 6) for each in found.times] == [2.0, 4.0]
    assert totals(found) == [6.5, 4.0]


def test_steps_are_taken_together_up_to_the_slots() -> None:
    found = run(engine(2, slower_s=1.5), [arrival(0.0, 2), arrival(0.0, 2), arrival(0.0, 2)])
    assert totals(found) == [3.0, 3.0, 5.0]


def test_what_does_not_fit_the_kv_cache_waits() -> None:
    whole = run(engine(2, kv=1_000), [arrival(0.0, 100, prompt=300), arrival(0.0, 100, prompt=300)])
    tight = run(engine(2, kv=700), [arrival(0.0, 100, prompt=300), arrival(0.0, 100, prompt=300)])
    assert totals(whole) == [100.0, 100.0]
    assert totals(tight) == [100.0, 200.0]


def test_what_turns_out_too_large_waits_inside_the_engine() -> None:
    """A worker counts on requests like those before; the engine looks at each."""
    large = [arrival(0.5, 100, prompt=300) for _ in range(2)]
    found = run(engine(3, kv=700), [arrival(0.0, 5, prompt=5), *large])
    assert waits(found) == [0.0, 0.0, 0.0]
    assert totals(found) == [5.0, 100.5, 200.5]


def test_prefetched_ones_join_the_very_next_step() -> None:
    arrivals = [arrival(0.0, 2), arrival(0.0, 5), arrival(0.0, 2)]
    without, prefetched = (run(engine(2), arrivals, prefetch=prefetch) for prefetch in (0, 1))
    assert (waits(without), totals(without)) == ([0.0, 0.0, 2.0], [2.0, 5.0, 5.0])
    # Without it, the freed slot is filled one step later: the pull comes when the next step is under way.
    assert (waits(prefetched), totals(prefetched)) == ([0.0, 0.0, 0.0], [2.0, 5.0, 4.0])


def test_the_batch_size_limits_what_runs_together() -> None:
    arrivals = [arrival(0.0, 2) for _ in range(4)]
    assert totals(run(engine(4), arrivals)) == [2.0] * 4
    assert totals(run(engine(4), arrivals, batch_size=2)) == [2.0, 2.0, 4.0, 4.0]


class Feeding:
    """A clock that jumps as far as is slept, and hands in what is due meanwhile."""

    def __init__(self, due: list[tuple[float, Callable[[], None]]]) -> None:
        self.now_s, self.due = 0.0, due

    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        for _ in range(4):  # whoever was answered now sees this moment
            await asyncio.sleep(0)
        until_s = self.now_s + seconds
        while self.due and self.due[0][0] < until_s:
            await self.hand_in()
        self.now_s = until_s

    async def hand_in(self) -> None:
        at_s, submit = self.due.pop(0)
        self.now_s = max(self.now_s, at_s)
        submit()
        await asyncio.sleep(0)


async def test_it_is_as_fast_as_the_simulated_engine() -> None:
    """The same requests at the same times in both: not two models, but one. No prompt begins like another."""
    profile = EngineProfile(replace(SMOLLM2_135M_CPU, jitter=0.0, slots=4))
    arrivals = Traffic(4.0, 60, 30).arrivals(3, 60)
    ended: dict[int, float] = {}
    clock = Feeding([])
    real = SimulatedEngine(profile.engine, clock=clock)
    tasks = []

    async def ask(place: int) -> None:
        item = arrivals[place]
        body = {"prompt": [place] * item.prompt_tokens, "max_tokens": item.output_tokens, "ignore_eos": True}
        assert (await real.run(EngineRequest(f"r{place}", COMPLETIONS, body, NORMAL))).status == 200
        ended[place] = clock.now_s - item.at_s

    def submit(place: int) -> None:
        tasks.append(asyncio.create_task(ask(place)))

    clock.due = [(item.at_s, lambda place=place: submit(place)) for place, item in enumerate(arrivals)]  # type: ignore[misc]
    await real.start()
    while clock.due:
        if not real.running and not real._waiting:
            await clock.hand_in()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    await real.stop()
    found = run(profile, arrivals, prefetch=1_000)
    assert [each.total_s for each in found.times] == pytest.approx([ended[place] for place in range(60)], abs=1e-6)


def test_earlier_deadlines_go_first_and_equal_ones_in_order_of_arrival() -> None:
    found = run(engine(), [arrival(0.0), *(arrival(0.1, due_s=due) for due in (9.0, 5.0, 5.0, 20.0))])
    assert totals(found)[1:] == [3.9, 1.9, 2.9, 4.9]


def test_without_a_deadline_the_patience_ranks() -> None:
    lanes = Lanes((0, 0, 0, 0), patience_s=10.0)
    lanes.add(NORMAL, 0, 0.0, None)
    lanes.add(NORMAL, 1, 0.0, 11.0)
    lanes.add(NORMAL, 2, 0.0, 9.0)
    assert [lanes.pick() for _ in range(3)] == [2, 0, 1]


def test_shares_are_kept_as_by_the_pull_script() -> None:
    """The same picks as tests/scripts/test_pull_choose.py asks of the script."""
    lanes = Lanes((0, 0, 100, 50), 300.0)
    names: dict[int, Lane] = {}
    for lane in (Lane.CRITICAL, Lane.NORMAL, Lane.LOW):
        for _ in range(100):
            names[len(names)] = lane
            lanes.add(lane, len(names) - 1, 0.0, None)
    picked = [names[lanes.pick()] for _ in range(61)]
    assert [at for at, lane in enumerate(picked) if lane is Lane.NORMAL] == [10, 20, 30, 40, 50, 60]
    assert [at for at, lane in enumerate(picked) if lane is Lane.LOW] == [21, 41]
    assert len(lanes) == 300 - 61


def test_a_lane_saves_up_nothing_while_it_is_empty() -> None:
    lanes = Lanes((0, 0, 500, 0), 300.0)
    for place in range(6):
        lanes.add(Lane.CRITICAL, place, 0.0, None)
    before = [lanes.pick() for _ in range(3)]
    lanes.add(NORMAL, 6, 0.0, None)
    assert [*before, *(lanes.pick() for _ in range(4))] == [0, 1, 2, 3, 4, 6, 5]


def test_two_workers_watch_in_turn_and_the_bench_comes_when_they_are_full() -> None:
    watchers = next(field.default for field in fields(QueueLimits) if field.name == "watchers")
    assert watchers == WATCHERS
    profile = engine(2, step_s=1.0, slower_s=2.0)
    found = run(profile, [arrival(0.1 * at, 1) for at in range(5)], workers=3)
    # The first and the third share a worker, so do the second and the fourth; the fifth has the third to itself. The
    # third joins when the first is done, so each runs alone.
    assert totals(found) == [1.0, 1.0, 1.8, 1.8, 1.0]


def test_what_is_late_is_dropped_when_it_is_picked() -> None:
    found = run(engine(), [arrival(0.0, 5), arrival(0.1, 1, due_s=2.0), arrival(0.2, 1)])
    assert totals(found) == [5.0, None, 5.8]
    assert waits(found)[1] is None


def test_what_becomes_late_is_ended_where_it_runs_and_its_slot_is_free_with_the_next_step() -> None:
    found = run(engine(), [arrival(0.0, 9, due_s=2.5), arrival(0.1, 1)])
    assert totals(found) == [None, 3.9]
    assert waits(found) == [0.0, 2.4]
    assert figures(1, 1, [found]).late == 0.5


def test_an_answer_at_the_deadline_is_in_time() -> None:
    assert totals(run(engine(), [arrival(0.0, 2, due_s=2.0)])) == [2.0]


def test_a_prefetched_one_that_becomes_late_leaves_the_engine() -> None:
    found = run(engine(), [arrival(0.0, 5), arrival(0.1, 1, due_s=2.0), arrival(0.2, 1)], prefetch=1)
    assert totals(found) == [5.0, None, 5.8]


def test_the_way_to_the_engine_counts() -> None:
    profile = replace(engine(), pickup_ms=250.0)
    found = run(profile, [arrival(0.0), arrival(5.0, due_s=1.2)])
    assert found.times[0] == RequestTimes(0.25, 1.25, 1.25)
    assert totals(found) == [1.25, None]


def test_the_same_arrivals_come_to_the_same() -> None:
    traffic = Traffic(9.0, 50, 20, 1.0)
    profile = EngineProfile(SMOLLM2_135M_CPU)
    first, second, other = (run(profile, traffic.arrivals(seed, 500), 3) for seed in (1, 1, 2))
    assert first.times == second.times
    assert first.times != other.times
