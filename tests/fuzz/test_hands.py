"""A Redis client acts by hand beside the protocol, in any order: the scripts go on, and so do views."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest
import redis.exceptions
from hypothesis import given

from streamfleet.common.broker.types import Completion, Retry
from streamfleet.common.connection import Connection
from streamfleet.common.protocol import LANES, Status
from streamfleet.operator.commands import backlog_view
from streamfleet.operator.dead_letters import letters, read_letter
from streamfleet.operator.snapshot import take_snapshot
from tests.fuzz import garbage
from tests.fuzz import strategies as some
from tests.fuzz.budget import examples
from tests.fuzz.entries import Entries
from tests.integration.cli_processes import streamfleet
from tests.scripts.harness import ERROR, LIMITS, NOW, Queue
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

STEPS = 60
LAST_ID = "18446744073709551615-18446744073709551615"
OTHERS = (("SET", "x"), ("RPUSH", "x"), ("HSET", "a", "b"), ("ZADD", 1, "x"), ("XADD", "*", "a", "b"))
"""A value of each type, for a key that hands overwrite."""
TERMINAL = {status.value.encode() for status in Status}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with RedisServer(newest(find_servers())) as server:
        yield server.url


class Meddled:
    """A queue, a worker that does its rounds, and somebody who does whatever the seed says."""

    def __init__(self, connection: Connection, seed: int, hands: bool) -> None:
        self.chance = random.Random(seed)
        self.queue = Queue(connection, LIMITS, "default").with_limits(max_entry_bytes=5_000)
        self.supply = Entries(self.chance, "m", lambda: NOW)
        self.hands = hands
        self.accepted: list[bytes] = []
        self.number = 0
        self.kept_run = "r"

    async def run(self) -> None:
        await self.queue.broker.ensure_groups()
        steps = [self.add, self.add, self.add, self.litter, self.work, self.work, self.keep_house, self.look]
        for _ in range(STEPS):
            await self.chance.choice([*steps, self.meddle] if self.hands else steps)()
        await self.drain()

    async def add(self) -> None:
        entry = self.supply.next()
        self.number += 1
        stream_id = f"{NOW - 10_000 + self.number}-{self.chance.choice((0, 1, 2**63))}"
        await self.queue.add_flat(entry.lane, stream_id, *entry.fields)
        self.accepted.append(entry.effective_id(stream_id.encode()))

    async def litter(self) -> None:
        await self.try_to(*garbage.command(self.chance, self.accepted))

    async def meddle(self) -> None:
        """Change values under the names of results and replies, and members of sets."""
        keys, name = self.queue.keys, self.chance.choice([*self.accepted[-5:], b"m"]).decode()
        result, reply = keys.result(name), keys.reply(self.chance.choice(("r1", "desk")))
        words: tuple[object, ...] = self.chance.choice(
            [
                ("SET", result, "x"),
                ("RPUSH", result, "x"),
                ("HSET", result, "foo", "bar"),
                ("SET", reply, "x"),
                *((words[0], keys.kept(self.kept_run), *words[1:]) for words in OTHERS),
                ("XADD", reply, LAST_ID, "a", "b"),
                ("ZADD", keys.ready(self.chance.choice(LANES)), 5, self.chance.choice(("x", "A1-A1", b"\xff"))),
                ("ZADD", keys.delayed, 5, self.chance.choice(("x", "9|1-1", "1|x", "5|1-1"))),
                ("HSET", keys.tries, "1|1-1", "nan"),
                ("HSET", keys.lane_states, "credit:critical", "nan", "credit:high", "inf"),
            ]
        )
        if words[1] == keys.kept(self.kept_run):
            await self.queue.command("DEL", words[1])
        if await self.queue.command("TYPE", words[1]) in {b"none", _type_of(str(words[0]))}:
            await self.try_to(*words)

    async def try_to(self, *words: object) -> None:
        with contextlib.suppress(redis.exceptions.ResponseError):  # what Redis itself refuses harms nobody
            await self.queue.command(*words)

    async def work(self) -> None:
        broker = self.queue.broker
        for claim in (await self.queue.pull(wanted=self.chance.randrange(8))).claims:
            if claim.kept:
                await broker.kept([claim.kept])
            match self.chance.randrange(5):
                case 0:
                    await broker.retry_later("w1", [Retry(claim.lease, self.chance.choice((0, 5)), ERROR)], 2)
                case 1:
                    await broker.release("w1", [claim.lease])
                case 2:
                    self.kept_run = f"r{self.number}"
                    await broker.keep({self.kept_run: b"1 x"})
                    await broker.release("w1", [claim.lease], kept={claim.lease: (self.kept_run, 3)})
                case _:
                    status = self.chance.choice((Status.SUCCEEDED, Status.FAILED))
                    error = "" if status is Status.SUCCEEDED else ERROR
                    await broker.complete("w1", [Completion(claim.lease, status, {}, claim.reply, error)])

    async def keep_house(self) -> None:
        broker = self.queue.at(NOW + 10).broker
        await broker.return_delayed()
        await broker.after_staging()
        await broker.reclaim(0, 2)
        await broker.deregister(silent_ms=1)
        await broker.cancel(self.chance.choice([*self.accepted[-5:], b"m"]).decode(), before_ms=60_000)

    async def look(self) -> None:
        broker = self.queue.broker
        backlog_view.render(await take_snapshot(broker), None)
        for letter_id, fields in await broker.dead_letters():
            read_letter(letter_id, fields)
        assert all([letter.is_about("failed") async for letter in letters(broker, "failed")])

    async def drain(self) -> None:
        for _ in range(20 * STEPS):
            await self.queue.at(NOW + 10).broker.return_delayed()
            claims = (await self.queue.pull(wanted=50)).claims
            await self.queue.broker.complete(
                "w1", [Completion(claim.lease, Status.SUCCEEDED, {}, claim.reply) for claim in claims]
            )
            if (await self.queue.broker.audit()).outstanding == 0:
                break
        for name in self.accepted:
            status = await self.queue.command("HGET", b"{default}:result:" + name, "status")
            assert status in TERMINAL, (name, status)
        if not self.hands:
            assert (await self.queue.broker.audit()).problems() == []


def _type_of(command: str) -> bytes:
    return {"SET": b"string", "RPUSH": b"list", "HSET": b"hash", "XADD": b"stream", "ZADD": b"zset"}[command]


def meddled(url: str, seed: int, hands: bool) -> None:
    async def run() -> None:
        connection = Connection(url)
        try:
            await connection.command("FLUSHALL")
            await Meddled(connection, seed, hands).run()
        finally:
            await connection.close()

    asyncio.run(run())


@given(some.seeds)
@examples(25)
def test_raw_entries_and_litter_in_any_order(url: str, seed: int) -> None:
    meddled(url, seed, hands=False)


@given(some.seeds)
@examples(25)
def test_and_keys_set_by_hand(url: str, seed: int) -> None:
    meddled(url, seed, hands=True)


@pytest.mark.parametrize("stream", ["wake", "reply", "dead", "cancels", "lane"])
def test_a_stream_whose_ids_are_used_up_stops_nobody(url: str, stream: str) -> None:
    """Anybody who may XADD to it can do that, with the largest id that there is."""

    async def run() -> None:
        connection = Connection(url)
        try:
            await connection.command("FLUSHALL")
            queue = Queue(connection, LIMITS, "default")
            await queue.broker.ensure_groups()
            keys = queue.keys
            key = {"reply": keys.reply("me"), "lane": keys.lane("high")}.get(stream) or getattr(keys, stream, "")
            await connection.command("XADD", key, LAST_ID, "body", "{}")
            await queue.add("low", "1000-0", id="x", reply="me")
            await queue.add("low", "1000-1", id="late", deadline="1", reply="me")
            acts: list[Callable[[], Awaitable[object]]] = [
                lambda: queue.broker.cancel("y", before_ms=60_000),
                queue.broker.return_delayed,
                queue.broker.after_staging,
                queue.broker.audit,
            ]
            claims = (await queue.pull(wanted=5)).claims
            done = [Completion(claim.lease, Status.FAILED, {}, claim.reply, ERROR) for claim in claims]
            await queue.broker.complete("w1", done)
            for act in acts:
                await act()
            assert (await queue.broker.audit()).outstanding == 0
            assert [result and result.status for result in await queue.broker.results(["x", "late"])] == [
                Status.FAILED,
                Status.EXPIRED,
            ]
        finally:
            await connection.close()

    asyncio.run(run())


@given(some.seeds)
@examples(10)
def test_the_commands_of_operators_show_what_they_can(url: str, seed: int) -> None:
    chance = random.Random(seed)

    async def litter() -> None:
        connection = Connection(url)
        try:
            await connection.command("FLUSHALL")
            await Queue(connection, LIMITS, "default").broker.ensure_groups()
            for _ in range(150):
                await connection.command(*garbage.command(chance, [b"x"]))
            await connection.command("XGROUP", "CREATECONSUMER", "{default}:lane:high", "workers", b"\xff\x1b[31m")
        finally:
            await connection.close()

    asyncio.run(litter())
    for words in (
        ["backlog"],
        ["backlog", "--json"],
        ["dead", "list"],
        ["dead", "list", "--json"],
        ["dead", "list", "--reason", "x"],
    ):
        ended = streamfleet(url, *words)
        assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
        assert "\x1b" not in ended.stdout
    assert streamfleet(url, "dead", "requeue", "--all").returncode in {0, 1}
