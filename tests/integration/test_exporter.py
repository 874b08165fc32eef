"""The exporter against real Redis: what it says is what happened, at a price that does not grow, and nothing stale."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from streamfleet.common.broker.types import Completion, Lease, Retry
from streamfleet.common.connection import Connection
from streamfleet.common.errors import openai_error
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.operator.exporter.endpoint import READ_TIMEOUT_S
from streamfleet.operator.exporter.families import FAMILIES
from streamfleet.operator.exporter.view import STATES
from streamfleet.operator.tenants import MOST_SHOWN
from tests.broker import Broker
from tests.integration.cli_processes import streamfleet
from tests.integration.exporter_process import ExporterProcess, Page, exporter
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.kill
BODY = json.dumps({"prompt": "hi"})
ERROR = openai_error("it did not work", "server_error", None, "broken")
HOUR_MS = 3_600_000


class Queue:
    """A queue whose history a test makes, step by step."""

    def __init__(self, url: str) -> None:
        self.broker = Broker(Connection(url, patience_s=0), Keys("default"), QueueLimits())

    async def add(self, lane: Lane, number: int = 1, **fields: Any) -> None:
        """By plain XADD, in one round trip."""
        flat = [part for pair in {"body": BODY, **fields}.items() for part in pair]
        words = ("XADD", self.broker.keys.lane(lane), "*", *flat)
        await self.broker.connection.pipeline([words] * number)

    async def stage(self) -> None:
        """Bring all that came in order, as the housekeeping does."""
        while (await self.broker.pull("w1", 0, stage_entries=5_000)).staged:
            pass

    async def claim(self, number: int = 1) -> list[Lease]:
        return [claim.lease for claim in (await self.broker.pull("w1", number)).claims]

    async def end(self, lease: Lease, status: Status) -> None:
        error = "" if status is Status.SUCCEEDED else ERROR
        await self.broker.complete("w1", [Completion(lease, status, {"http_status": "200"}, "", error)])

    async def now_ms(self) -> int:
        return await self.broker.now_ms()


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    made = Queue(redis_url)
    await made.broker.ensure_groups()
    yield made
    await made.broker.close()


@pytest.fixture
async def any_queue(any_redis_url: str) -> AsyncIterator[Queue]:
    made = Queue(any_redis_url)
    await made.broker.ensure_groups()
    yield made
    await made.broker.close()


async def page_of(exporting: ExporterProcess, path: str = "/metrics") -> Page:
    return await asyncio.to_thread(exporting.get, path)


async def set_pace(queue: Queue, per_second: float) -> None:
    """Writes a pace as the workers' housekeeping measures it."""
    pace = json.dumps({"took": 10_000, "left": 10 * per_second})
    await queue.broker.connection.command("SET", queue.broker.keys.pace, pace)


# -- values ------------------------------------------------------------------------------------------------


async def test_a_queue_that_nobody_has_used_is_empty(redis_url: str) -> None:
    with exporter(redis_url) as exporting:
        page = await page_of(exporting)
        assert page.value("streamfleet_exporter_up") == 1
        assert page.value("streamfleet_queue_outstanding") == 0
        for lane in LANES:
            assert page.value("streamfleet_queue_entries", lane=lane) == 0
            assert page.value("streamfleet_queue_oldest_age_seconds", lane=lane) == 0


