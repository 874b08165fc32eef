"""Every guard of the adaptive latency_limit, taken out: a test must notice."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from streamfleet.worker import latency_limit
from tests.unit import test_worker_batching_limit as tests

SOURCE = inspect.getsource(latency_limit)


@dataclass(frozen=True)
class Mutant:
    """A guard taken out.

    Attributes:
        guard: what is missing then.
        old: text in the source that is the guard.
        new: what stands in its place.
        caught_by: name of the test that must fail, without ``test_it_``.
        argument: for a test that takes one.
    """

    guard: str
    old: str
    new: str
    caught_by: str
    argument: Any = None


MUTANTS = (
    Mutant("it is at least 1", "max(1.0, self._limit / 2,", "max(0.0, self._limit / 2,", "never_passes_its_bounds"),
    Mutant(
        "it is at most the slots", "min(self._most, 2 * self._limit,", "min(2 * self._limit,", "never_passes_its_bounds"
    ),
    Mutant("fewer slots count at once", "= min(self._limit, most)", "= self._limit", "is_bound_at_once_by_fewer_slots"),
    Mutant("it decreases", "if latency_s > self._target_s:", "if False:", "comes_back_after_a_passing_slowness"),
    Mutant(
        "it decreases as far as latency says",
        "max(1.0, self._limit / 2, min(self._limit, math.floor(right)))",
        "max(1.0, self._limit - 0.1)",
        "comes_back_after_a_passing_slowness",
    ),
    Mutant(
        "it grows",
        "min(self._most, 2 * self._limit, max(half_way, self._limit + PROBE))",
        "self._limit",
        "settles_at_the_most_that_keeps_the_target",
        3.0,
    ),
    Mutant("only while it is used up", " and self._peak >= self.value", "", "does_not_grow_where_it_is_not_used_up"),
    Mutant(
        "only below the target",
        "latency_s <= self._target_s * COMFORT and",
        "True and",
        "rests_a_little_below_the_target",
    ),
    Mutant(
        "it at most doubles", "2 * self._limit, max", "9 * self._limit, max", "at_most_doubles_or_halves_in_a_round"
    ),
    Mutant("it at most halves", "max(1.0, self._limit / 2,", "max(1.0,", "at_most_doubles_or_halves_in_a_round"),
    Mutant("it probes", "self._limit + PROBE", "0", "finds_out_that_two_are_as_good_as_one"),
    Mutant(
        "half of the way at most",
        "math.sqrt(self._limit * max(right, self._limit))",
        "right",
        "does_not_swing_where_latency_grows_with_the_cube",
    ),
    Mutant(
        "each request counts with its own company",
        "right = company * self._target_s / latency_s",
        "right = self._limit * self._target_s / latency_s",
        "does_not_decrease_twice_for_the_same_requests",
    ),
    Mutant(
        "a long one has more work",
        "        self._work += work",
        "        self._work += usual if (usual := self._usual_work()) is not None else work",
        "is_moved_little_by_some_very_long_or_short_answers",
        1_000,
    ),
    Mutant(
        "the usual length goes by the order of starts",
        "earlier = len(self._started) - self._running",
        "self._started, earlier = deque(r for r in self._started if r.work is not None), 128",
        "does_not_shoot_up_because_short_ones_finish_first",
    ),
    Mutant(
        "running out of time can count",
        "        return self._count(run, most_work, now)",
        "        return False",
        "decreases_where_all_requests_run_out_of_time",
    ),
    Mutant(
        "running out of time need not count",
        "usual is None or usual * (now - run.began_s) / most_work <= self._target_s",
        "False",
        "does_not_decrease_where_requests_that_run_out_of_time_may_just_be_long",
    ),
    Mutant(
        "what left does not run",
        "        self._running -= 1\n",
        "        self._running -= sys._getframe(1).f_code.co_name != 'left'\n",
        "counts_nothing_that_ended_otherwise",
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_a_guard_taken_out_is_noticed(mutant: Mutant) -> None:
    assert SOURCE.count(mutant.old) == 1, f"{mutant.old!r} is not the guard any more: change this mutant along with it"
    name = "limit_without_a_guard"
    module = ModuleType(name)
    module.__dict__["sys"] = sys
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # dataclasses look their module up
        exec(compile(SOURCE.replace(mutant.old, mutant.new), name, "exec"), module.__dict__)  # noqa: S102 - our own
        test = getattr(tests, f"test_it_{mutant.caught_by}")
        arguments = [module.LatencyLimit] + ([] if mutant.argument is None else [mutant.argument])
        with pytest.raises((AssertionError, ZeroDivisionError, ValueError)):
            test(*arguments)
