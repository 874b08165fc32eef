"""The property test of the scripts: whatever happens to a fleet, nothing is lost, doubled, late or forgotten."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest

from streamfleet.common import scripts
from tests.scripts.conftest import open_queue
from tests.scripts.harness import Queue
from tests.scripts.histories.fleet import Fleet
from tests.scripts.histories.steps import Step, make_history
from tests.scripts.mutants import mutants_of_tests, taken_out

LENGTH, PLAYED = 150, 100
"""Steps of a history, and those of them that the tests below have time for."""
SEEDS = (*range(20), 21)
"""Together these notice each missing guard that only a history notices, within the steps that are played."""
MENDED = (316710, 500385, 700299, 1000740, 880000066, 5047, 5053, 944279)
"""Seeds of one that was deleted by hand while it waited with what it had generated, also on a full server; of one
that is nearly late; of an id that is used again; of one that is not taken for refused where another entry ended its
id; of one that goes first once another of its tenant has ended; of one that was deleted by hand while it ran; and of
one that went first, and had ended."""
LABELLED = (*range(108, 112), 149)
"""Seeds of histories with judged deadlines only, without labels, with sessions, with all labels, and with tenants some
of whose requests give way."""
TOO_EARLY = 67
"""A seed whose history shows that scripts leave no request to its home."""


async def play(url: str, steps: Sequence[Step], without: Sequence[str] = ()) -> None:
    """Run a history to its end on an emptied server, by scripts without these policies.

    Raises:
        AssertionError: something was not as it must be.
    """
    with pytest.MonkeyPatch.context() as patch:
        if without:
            patch.setattr(scripts, "source", partial(scripts.source, without=tuple(without)))
        async with open_queue(url) as queue:
            fleet = fleet_of(queue, await queue.broker.now_ms(), steps)
            fleet.model.without = without
            fleet.renewal_drops_deleted = b"redis_version:6." not in await queue.command("INFO", "server")
            await fleet.run(steps)
            await fleet.drain()


def fleet_of(queue: Queue, now: int, steps: Sequence[Step]) -> Fleet:
    """The fleet that a history's first step tells of."""
    shape = steps[0].x if steps else 0
    fleet = Fleet(queue, now, workers=3 + shape % 3, watchers=1 + shape // 3 % 2)
    fleet.shape = shape // 6
    return fleet


Play = Callable[[Sequence[Step]], Coroutine[Any, Any, None]]


async def shortened(play_steps: Play, steps: Sequence[Step], seconds: float = 20.0) -> list[Step]:
    """A failing history without the steps that it fails without."""
    best, size, give_up = list(steps), len(steps) // 2, time.monotonic() + seconds
    while size and time.monotonic() < give_up:
        at = 0
        while at < len(best) and time.monotonic() < give_up:
            shorter = best[:at] + best[at + size :]
            if await _fails(play_steps(shorter)):
                best = shorter
            else:
                at += size
        size //= 2
    return best


async def _fails(played: Coroutine[Any, Any, None]) -> bool:
    try:
        await played
    except Exception:  # noqa: BLE001 - a script that aborts fails as well
        return True
    return False


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_history_breaks_an_invariant(redis_url: str, seed: int) -> None:
    await tell_shortest(seed, make_history(seed, LENGTH)[:PLAYED], lambda steps: play(redis_url, steps))


@pytest.mark.parametrize("seed", MENDED)
async def test_what_the_histories_complained_of_is_mended(redis_url: str, seed: int) -> None:
    await play(redis_url, make_history(seed, LENGTH))


@pytest.mark.parametrize("seed", range(40, 44))
async def test_nor_on_any_release(any_redis_url: str, seed: int) -> None:
    await tell_shortest(seed, make_history(seed, LENGTH)[:PLAYED], lambda steps: play(any_redis_url, steps))


@pytest.mark.parametrize("left_out", ["tenants", "homes", "tenants homes", "all"])
async def test_a_queue_works_without_policies(redis_url: str, left_out: str) -> None:
    """A label that only these policies know means nothing. Histories without all policies use ids again."""
    all_others = [name for name in scripts.POLICIES if name != "reused"]
    without = all_others if left_out == "all" else left_out.split()
    for seed in LABELLED:
        await tell_shortest(seed, make_history(seed, LENGTH)[:PLAYED], lambda steps: play(redis_url, steps, without))


async def test_a_request_that_is_taken_from_its_home_too_early_is_noticed(redis_url: str) -> None:
    (mutant,) = (
        each for each in mutants_of_tests() if each.guard == "affinity: it is left to its home for a whole second"
    )
    with taken_out(mutant), pytest.raises(AssertionError, match=r"waits for w[0-9]+, for [0-9]+ ms only"):
        await play(redis_url, make_history(TOO_EARLY, LENGTH))


async def tell_shortest(seed: int, steps: Sequence[Step], play_steps: Play) -> None:
    """Run a history; when it fails, say which steps are enough for that."""
    try:
        await play_steps(steps)
    except Exception as error:
        told = "\n".join(map(str, await shortened(play_steps, steps)))
        raise AssertionError(f"seed {seed} fails: {error}\nshortened to:\n{told}") from error


if __name__ == "__main__":  # python -m tests.scripts.test_histories URL FIRST LAST [POLICY THAT IS LEFT OUT ...]
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        asyncio.run(play(sys.argv[1], make_history(number, LENGTH), sys.argv[4:]))