async def test_the_values_are_what_happened(any_queue: Queue, any_redis_url: str) -> None:
    """On every release of Redis."""
    queue = any_queue
    soon = await queue.now_ms() + HOUR_MS
    await queue.add(Lane.HIGH, 6, deadline=str(soon))
    first, second, third, fourth = await queue.claim(4)
    await queue.end(first, Status.SUCCEEDED)
    await queue.end(second, Status.FAILED)
    await queue.broker.retry_later("w1", [Retry(third, HOUR_MS // 2, ERROR)], 5)
    await queue.add(Lane.LOW, 2)
    await queue.stage()
    await queue.add(Lane.LOW, 3)  # nobody has brought these in order
    await queue.broker.heartbeat("w1", {"state": "ready", "slots": 8, "running": 1})
    with exporter(any_redis_url) as exporting:
        page = await page_of(exporting)
    lanes: dict[str, tuple[float, ...]] = {"high": (4, 2, 1), "low": (5, 2, 0), "normal": (0, 0, 0)}
    for lane, values in lanes.items():
        names = ("entries", "ready", "running")
        assert tuple(page.value(f"streamfleet_queue_{name}", lane=lane) for name in names) == values, lane
    assert fourth.stream_id  # it runs
    assert page.value("streamfleet_queue_delayed") == 1
    assert page.value("streamfleet_queue_dead_letters") == 1
    assert page.value("streamfleet_queue_outstanding") == 9
    assert page.value("streamfleet_queue_requests_added_total") == 11
    ended = {status: page.value("streamfleet_queue_requests_ended_total", status=status) for status in Status}
    assert ended == {status: float(status in (Status.SUCCEEDED, Status.FAILED)) for status in Status}
    assert page.value("streamfleet_queue_workers", state="ready") == 1
    assert page.value("streamfleet_queue_worker_slots") == 8
    assert page.value("streamfleet_queue_worker_running") == 1
    assert 0 < (page.value("streamfleet_queue_oldest_age_seconds", lane="high") or 0) < 60


async def test_pressure_follows_from_what_the_fleet_does(queue: Queue, redis_url: str) -> None:
    deadline = await queue.now_ms() + 60_000
    await queue.add(Lane.NORMAL, 1_000, deadline=str(deadline))
    await queue.stage()
    with exporter(redis_url) as exporting:
        assert (await page_of(exporting)).value("streamfleet_queue_work_seconds") is None, "nobody has measured"
        for lease in await queue.claim(100):
            await queue.end(lease, Status.SUCCEEDED)
        await set_pace(queue, 30)
        page = await page_of(exporting)
    speed = page.value("streamfleet_queue_throughput") or 0
    assert speed == 30
    assert page.value("streamfleet_queue_work_seconds") == 30
    pressure = page.value("streamfleet_queue_deadline_pressure_seconds", lane="normal") or 0
    assert 900 / speed - 60 <= pressure < 900 / speed - 30, "less the time until the deadline"
    assert page.value("streamfleet_queue_deadline_pressure_seconds", lane="low") is None


async def test_a_look_serves_all_who_ask_within_a_while(queue: Queue, redis_url: str) -> None:
    with exporter(redis_url, reuse_ms=60_000) as exporting, redis.Redis.from_url(redis_url) as client:
        first = await page_of(exporting)
        client.config_resetstat()
        await queue.add(Lane.NORMAL)
        with ThreadPoolExecutor(10) as crowd:
            pages = list(crowd.map(lambda _: exporting.get(), range(10)))
        assert {page.value("streamfleet_queue_outstanding") for page in pages} == {0.0}
        assert first.value("streamfleet_queue_outstanding") == 0
        spent: Any = client.info("commandstats")
    assert not {"cmdstat_evalsha", "cmdstat_zrange", "cmdstat_xrange"} & set(spent)


# -- cost --------------------------------------------------------------------------------------------------


async def test_a_scrape_costs_as_much_with_a_long_queue_as_with_a_short_one(queue: Queue, redis_url: str) -> None:
    with exporter(redis_url) as exporting, redis.Redis.from_url(redis_url) as client:

        def spent() -> dict[str, int]:
            client.config_resetstat()
            exporting.get()
            stats: Any = client.info("commandstats")
            calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
            # The queue's configuration is read by HGETALL at most once a second, so not by every scrape.
            return {
                name: number for name, number in calls.items() if name not in ("info", "config|resetstat", "hgetall")
            }

        await asyncio.to_thread(spent)  # the script is known from here on
        counts = []
        for number in (40, 19_960):
            for lane in LANES:
                await queue.add(lane, number // 2, ttl=str(HOUR_MS))
                await queue.stage()
                await queue.add(lane, number // 2)
            counts.append(await asyncio.to_thread(spent))
        assert await queue.broker.connection.command("XLEN", queue.broker.keys.lane(Lane.LOW)) == 20_000
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) < 150
    assert counts[0]["evalsha"] == 1


# -- hostile input -----------------------------------------------------------------------------------------


async def test_no_label_comes_from_what_anybody_wrote(queue: Queue, redis_url: str) -> None:
    keys, send = queue.broker.keys, queue.broker.connection.command
    with exporter(redis_url) as exporting:
        before = set((await page_of(exporting)).samples)
        for lane in LANES:
            await send("XADD", keys.lane(lane), "*", "\x00\xff", 'x"} 1\nfoo{bar="', "deadline", "nan", "lane", "evil")
            await queue.add(lane, id='evil{"', deadline="-1", tenant="evil")
            await send("ZADD", keys.ready(lane), "inf", "junk", "-inf", "evil", "5", "M1790000000000-A0")
        await queue.stage()
        await send("ZADD", keys.delayed, "1", "evil|x", "2", "9|9-9")
        await send("HSET", keys.counts, "evil", "1", "succeeded", "many", "failed", "9" * 40)
        state = {"state": "evil", "slots": 10**400, "running": [1], "seen_ms": await queue.now_ms(), "evil": "evil"}
        await send("HSET", keys.workers, "evil\n", json.dumps(state), "worse", "[[[", "b\xff", "{}", "", "null")
        page = await page_of(exporting)
    assert page.value("streamfleet_exporter_up") == 1, page.text
    per_lane = {"streamfleet_queue_deadline_pressure_seconds"}
    samples = {(name, labels) for name, labels in page.samples if not name.startswith("streamfleet_tenant_")}
    more = {(name, labels) for name, labels in samples - before if name not in per_lane}
    assert not {name for name, _ in more if name.startswith("streamfleet_") and "throughput" not in name} - {
        "streamfleet_queue_work_seconds"
    }
    values = {value for _, labels in page.samples for label, value in labels if label in ("lane", "state", "status")}
    assert values == {*LANES, *STATES, *Status}
    assert "evil" not in page.text.replace('tenant="evil"', "")
    assert page.value("streamfleet_queue_workers", state="other") == 1
    assert page.value("streamfleet_queue_worker_slots") == 0


async def test_the_series_of_tenants_are_bounded(queue: Queue, redis_url: str) -> None:
    for number in range(MOST_SHOWN + 10):
        await queue.add(Lane.LOW, tenant=f"t{number}")
    await queue.stage()
    with exporter(redis_url) as exporting:
        page = await page_of(exporting)
    waiting = [labels for name, labels in page.samples if name == "streamfleet_tenant_waiting"]
    assert len(waiting) == MOST_SHOWN + 1
    assert page.value("streamfleet_tenant_waiting", tenant="other") == 10


async def test_a_key_of_another_type_is_said_and_not_guessed_at(queue: Queue, redis_url: str) -> None:
    await queue.broker.connection.command("SET", queue.broker.keys.workers, "by hand")
    with exporter(redis_url) as exporting:
        page, ready = await page_of(exporting), await page_of(exporting, "/readyz")
        assert page.value("streamfleet_exporter_up") == 0
        assert not {name for name in page.names() if name.startswith("streamfleet_queue_")}
        assert ready.status == 503
        assert "streamfleet audit --repair" in ready.text


# -- Redis away --------------------------------------------------------------------------------------------


def test_what_redis_does_not_answer_is_not_made_up() -> None:
    with RedisServer(newest(find_servers())) as server, exporter(server.url) as exporting:
        assert exporting.get().value("streamfleet_queue_outstanding") == 0
        assert exporting.get("/readyz").status == 200
        server.stop()
        page, ready = exporting.get(), exporting.get("/readyz")
        assert page.value("streamfleet_exporter_up") == 0
        assert not {name for name in page.names() if name.startswith("streamfleet_queue_")}
        assert ready.status == 503
        assert f"127.0.0.1:{server.port}" in ready.text
        assert exporting.get("/livez").status == 200, "a restart would not bring Redis back"
        server.restart()
        eventually_blocking(lambda: exporting.get().value("streamfleet_exporter_up") == 1, 10, "it is up again")
        assert exporting.get().value("streamfleet_queue_outstanding") == 0
        assert exporting.get("/readyz").status == 200


def test_it_starts_before_redis_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    with exporter(f"redis://127.0.0.1:{nobody}/0") as exporting:
        assert exporting.get().value("streamfleet_exporter_up") == 0
        assert exporting.get("/readyz").status == 503


def test_a_redis_that_hangs_is_given_up(redis_server: RedisServer, redis_url: str) -> None:
    with exporter(redis_url) as exporting:
        assert exporting.get().value("streamfleet_exporter_up") == 1
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            asked = time.monotonic()
            alive, answered = exporting.get("/livez"), time.monotonic()
            page = exporting.get()
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        assert (alive.status, answered - asked < READ_TIMEOUT_S) == (200, True), "a probe does not wait for Redis"
        assert page.value("streamfleet_exporter_up") == 0
        eventually_blocking(lambda: exporting.get().value("streamfleet_exporter_up") == 1, 10, "it is up again")


# -- the command -------------------------------------------------------------------------------------------


async def test_the_page_has_every_family_and_no_workers_metrics(queue: Queue, redis_url: str) -> None:
    await queue.broker.heartbeat("w1", {"state": "ready", "credit": 3})
    await queue.add(Lane.NORMAL, deadline=str(await queue.now_ms() + HOUR_MS), tenant="a")
    await queue.stage()
    with exporter(redis_url) as exporting:
        await set_pace(queue, 1)
        names = (await page_of(exporting)).names()
    assert names == {family.name for family in FAMILIES} | {"streamfleet_build_info"}


def test_wrong_settings_are_named(redis_url: str) -> None:
    ended = streamfleet(redis_url, "exporter", STREAMFLEET_EXPORTER_PORT="70000", STREAMFLEET_QUEUE="{}")
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["STREAMFLEET_QUEUE", "STREAMFLEET_EXPORTER_PORT"]
    assert streamfleet("http://x", "exporter").stderr.startswith("streamfleet: REDIS_URL")
