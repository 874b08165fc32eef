"""Every script with arguments of any kind: it does its job, or it is refused before it has written anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import redis.exceptions
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.broker.housekeeping import ExpiryScan
from streamfleet.common.broker.types import Completion, Hint, Lease, Retry, Submission
from streamfleet.common.connection import Connection
from streamfleet.common.errors import StreamfleetError
from streamfleet.common.protocol import LANES, Status
from tests.fuzz import strategies as some
from tests.fuzz.budget import examples
from tests.scripts.harness import LIMITS, Queue
from tests.scripts.keyspace import Dump
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

T = TypeVar("T")
RUNNING, READY, LATE, DELAYED = "1000-0", "2000-0", "3000-0", "4000-0"
WORKER = "w1"

lanes = st.sampled_from(LANES)
words = st.one_of(
    some.texts, some.raw.map(lambda value: value.decode(errors="replace")), st.sampled_from(["x" * 100_000])
)
whole = st.one_of(st.integers(), st.sampled_from([0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30]))
stream_ids = st.one_of(
    st.sampled_from(
        [RUNNING, READY, LATE, DELAYED, "0-0", "0-1", "5-", "-5", "-", "+", "$", ">", "*", "nan", "1e3", "0x10-1"]
    ),
    st.sampled_from(
        ["", "18446744073709551615-18446744073709551615", "18446744073709551616-0", "1-1-1", "٣-٣", "(1-1"]
    ),
    words,
)
workers = st.sampled_from([WORKER, "w2", "~", ""]) | words
leases = st.builds(Lease, lanes, stream_ids, whole, words)
fields = st.dictionaries(words, some.raw | some.raw_bodies, min_size=1, max_size=6)
submissions = st.builds(Submission, words, lanes, fields, words, words)
errors = words | some.values.map(repr) | st.just("[" * 2_000)
completions = st.builds(
    Completion, leases, st.sampled_from(Status), st.dictionaries(words, some.raw | words, max_size=4), words, errors
)
Call = Callable[[Queue], Awaitable[Any]]


def calls(build: Callable[..., Call], **arguments: Any) -> st.SearchStrategy[Call]:
    return st.builds(build, **arguments)


VERBS: dict[str, st.SearchStrategy[Call]] = {
    "enqueue": calls(lambda item: lambda queue: queue.broker.enqueue([item]), item=submissions),
    "pull": calls(
        lambda worker, wanted, hints, more: lambda queue: queue.broker.pull(worker, wanted, hints, **more),
        worker=workers,
        wanted=st.integers(-5, 5) | st.sampled_from([10**4]),
        hints=st.lists(st.builds(Hint, st.none() | lanes, stream_ids), max_size=2),
        more=st.fixed_dictionaries(
            {}, optional={"owing": st.booleans(), "stage_entries": st.integers(-5, 500),
                          "watch_ms": st.integers(-5, 10**15)}
        ),
    ),
    "complete": calls(lambda w, item: lambda queue: queue.broker.complete(w, [item]), w=workers, item=completions),
    "renew": calls(lambda w, item: lambda queue: queue.broker.renew(w, [item]), w=workers, item=leases),
    "release": calls(lambda w, item: lambda queue: queue.broker.release(w, [item]), w=workers, item=leases),
    "retry_later": calls(
        lambda w, item, most: lambda queue: queue.broker.retry_later(w, [item], most),
        w=workers, item=st.builds(Retry, leases, whole, errors), most=whole,
    ),
    "cancel": calls(lambda name, why: lambda queue: queue.broker.cancel(name, why), name=words, why=words),
    "return_delayed": calls(lambda most: lambda queue: queue.broker.return_delayed(most), most=whole),
    "expire": calls(lambda seen, most: lambda queue: queue.broker.expire(seen, most),
        seen=st.builds(ExpiryScan, st.lists(whole.map(str), max_size=9)), most=whole),
    "reclaim": calls(
        lambda lease, most, limit: lambda queue: queue.broker.reclaim(lease, most, limit),
        lease=whole, most=whole, limit=whole,
    ),
    "requeue": calls(
        lambda letter, name, lane, flat, entry: lambda queue: queue.broker.requeue(
            letter, name, lane, flat, entry=entry
        ),
        letter=stream_ids, name=words, lane=lanes, flat=st.lists(some.raw, max_size=5), entry=words,
    ),
    "heartbeat": calls(
        lambda w, says: lambda queue: queue.broker.heartbeat(w, says),
        w=workers, says=st.dictionaries(words, some.values, max_size=4),
    ),
    "deregister": calls(lambda w, ms: lambda queue: queue.broker.deregister(w, ms), w=workers, ms=whole),
    "audit": calls(lambda bound: lambda queue: queue.broker.audit(bound), bound=whole),
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """A server, and the loop that everything on it runs in."""

    runner: asyncio.Runner
    url: str

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with RedisServer(newest(find_servers())) as server, asyncio.Runner() as runner:
        yield Bench(runner, server.url)


async def furnished(connection: Connection) -> Queue:
    """A queue with one request in each state, as far as time stands still."""
    await connection.command("FLUSHALL")
    queue = Queue(connection, LIMITS)
    await queue.broker.ensure_groups()
    await queue.running("high", RUNNING, id="runs", reply="me")
    await queue.add("high", READY, id="waits")
    await queue.add("high", LATE, id="late", deadline="1")
    lease = await queue.running("normal", DELAYED, id="delayed")
    await queue.retry(WORKER, lease, delay_ms=5)
    return queue


async def refused(url: str, call: Call) -> tuple[Exception | None, Dump, Dump]:
    """Returns the error of a call, and the whole keyspace before and after it."""
    connection = Connection(url)
    try:
        queue = await furnished(connection)
        before = await queue.dump()
        try:
            await call(queue)
            raised = None
        except (StreamfleetError, redis.exceptions.ResponseError, UnicodeEncodeError, ValueError) as error:
            raised = error
        return raised, before, await queue.dump()
    finally:
        await connection.close()


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_of_any_kind(bench: Bench, verb: str) -> None:
    @given(VERBS[verb])
    @examples(40)
    def check(call: Call) -> None:
        raised, before, after = bench.run(refused(bench.url, call))
        if raised is not None:
            assert after == before, raised

    check()


@given(entry=some.raw_entries)
@examples(60)
def test_the_scripts_read_an_entry_as_the_decoder_does(bench: Bench, entry: Any) -> None:
    """Else a result would stand under one name, and be looked for under another."""

    async def pulled() -> tuple[bytes, str, int]:
        connection = Connection(bench.url)
        try:
            await connection.command("FLUSHALL")
            queue = Queue(connection, LIMITS).with_limits(max_entry_bytes=10**8)
            await queue.broker.ensure_groups()
            stream_id = await queue.add_flat(entry.lane, "1500000000000-7", *entry.fields)
            reading = await queue.pull()
            name = reading.claims[0].lease.request_id if reading.claims else ""
            results = await connection.command("KEYS", "{q}:result:*")
            found = results[0].removeprefix(b"{q}:result:") if results else name.encode()
            return found, stream_id, len(reading.claims) + reading.dropped
        finally:
            await connection.close()

    name, stream_id, seen = bench.run(pulled())
    assert (name, seen) == (entry.effective_id(stream_id.encode()), 1)


def test_every_verb_is_called() -> None:
    from streamfleet.common.scripts import VERBS as ALL

    assert set(VERBS) <= set(ALL)
