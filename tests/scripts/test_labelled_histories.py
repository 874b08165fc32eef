"""The property test of what has labels: tenants, sessions, limits and homes in random histories of whole fleets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest

from tests.scripts.by_history import MUTANTS, SEEDS, UNNOTICED
from tests.scripts.conftest import open_queue
from tests.scripts.histories.labelled_fleet import LabelledFleet, make
from tests.scripts.histories.steps import Step
from tests.scripts.mutants import mutants_of_tests
from tests.scripts.test_histories import tell_shortest

LENGTH, PLAYED = 60, 40
"""Steps of a history, and those of them that `make test` has time for; `make fuzz` plays all."""
SEEDS_PLAYED = range(31)
"""They notice as many of the guards in `by_history.SEEDS` as the first 60 seeds."""
MENDED = [258, 3635, 316643, 601170, 900647, 1300518, 172755739, 880000004, 880000042, 880000060, 880000287, 880000385]
MENDED += [880000394, 990000166]
"""Seeds of a listener that dies once it is woken, a raised limit not seen yet, dead workers that are woken, and what is
freed in the call that may take it; of a home whose first request is late, whose worker leaves, that need not be told,
and whose first is taken before others; and of two faults of the order before: a turn taken too early, an idle worker
that nobody woke."""


async def play(url: str, seed: int, steps: Sequence[Step] | None = None) -> None:
    """Run the history of a seed to its end, or some of its steps.

    Raises:
        AssertionError: something was not as it must be.
    """
    shape, all_steps = make(seed, LENGTH)
    async with open_queue(url) as queue:
        fleet = LabelledFleet(queue, shape)
        await fleet.run(all_steps if steps is None else steps)


@pytest.mark.parametrize("seed", SEEDS_PLAYED)
async def test_no_history_breaks_an_invariant(redis_url: str, seed: int) -> None:
    await tell_shortest(seed, make(seed, LENGTH)[1][:PLAYED], lambda steps: play(redis_url, seed, steps))


@pytest.mark.parametrize("seed", MENDED)
async def test_what_the_histories_complained_of_is_mended(redis_url: str, seed: int) -> None:
    await play(redis_url, seed)


@pytest.mark.parametrize("seed", range(140, 142))
async def test_nor_on_any_release(any_redis_url: str, seed: int) -> None:
    await tell_shortest(seed, make(seed, LENGTH)[1][:PLAYED], lambda steps: play(any_redis_url, seed, steps))


def test_each_guard_has_a_history_or_a_reason() -> None:
    known = {mutant.guard for mutant in (*mutants_of_tests(), *MUTANTS) if not mutant.service}
    of_policies = {guard for guard in known if guard.startswith(("tenants: ", "affinity: ", "order: ", "upkeep: "))}
    told = [*SEEDS, *chain(*UNNOTICED.values())]
    assert len(told) == len(set(told))
    assert of_policies <= set(told) <= known
