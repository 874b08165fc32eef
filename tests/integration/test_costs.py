"""Cost of a request, counted and not timed: commands and script calls of Redis, and calls of Python's functions.

These hold on a busy machine as on an idle one. A change that makes a request dearer fails here at once; one that makes
it much cheaper should lower the numbers. docs/performance.md says what the same work takes in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import redis
import structlog

from bench.core.noop_worker import NoopEngine
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.producer.client import Client
from streamfleet.worker.engine.base import Capacity, EngineRequest
from streamfleet.worker.engine.openai import OpenAIEngine, Upstream
from tests.integration.worker_in_process import worker_inside
from tests.waiting import eventually

REQUESTS = 1_000
SLOTS = 256
BODY = {"messages": [{"role": "user", "content": "x" * 440}], "max_tokens": 16}
# Of the server, for each request: enqueued in bulk; and from the lane to its result, stored, fenced and notified.
ENQUEUED = {"xadd": 1, "get": 1, "exists": 1, "set": 1}
FINISHED = {"hset": 1, "pexpire": 1, "getex": 1, "xadd": 1}
NOTHING_ELSE = 0.8  # the rest comes once for many requests
SCRIPT_CALLS_ENQUEUE, SCRIPT_CALLS_FINISH = 1 / 100, 1 / 32
PYTHON_CALLS_ENQUEUE, PYTHON_CALLS_FINISH = 90, 345  # 88 and 339 on Python 3.11


class Calls:
    """Counts calls of Python functions and of built-in ones on this thread."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _: FrameType, event: str, __: Any) -> None:
        self.number += event in ("call", "c_call")


class Gated(NoopEngine):
    """With as many slots as the test says."""

    slots = SLOTS

    def capacity(self) -> Capacity:
        return Capacity(self.slots)


def commands(client: redis.Redis) -> Counter[str]:
    """Commands since the last reset, for each request."""
    stats: Any = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): row["calls"] / REQUESTS for name, row in stats.items()})


@pytest.fixture(autouse=True)
def _few_logs() -> Iterator[None]:
    """As in production: writing a line for each request costs more than the request."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.reset_defaults()


async def fill(url: str) -> None:
    async with Client(url, notify=True) as fleet:
        await enqueue(fleet)


async def enqueue(fleet: Client) -> None:
    await fleet.enqueue_many({"body": BODY} for _ in range(REQUESTS))


def check(spent: Counter[str], expected: dict[str, int], script_calls: float) -> None:
    assert spent.pop("evalsha") <= script_calls, "script calls for each request"
    for name, number in expected.items():
        assert spent.pop(name) <= number + 0.05, f"{name} for each request"
    assert sum(spent.values()) <= NOTHING_ELSE, f"all other commands for each request: {spent}"


async def test_enqueueing_in_bulk(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        async with Client(redis_url, notify=True) as fleet:
            await enqueue(fleet)  # from here on the scripts are known, and the connections open
            client.flushdb()
            client.config_resetstat()
            with Calls() as calls:
                await enqueue(fleet)
        check(commands(client), ENQUEUED, SCRIPT_CALLS_ENQUEUE)
    assert calls.number / REQUESTS <= PYTHON_CALLS_ENQUEUE


async def test_from_the_lane_to_the_result(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        await fill(redis_url)

        def succeeded(number: int) -> bool:
            return bool(client.hget("{default}:counts", "succeeded") == b"%d" % number)

        engine, numbers, spent = Gated(500, SLOTS), list[float](), list[Counter[str]]()
        async with worker_inside(redis_url, engine, lease_ms=60_000) as inside:
            await eventually(lambda: succeeded(REQUESTS), 30)  # whatever is done once is done
            # A busy machine splits what is done for many requests at once; the least of some rounds is the code's.
            for done in (2 * REQUESTS, 3 * REQUESTS, 4 * REQUESTS):
                engine.slots = 0
                await fill(redis_url)
                client.config_resetstat()
                with Calls() as calls:
                    engine.slots = SLOTS
                    inside.worker._in_flight.changed.set()
                    async with asyncio.timeout(30):
                        while not succeeded(done):  # noqa: ASYNC110 - each look is counted too: few of them
                            await asyncio.sleep(0.2)
                numbers.append(calls.number / REQUESTS)
                spent.append(commands(client))
    check(min(spent, key=Counter.total), FINISHED, SCRIPT_CALLS_FINISH)
    assert min(numbers) <= PYTHON_CALLS_FINISH


async def calls_over_http(at_once: int) -> float:
    """Python calls of each request that the openai engine sends to a server which has so many of them at once."""
    together, connections = asyncio.Barrier(at_once), set[asyncio.StreamWriter]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                await together.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n")
                writer.write(b'{"choices":[]}')
        writer.close()
        connections.discard(writer)

    asked = EngineRequest("r-1", CHAT, {"model": "any", **BODY}, Lane.HIGH, None)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=at_once)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        engine = OpenAIEngine(Upstream(url, at_once))
        await asyncio.gather(*(engine.run(asked) for _ in range(at_once)))  # opens the connections
        with Calls() as calls:
            await asyncio.gather(*(engine.run(asked) for _ in range(at_once)))
        await engine.stop()
        await eventually(lambda: not connections, 10)
    return calls.number / at_once


async def test_a_request_to_a_server_costs_the_same_beside_many_others() -> None:
    assert await calls_over_http(256) <= 1.5 * await calls_over_http(16)
