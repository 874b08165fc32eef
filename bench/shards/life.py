"""Measures the life of requests, verb by verb, through the real client and broker, on a server of its own.

Each verb is done for all requests before the next one, so that the server's counters keep them apart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import redis

from bench.core.feeding import padded_body, queue_settings
from bench.core.noop_worker import answer
from bench.core.redis import look
from bench.core.rounds import Sample
from streamfleet.common.broker.types import Claim, Completion, Submission
from streamfleet.common.protocol import Status
from streamfleet.common.replies import streams
from streamfleet.producer import Client
from streamfleet.producer.ask import Ask
from tests.broker import Broker

T = TypeVar("T")
WORKER = "worker-1"
BLOCK_MS = 1_000
USAGE = json.dumps({"prompt_tokens": 8, "completion_tokens": 16, "total_tokens": 24})
MOST_BYTES = 16_777_216
"""Of the bodies of one round: where they are large, fewer requests do."""
AT_ONCE = 64
READ = f"{2**63}-0"
"""Stream id beyond all notifications."""
CALLERS = 16
"""Calls under way at once: a server that is asked by many finds several whenever it looks, and its caches warm."""


def number_of(batch: int, calls: int, body: int) -> int:
    """Number of requests in a round: `calls` of one, four times as many of larger calls, in whole calls."""
    wanted = calls if batch == 1 else 4 * calls
    affordable = max(batch, MOST_BYTES // body)
    return max(batch, min(wanted, affordable) // batch * batch)


def one_round(url: str, batch: int, count: int, body: int, pause_s: float = 0.0) -> Sample:
    """Take so many requests from enqueueing to their results, on the server at `url`, which is empty again afterwards.

    With `pause_s` the calls come one by one, with a pause before each.

    Returns:
        "<verb> us", "<verb> in B" and "<verb> out B" of each request.
    """
    with redis.Redis.from_url(url) as client:
        try:
            return asyncio.run(_one_round(client, url, batch, count, body, pause_s))
        finally:
            client.flushall()


async def _one_round(client: redis.Redis, url: str, batch: int, count: int, body: int, pause_s: float) -> Sample:
    async with Client(settings=queue_settings(url)) as fleet:
        life = Life(fleet, batch, body)
        await life.warm_up()
        life.prepare(count)
        life.pause_s = pause_s
        before = look(client)
        found: dict[str, float] = {}
        for verb, work in life.verbs().items():
            await work()
            after = look(client)
            found |= {
                f"{verb} us": (after.cpu_us - before.cpu_us) / count,
                f"{verb} in B": (after.in_bytes - before.in_bytes) / count,
                f"{verb} out B": (after.out_bytes - before.out_bytes) / count,
            }
            before = after
        return found


def memory(url: str, count: int, body: int) -> Sample:
    """Memory of so many requests on the server at `url`, which is empty again afterwards.

    Returns:
        "queued B" and "kept B": memory of a waiting request, and of an ended one.
    """
    with redis.Redis.from_url(url) as client:
        try:
            return asyncio.run(_memory(client, url, count, body))
        finally:
            client.flushall()


async def _memory(client: redis.Redis, url: str, count: int, body: int) -> Sample:
    found = []
    ended = ("pull", "complete")
    # Each step has a client of its own, because its connections' buffers do not belong to the data.
    for steps, number in ((("enqueue", *ended), 2), ((), 0), (("enqueue",), count), (ended, count)):
        async with Client(settings=queue_settings(url)) as fleet:
            await fleet.broker.ensure_groups()
            life = Life(fleet, AT_ONCE, body)
            life.prepare(number)
            for verb in steps:
                await life.verbs()[verb]()
            await life.forget()
        client.ping()
        found.append(look(client).memory_bytes)
    _, before, queued, kept = found
    return {"queued B": (queued - before) / count, "kept B": (kept - before) / count}


class Life:
    """A set of requests; each verb takes all of them one step further.

    Args:
        fleet: an open client, whose notifications have no other reader.
        batch: requests in a call.
        body: bytes of a body, and of an answer.

    Attributes:
        pause_s: time before each call; 0 if several are under way at once.
    """

    def __init__(self, fleet: Client, batch: int, body: int) -> None:
        self._fleet, self._broker, self._batch = fleet, Broker.of(fleet.broker), batch
        self._body = json.loads(padded_body(body))
        self._answer = answer(body)
        self._prepared: list[Submission] = []
        self._claims: list[Claim] = []
        self._count = 0
        self._seen = "0-0"
        self.pause_s = 0.0

    def verbs(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The steps of a life, by verb, in order."""
        return {
            "enqueue": self.enqueue,
            "pull": self.pull,
            "renew": self.renew,
            "complete": self.complete,
            "results": self.results,
        }

    async def warm_up(self) -> None:
        """Run a few requests, so that scripts are loaded and connections are open."""
        await self._broker.ensure_groups()
        self.prepare(2)
        for work in self.verbs().values():
            await work()

    def prepare(self, count: int) -> None:
        """Make so many requests to enqueue."""
        self._prepared = [self._fleet.prepare(Ask(body=self._body)) for _ in range(count)]
        self._count, self._claims = count, []

    async def enqueue(self) -> None:
        await self._all(self._fleet.submit(chunk) for chunk in parts(self._prepared, self._batch))

    async def pull(self) -> None:
        while missing := self._count - len(self._claims):
            calls = -(-missing // self._batch)
            found = await self._all(self._broker.pull(WORKER, self._batch) for _ in range(calls))
            claims = [claim for pulled in found for claim in pulled.claims]
            assert claims, f"{missing} of {self._count} requests were not there to pull"
            self._claims += claims

    async def renew(self) -> None:
        leases = [claim.lease for claim in self._claims]
        await self._all(self._broker.renew(WORKER, chunk) for chunk in parts(leases, self._batch))

    async def complete(self) -> None:
        done = [self._completion(claim) for claim in self._claims]
        codes = await self._all(self._broker.complete(WORKER, chunk) for chunk in parts(done, self._batch))
        assert all(all(some) for some in codes), "a lease was lost"

    async def results(self) -> None:
        """Read notifications, then the results that did not come along, as a caller does."""
        read = 0
        key = self._broker.keys.reply(self._fleet.mailbox.name)
        while read < self._count:
            words = ("XREAD", "COUNT", self._batch, "BLOCK", BLOCK_MS, "STREAMS", key, self._seen)
            told = [
                row for _, rows in streams(await self._broker.connection.block(BLOCK_MS / 1000, *words)) for row in rows
            ]
            assert told, f"{read} of {self._count} notifications came"
            missing = [fields[b"id"].decode() for _, fields in told if b"finished_ms" not in fields]
            if missing:
                assert all(result is not None for result in await self._broker.results(missing)), "a result is missing"
            self._seen = told[-1][0]
            read += len(told)

    async def forget(self) -> None:
        """Delete the notifications, as their callers do with what they have read."""
        for name in {claim.reply for claim in self._claims}:
            await self._broker.trim_replies(name, READ)

    async def _all(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        if not self.pause_s:
            return await together(calls)
        found = []
        for call in calls:
            await asyncio.sleep(self.pause_s)
            found.append(await call)
        return found

    def _completion(self, claim: Claim) -> Completion:
        values: dict[str, bytes | str | int] = {
            "http_status": 200,
            "enqueued_ms": claim.lease.stream_id.partition("-")[0],
            "finished_ms": claim.lease.stream_id.partition("-")[0],
            "queued_ms": 1,
            "total_ms": "10000.1",
            "waited_ms": "0.1",
            "first_token_ms": "50.1",
            "response": self._answer,
            "finish_reason": "stop",
            "usage": USAGE,
        }
        return Completion(claim.lease, Status.SUCCEEDED, values, claim.reply)


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Results of the calls, with `CALLERS` of them running at once."""
    free = asyncio.Semaphore(CALLERS)

    async def one(call: Awaitable[T]) -> T:
        async with free:
            return await call

    return list(await asyncio.gather(*(one(call) for call in calls)))


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, in parts of `size`."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
