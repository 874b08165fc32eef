"""Homes of sessions with real workers: turns stay where they began, and no home that fails holds its requests up."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from streamfleet.common.results import Result
from tests.integration.worker_process import Fleet, WorkerProcess, chat

PASSED_OVER_S = 1.0
"""Longest time for which a request is left to its home."""
MORE_S = 1.0
"""Longest time until the housekeeping sees to requests that wait for a home that fails."""
ANYWAY_S = 2.5
"""Longest time without homes: the worker that fails may have been the one that heard of them; its lease is 1 s."""


async def turn(fleet: Fleet, session: str, seconds: float = 0.0) -> Result:
    """One turn of a session, to its answer."""
    return await fleet.result(await fleet.add("", "normal", chat(seconds), session=session))


async def homes(fleet: Fleet, sessions: int) -> dict[str, str]:
    """Sessions with the workers that answered their last turn; workers ask for work before, so that they are known."""
    found = {}
    for _ in range(2):
        for number in range(sessions):
            found[f"s{number}"] = (await turn(fleet, f"s{number}")).fields["worker"]
    return found


async def test_turns_of_a_session_stay_with_a_worker(fleet: Fleet) -> None:
    for name in ("w1", "w2", "w3"):
        await fleet.worker(name)
    home = await homes(fleet, 12)
    assert len(set(home.values())) > 1, "sessions spread"
    for _ in range(5):
        for session, worker in home.items():
            assert (await turn(fleet, session)).fields["worker"] == worker
    await fleet.settled()


def _worker(fleet: Fleet, name: str) -> WorkerProcess:
    return next(worker for worker in fleet.workers if worker.name == name)


async def dies(fleet: Fleet, name: str) -> None:
    _worker(fleet, name).send(signal.SIGKILL)


async def stops(fleet: Fleet, name: str) -> None:
    _worker(fleet, name).send(signal.SIGSTOP)


async def leaves(fleet: Fleet, name: str) -> None:
    _worker(fleet, name).send(signal.SIGTERM)


async def comes_back(fleet: Fleet, name: str) -> None:
    _worker(fleet, name).destroy()
    asyncio.get_running_loop().call_later(0.3, lambda: fleet.start(name))


@pytest.mark.parametrize("fails", [dies, stops, leaves, comes_back])
async def test_no_home_that_fails_holds_up_what_waits_for_it(
    fleet: Fleet, fails: Callable[[Fleet, str], Awaitable[None]]
) -> None:
    """Nothing waits longer than D and a second more than it would have."""
    for name in ("w1", "w2"):
        await fleet.worker(name)
    home = await homes(fleet, 4)
    while "w1" not in home.values():  # by chance all may be the other's
        home |= await homes(fleet, 2 * len(home))
    mine = [session for session, worker in home.items() if worker == "w1"]
    await fails(fleet, "w1")
    names = [await fleet.add("", "normal", chat(), session=mine[number % len(mine)]) for number in range(8)]
    began = time.monotonic()
    results = await fleet.results(names)
    assert time.monotonic() - began < PASSED_OVER_S + MORE_S + ANYWAY_S
    assert all(result.ok for result in results)
    passed = [int(result.fields["passed_ms"]) for result in results if "passed_ms" in result.fields]
    assert all(ms <= (PASSED_OVER_S + MORE_S) * 1000 for ms in passed)
    if fails is stops:
        _worker(fleet, "w1").send(signal.SIGCONT)
