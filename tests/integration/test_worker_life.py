"""A worker process from start to end: a plain XADD answered, SIGKILL, SIGTERM, SIGSTOP, and what the keys say."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker_process import START_S, Fleet, WorkerProcess, chat
from tests.waiting import eventually

pytestmark = pytest.mark.kill
NO_RECLAIM: dict[str, Any] = {"lease_ms": 60_000}
"""Settings under which nothing can come back by a lease that ran out."""


async def test_a_plain_xadd_gets_its_keyed_answer(fleet: Fleet) -> None:
    await fleet.worker("w1")
    body = '{"messages":[{"role":"user","content":"Say hi"}],"max_tokens":8}'
    await fleet.redis.xadd("{default}:lane:high", {"id": "r-42", "body": body, "meta": "m", "tenant": "acme"})
    result = await fleet.result("r-42")
    fields = await fleet.redis.hgetall("{default}:result:r-42")
    assert fields["status"] == "succeeded"
    assert json.loads(fields["response"])["choices"][0]["message"]["content"]
    assert json.loads(fields["usage"])["completion_tokens"] == 8
    assert {name: fields[name] for name in ("lane", "worker", "attempt", "http_status", "meta", "tenant")} == {
        "lane": "high",
        "worker": "w1",
        "attempt": "1",
        "http_status": "200",
        "meta": "m",
        "tenant": "acme",
    }
    assert result.timings.total_ms is not None
    assert result.timings.first_token_ms is not None
    assert 0 < await fleet.redis.pttl("{default}:result:r-42") <= 86_400_000
    await fleet.settled()


async def test_the_keys_read_as_the_protocol_says_while_requests_run(fleet: Fleet) -> None:
    await fleet.worker("w1", batch_size=3)
    clock = (await fleet.redis.time())[0] * 1000
    for number in range(7):  # the later they come, the earlier their deadline
        await fleet.add(f"r-{number}", "high", chat(60), deadline=clock + 60_000 - number)
    await fleet.runs({"w1": 3})
    await eventually(lambda: _staged(fleet, 4), what="the rest is staged")
    pending = await fleet.redis.xpending_range("{default}:lane:high", "workers", "-", "+", 10)
    assert [row["consumer"] for row in pending] == ["w1"] * 3
    waiting = await fleet.redis.zrange("{default}:ready:high", 0, 9, withscores=True)
    assert await fleet.redis.xlen("{default}:lane:high") == 7
    assert [rank for _, rank in waiting] == sorted(rank for _, rank in waiting)
    assert len(waiting) == 4
    for number in range(7):
        assert await fleet.broker.cancel(f"r-{number}")
    await fleet.settled()
    assert await fleet.redis.xlen("{default}:lane:high") == 0


async def _staged(fleet: Fleet, count: int) -> bool:
    return bool(await fleet.redis.zcard("{default}:ready:high") == count)


async def test_kill_9_in_the_middle_loses_nothing_and_repeats_nothing(fleet: Fleet) -> None:
    first = await fleet.worker("w1", batch_size=16, patient_lanes="none")
    ids = await fleet.add_many(200, chat(0.3), reply="me")
    await eventually(lambda: _at_least(fleet, 60), 20, "60 are done")
    await fleet.runs({"w1": 16})  # they end together: a moment later there may be none
    first.send(signal.SIGKILL)
    assert await first.ended() == -signal.SIGKILL
    left = (await fleet.running())["w1"]
    assert 0 < left <= 16
    await fleet.worker("w2", batch_size=64)
    results = await fleet.results(ids)
    assert [result.status for result in results] == ["succeeded"] * 200
    assert sorted(await fleet.notified("me")) == sorted(ids)
    again = [result for result in results if result.attempt == 2]
    assert len(again) == left
    assert {result.worker for result in again} == {"w2"}
    await fleet.settled()


async def _at_least(fleet: Fleet, count: int) -> bool:
    return await fleet.finished() >= count


async def test_sigterm_lets_a_lone_worker_finish_what_fits_and_hands_back_the_rest(fleet: Fleet) -> None:
    first = await fleet.worker("w1", drain_ms=1_500, **NO_RECLAIM)
    await fleet.add("short", body=chat(1.0))
    await fleet.add("long", body=chat(60), reply="me")
    await fleet.runs({"w1": 2})
    first.send(signal.SIGTERM)
    short = await fleet.result("short")
    assert (short.worker, short.attempt, short.ok) == ("w1", 1, True)
    assert await first.ended() == 0
    await fleet.worker("w2", **NO_RECLAIM)
    await fleet.runs({"w2": 1}, within_s=10)
    (row,) = await fleet.redis.xpending_range("{default}:lane:normal", "workers", "-", "+", 10)
    assert row["times_delivered"] == 1
    assert await fleet.broker.cancel("long")
    await fleet.settled()


async def test_a_second_sigterm_hands_back_at_once(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", ["patient"], drain_ms=60_000, **NO_RECLAIM)
    ids = await fleet.add_many(5, chat(60))
    await fleet.runs({"w1": 5})
    worker.send(signal.SIGTERM)
    await worker.logged("draining")
    assert worker.alive
    worker.send(signal.SIGTERM)
    assert await worker.ended(within_s=10) == 0
    assert await fleet.running() == {}
    assert await fleet.redis.zcard("{default}:ready:normal") == len(ids)
    assert await fleet.redis.hlen("{default}:tries") == 0


async def test_an_idle_worker_leaves_soon_and_without_a_trace(fleet: Fleet) -> None:
    worker = await fleet.worker("w1", ["patient"])
    await fleet.result(await fleet.add(lane="low"))
    await eventually(lambda: fleet.redis.hget("{default}:workers", "w1"), what="w1 gave a sign of life")
    await eventually(lambda: fleet.redis.zscore("{default}:watch", "w1"), what="w1 watches")
    worker.send(signal.SIGTERM)
    assert await worker.ended(within_s=10) == 0
    assert await fleet.redis.hgetall("{default}:workers") == {}
    assert await fleet.redis.zcard("{default}:watch") == 0
    for lane in ("critical", "high", "normal", "low"):
        consumers = await fleet.redis.xinfo_consumers(f"{{default}}:lane:{lane}", "workers")
        assert [row for row in consumers if row["name"] != "~" or row["pending"]] == []


async def test_a_zombie_writes_nothing_and_works_on_afterwards(fleet: Fleet) -> None:
    first = await fleet.worker("w1")
    request = await fleet.add(body=chat(2), reply="me")
    await fleet.runs({"w1": 1})
    first.send(signal.SIGSTOP)
    second = await fleet.worker("w2")
    result = await fleet.result(request)
    assert (result.worker, result.attempt) == ("w2", 2)
    before = await fleet.redis.hgetall(f"{{default}}:result:{request}")
    second.send(signal.SIGKILL)
    await second.ended()
    first.send(signal.SIGCONT)
    await eventually(lambda: first.metric("streamfleet_leases_lost_total"), what="the zombie finds its lease gone")
    later = await fleet.result(await fleet.add())
    assert (later.worker, later.ok) == ("w1", True)
    assert await fleet.redis.hgetall(f"{{default}}:result:{request}") == before
    assert await fleet.notified("me") == [request]
    await fleet.settled()


async def test_a_request_longer_than_the_lease_stays_with_its_worker(fleet: Fleet) -> None:
    await fleet.worker("w1", lease_ms=2_000)
    request = await fleet.add(body=chat(5))
    await fleet.runs({"w1": 1})
    await fleet.worker("w2", lease_ms=2_000)
    result = await fleet.result(request)
    assert (result.worker, result.attempt, result.ok) == ("w1", 1, True)
    await fleet.settled()


async def test_a_worker_of_the_same_name_takes_over_its_former_life(fleet: Fleet) -> None:
    """A pod of a StatefulSet has the same name again: what its former life held comes back with the lease."""
    former = await fleet.worker("w1")
    request = await fleet.add(body=chat(2))
    await fleet.runs({"w1": 1})
    former.send(signal.SIGKILL)
    await former.ended()
    await fleet.worker("w1")
    result = await fleet.result(request)
    assert (result.worker, result.attempt, result.ok) == ("w1", 2, True)


async def test_a_second_worker_of_one_name_does_not_start(fleet: Fleet, tmp_path: Path) -> None:
    first = await fleet.worker("w1")
    folder = tmp_path / "second"
    folder.mkdir()
    with WorkerProcess(fleet.url, folder, "w1") as second:
        assert await second.ended(START_S) == 2
        assert "STREAMFLEET_WORKER_NAME: a worker called w1 is alive in queue default: stop it" in second.printed()
        assert not second.events("engine_starting"), "it loads no model for nothing"
    assert (await fleet.result(await fleet.add(body=chat()))).worker == "w1"
    assert first.alive


async def test_a_name_that_has_been_silent_for_long_is_free_at_once(fleet: Fleet) -> None:
    await fleet.redis.hset("{default}:workers", "w1", '{"seen_ms": 1}')
    worker = await fleet.worker("w1")
    assert not worker.events("waiting_for_name")


async def test_a_description_written_by_hand_keeps_a_worker_for_a_while_only(fleet: Fleet) -> None:
    descriptions = ("{}", '{"seen_ms": "x"}', '{"seen_ms": NaN}', "[", '{"seen_ms": 9e15}')
    written = {f"w{number}": description for number, description in enumerate(descriptions)}
    for name, description in written.items():  # a queue each, because the housekeeping of another worker mends them
        await fleet.redis.hset(f"{{{name}}}:workers", name, description)
    workers = [fleet.start(name, queue=name) for name in written]
    for worker in workers:
        await worker.ready()
        assert worker.events("waiting_for_name"), written[worker.name]


async def test_arrivals_at_the_very_moment_of_leaving_are_not_held_back(fleet: Fleet) -> None:
    """An entry that the blocking read of a leaving worker brings is there for the next one at once."""
    workers = [await fleet.worker(f"w{number}", **NO_RECLAIM) for number in range(2)]
    await eventually(lambda: _both_watch(fleet), what="both watch")
    for worker in workers:
        worker.send(signal.SIGTERM)
    ids: list[str] = []
    while any(worker.alive for worker in workers) and len(ids) < 40:
        ids.append(await fleet.add())
    assert [await worker.ended() for worker in workers] == [0, 0]
    left = await fleet.redis.xpending("{default}:lane:normal", "workers")
    assert left["pending"] == 0
    await fleet.worker("w3", **NO_RECLAIM)
    assert all(result.attempt == 1 for result in await fleet.results(ids))
    await fleet.settled()


async def _both_watch(fleet: Fleet) -> bool:
    return bool(await fleet.redis.zcard("{default}:watch") == 2)


async def test_a_bug_behind_the_engine_ends_the_worker_and_its_request_runs_elsewhere(fleet: Fleet) -> None:
    buggy = await fleet.worker("w1", ["buggy"])
    request = await fleet.add()
    assert await buggy.ended() == 4
    assert [event["loop"] for event in buggy.events("loop_broke")] == ["dispatch"]
    await fleet.worker("w2")
    assert (await fleet.result(request)).ok
