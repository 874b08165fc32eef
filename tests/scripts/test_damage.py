"""Damaged keys of a queue under load: ten seconds later all is in order, and no request is lost or ends twice."""

from __future__ import annotations

import pytest

from streamfleet.common.keys import Keys
from tests.scripts import damage
from tests.scripts.conftest import open_queue
from tests.scripts.damage import Damaged


async def play(url: str, seed: int) -> None:
    """The damage of a seed, on an emptied server."""
    async with open_queue(url) as queue:
        await damage.play(queue, seed)


MENDED = (109, 810177)
"""Seeds of a restored `:firsts`, in which a home stands for which nothing waits, and of both keys with counters."""


@pytest.mark.parametrize("seed", [*range(8), *MENDED])
async def test_whatever_is_damaged_is_made_anew(redis_url: str, seed: int) -> None:
    await play(redis_url, seed)


DERIVED = sorted(set(Keys("q").typed(derived=True)) - {Keys("q").maintain})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if at % 6 else []) for at, name in enumerate(DERIVED)]
)
async def test_each_key_alone_is_made_anew_once_it_is_deleted(redis_url: str, name: str) -> None:
    async with open_queue(redis_url) as queue:
        await Damaged(queue, 1).play((name, "deleted"))


LEFT = ("lanes", "counts", "tickets", "delayed", *(f"ready:high{kind}" for kind in ("", ":firsts", ":t:t1", ":ht:1")))


@pytest.mark.parametrize("name", LEFT)
async def test_without_any_request_too_what_is_damaged_is_made_anew(redis_url: str, name: str) -> None:
    async with open_queue(redis_url) as queue:
        await Damaged(queue, 1).play_idle(f"{queue.keys.base}{name}")


async def test_a_long_lane_is_made_anew_within_ten_seconds_beside_running_work(redis_url: str) -> None:
    async with open_queue(redis_url) as queue:
        await Damaged(queue, 1).play_long(20_000)


async def test_what_it_costs_is_measured(redis_url: str) -> None:
    async with open_queue(redis_url) as queue:
        assert "2000 made anew" in await damage.made_anew(queue.with_limits(now_ms=None, patience_ms=10**7), 2_000)
