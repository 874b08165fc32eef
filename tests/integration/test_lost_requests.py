"""Requests that Redis accepted and lost: who waits is told, and may enqueue them again. Batches do so by themselves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.errors import RequestLost, ResultTimeout, StreamfleetError
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Client
from streamfleet.producer.batch import Batch, BatchOptions, Progress
from streamfleet.producer.batch_files import AppendFile
from streamfleet.producer.client import ask_to_cancel
from tests.integration.forgetting import KEYS, lose
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.waiting import eventually

BODY = {"prompt": "hi", "max_tokens": 3}


async def test_who_waits_is_told_and_enqueues_it_again(redis_url: str, raw_redis: Any) -> None:
    async with Client(redis_url) as fleet:
        lost, there = await fleet.enqueue_many([{"body": BODY, "id": name} for name in ("lost", "there")])
        waiting = [asyncio.create_task(handle.result()) for handle in (lost, there)]
        await asyncio.sleep(0)
        await lose(raw_redis, ["lost"])
        with pytest.raises(RequestLost, match="request lost: "):
            await asyncio.wait_for(waiting[0], 10)
        again = await fleet.enqueue(BODY, id="lost")
        assert not again.existing
        async with worker_inside(redis_url, small_engine()):
            assert (await again.result(timeout=10)).ok
            assert (await lost.result(timeout=10)).ok
            assert (await asyncio.wait_for(waiting[1], 10)).ok


async def test_who_reads_its_tokens_is_told_though_nobody_waited_for_results(redis_url: str, raw_redis: Any) -> None:
    async with Client(redis_url) as fleet:
        handle = await fleet.enqueue(BODY, stream=True)
        reading = asyncio.ensure_future(anext(handle.stream()))
        await asyncio.sleep(0)
        await lose(raw_redis, [handle.id])
        with pytest.raises(RequestLost):
            await asyncio.wait_for(reading, 20)


async def test_of_several_that_are_waited_for_the_lost_ones_are_named_when_all_others_have_come(
    redis_url: str, raw_redis: Any
) -> None:
    async with Client(redis_url) as fleet:
        handles = await fleet.enqueue_many([{"body": BODY, "id": f"r{number}"} for number in range(5)])
        came: list[str] = []

        async def take() -> None:
            async for result in fleet.as_completed(handles):
                came.append(result.id)  # noqa: PERF401 - what came before the error counts

        taking = asyncio.create_task(take())
        await asyncio.sleep(0)
        await lose(raw_redis, ["r1", "r3"])
        async with worker_inside(redis_url, small_engine()):
            with pytest.raises(RequestLost, match=r"request r[13] and 1 more: ") as caught:
                await asyncio.wait_for(taking, 20)
        assert sorted(came) == ["r0", "r2", "r4"]
        assert set(caught.value.ids) == {"r1", "r3"}


async def test_who_waits_for_no_longer_is_told_of_the_lost_ones_all_the_same(redis_url: str, raw_redis: Any) -> None:
    async with Client(redis_url) as fleet:
        handles = await fleet.enqueue_many([{"body": BODY, "id": name} for name in ("open", "lost")])
        waiting = asyncio.ensure_future(anext(fleet.as_completed(handles, timeout=2)))
        await asyncio.sleep(0)
        await lose(raw_redis, ["lost"])
        with pytest.raises(ResultTimeout, match=r"1 requests have no result .*; request lost: Redis accepted it"):
            await asyncio.wait_for(waiting, 10)


async def test_somebody_elses_request_may_come_yet(redis_url: str, raw_redis: Any) -> None:
    async with Client(redis_url) as fleet:
        early = asyncio.create_task(fleet.result("later"))
        seen = asyncio.create_task((await fleet.enqueue(BODY, id="seen")).result())
        await asyncio.sleep(0)
        await lose(raw_redis, ["seen"])
        with pytest.raises(RequestLost):
            await asyncio.wait_for(seen, 10)
        assert not early.done()
        await fleet.enqueue(BODY, id="later")
        async with worker_inside(redis_url, small_engine()):
            assert (await asyncio.wait_for(early, 10)).ok


async def test_one_that_is_lost_while_it_is_to_be_cancelled_is_not_cancelled(redis_url: str, raw_redis: Any) -> None:
    """By who may only ask for it, and does not hold what enqueueing gave."""
    async with Client(redis_url) as fleet:
        handle = await fleet.enqueue(BODY)
        entry, slot = handle.entry, fleet.mailbox.slot(handle.id)
        cancelling = asyncio.create_task(ask_to_cancel(fleet.broker, fleet.mailbox, handle.id, 20))
        await eventually(lambda: slot.entry == entry, 5, "Redis said that it has it")
        await lose(raw_redis, [handle.id])
        assert await asyncio.wait_for(cancelling, 10) is False


def lines_of(folder: Path, count: int) -> Path:
    source = folder / "in.jsonl"
    lines = [{"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions"} for number in range(count)]
    source.write_text("".join(json.dumps(line | {"body": BODY}) + "\n" for line in lines))
    return source


def batch_of(fleet: Client, source: Path, **options: Any) -> Batch:
    output, errors = (AppendFile(source.with_name(name)) for name in ("out.jsonl", "errors.jsonl"))
    return Batch(fleet, source, output, errors, BatchOptions("b-", **options))


async def begun(batch: Batch, rows: Any, count: int) -> tuple[asyncio.Task[Progress], list[str]]:
    """Its run, once so many of its requests are in the queue, and their ids."""
    running = asyncio.create_task(batch.run())
    await eventually(lambda: batch.progress.outstanding == count, 5)
    return running, sorted([name.partition("request:")[2] async for name in rows.scan_iter("{default}:request:*")])


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def check_all_answered(done: Progress, folder: Path, count: int) -> None:
    assert (done.succeeded, done.failed, done.outstanding) == (count, 0, 0)
    wanted = sorted(f"c{number}" for number in range(count))
    assert sorted(answer["custom_id"] for answer in answers(folder / "out.jsonl")) == wanted


async def test_a_batch_asks_again_for_what_was_lost(redis_url: str, raw_redis: Any, tmp_path: Path) -> None:
    source = lines_of(tmp_path, 20)
    async with Client(redis_url, patience_s=None) as fleet:
        batch = batch_of(fleet, source, window=8)
        running, ids = await begun(batch, raw_redis, 8)
        await lose(raw_redis, ids[:5])
        async with worker_inside(redis_url, small_engine()):
            done = await asyncio.wait_for(running, 30)
    check_all_answered(done, tmp_path, 20)


async def test_what_is_lost_while_lost_lines_wait_for_room_is_asked_again_too(
    redis_url: str, raw_redis: Any, tmp_path: Path
) -> None:
    source = lines_of(tmp_path, 450)
    settings = load(QueueSettings, redis_url=redis_url, lane_limit=450)
    async with Client(settings=settings, patience_s=None) as fleet, Client(redis_url) as other:
        batch = batch_of(fleet, source)
        running, ids = await begun(batch, raw_redis, 450)
        others = await other.enqueue_many([{"body": BODY, "lane": "low"}] * 400)  # they take the room of what is lost
        await lose(raw_redis, ids[:300])
        await eventually(lambda: batch.progress.lane_full, 10, "the first loss was noticed")
        await lose(raw_redis, ids[300:400])
        await eventually(lambda: batch.progress.outstanding == 50, 10, "so was the second")
        async with worker_inside(redis_url, small_engine(64)):
            done = await asyncio.wait_for(running, 30)
            assert all([(await each.result(timeout=10)).ok for each in others])
    check_all_answered(done, tmp_path, 450)


async def test_a_line_that_was_lost_and_is_another_by_now_is_refused(
    redis_url: str, raw_redis: Any, tmp_path: Path
) -> None:
    source = lines_of(tmp_path, 4)
    async with Client(redis_url, patience_s=None) as fleet:
        batch = batch_of(fleet, source)
        running, ids = await begun(batch, raw_redis, 4)
        lines = source.read_text().splitlines()
        source.write_text("\n".join([lines[0], lines[1].replace('"c1"', '"x1"'), "{"]) + "\n")  # c3 is not there
        await lose(raw_redis, ids)
        async with worker_inside(redis_url, small_engine()):
            done = await asyncio.wait_for(running, 30)
    assert (done.succeeded, done.failed, done.outstanding) == (1, 3, 0)
    refused = answers(tmp_path / "errors.jsonl")
    assert {each["custom_id"] for each in refused} == {"c1", "c2", "c3"}
    assert {each["error"]["code"] for each in refused} == {"conflict"}


async def test_what_has_a_result_is_not_lost_though_its_record_is_gone(redis_url: str, raw_redis: Any) -> None:
    async with Client(redis_url) as fleet:
        await fleet.broker.cancel((await fleet.enqueue(BODY, id="ended")).id)
        await raw_redis.delete(KEYS.request("ended"))
        queued = await fleet.enqueue(BODY, id="queued")
        assert await fleet.broker.known(["ended", "never there", "queued"]) == ["", None, queued.entry]


async def test_other_errors_of_waiting_are_raised(redis_url: str) -> None:
    fleet = Client(redis_url)
    async with fleet:
        arrivals = fleet.arrivals()
        arrivals.add([await fleet.enqueue(BODY)])
        taking = asyncio.create_task(arrivals.take())
        await asyncio.sleep(0)
    with pytest.raises(StreamfleetError, match="the client was closed"):
        await asyncio.wait_for(taking, 5)
