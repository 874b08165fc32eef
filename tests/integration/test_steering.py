"""Operators' commands to a fleet at work: `pause`, `resume`, `drain`."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.cli_processes import Ended, piped
from tests.integration.worker_process import Fleet, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill


async def told(fleet: Fleet, *arguments: str) -> Ended:
    """A command, run beside this event loop."""
    return await asyncio.to_thread(piped, fleet.url, *arguments)


async def test_a_paused_lane_rests_while_others_run_and_goes_on_when_resumed(fleet: Fleet) -> None:
    await fleet.worker("w1")
    paused = await told(fleet, "pause", "low")
    assert (paused.returncode, paused.stdout) == (0, "low       paused\n")
    resting = await fleet.add(lane="low")
    assert (await fleet.result(await fleet.add(lane="normal"))).ok
    assert await fleet.broker.result(resting) is None
    assert (await told(fleet, "pause", "low")).stdout == "low       paused (as before)\n"
    assert (await told(fleet, "resume")).stdout.count("goes on (as before)") == 3
    assert (await fleet.result(resting)).ok
    await fleet.settled()


async def test_a_worker_that_is_told_to_drain_leaves_nothing_undone_and_another_stays(fleet: Fleet) -> None:
    leaving = await fleet.worker("w1", lease_ms=5_000)
    running = await fleet.add(body=chat(1.0))
    await fleet.runs({"w1": 1})
    staying = await fleet.worker("w2", lease_ms=5_000)
    ended = await told(fleet, "drain", "w1")
    assert (ended.returncode, ended.stdout) == (0, "w1 has left\n"), ended.stderr
    assert await leaving.ended() == 0
    result = await fleet.result(running)
    assert (result.ok, result.attempt) == (True, 1)
    assert (await fleet.result(await fleet.add())).worker == "w2"
    assert staying.alive
    assert not staying.events("told_to_drain")


async def test_told_twice_it_hands_back_what_it_runs(fleet: Fleet) -> None:
    worker = await fleet.worker("w1")
    await fleet.add(body=chat(60))
    await fleet.runs({"w1": 1})
    late = await told(fleet, "drain", "w1", "--timeout", "0")
    assert late.returncode == 1
    assert "tell it again" in late.stderr
    await worker.logged("draining")
    assert (await told(fleet, "drain", "w1", "--no-wait")).stdout == "w1 was told to drain\n"
    assert await worker.ended() == 0
    assert await fleet.running() == {}
    assert (await fleet.broker.audit()).outstanding == 1


async def test_only_a_worker_that_is_there_can_be_drained(fleet: Fleet) -> None:
    await fleet.worker("w1")

    async def known() -> bool:
        return "w1" in await fleet.broker.workers()

    await eventually(known)
    wrong = await told(fleet, "drain", "w9")
    assert (wrong.returncode, wrong.stderr) == (1, "no worker is called w9; there are: w1\n")


async def test_names_that_anybody_may_write_do_not_command_the_terminal(fleet: Fleet) -> None:
    await fleet.redis.hset(fleet.broker.keys.workers, "\x1b[2Jw\n1", "{}")
    refused = await told(fleet, "drain", "w9")
    assert refused.returncode == 1
    assert refused.stderr == "no worker is called w9; there are: \\x1b[2Jw\\n1\n"


async def test_a_silent_worker_cannot_be_told(fleet: Fleet) -> None:
    """Otherwise an operator waits for it in vain."""
    await fleet.redis.hset("{default}:workers", "w1", '{"state": "ready", "seen_ms": 1}')
    told_so = await told(fleet, "drain", "w1")
    assert told_so.returncode == 1
    assert "w1 is silent" in told_so.stderr
    assert not await fleet.redis.exists("{default}:cancels")


async def test_an_unknown_lane_is_named(fleet: Fleet) -> None:
    wrong = await told(fleet, "pause", "urgent")
    assert wrong.returncode == 2
    assert "urgent" in wrong.stderr
