"""A queue on a real server, with a clock that stands still, for tests that seed, call and compare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from streamfleet.common.broker.types import Claim, Completion, Hint, Lease, Pulled, Retry, Rooms, Submission
from streamfleet.common.connection import Connection
from streamfleet.common.errors import openai_error
from streamfleet.common.keys import GROUP, NOBODY, Keys
from streamfleet.common.limits import ENVELOPE_BYTES, QueueLimits
from streamfleet.common.protocol import Lane, Status, digest_of_bytes
from tests.broker import Broker
from tests.scripts import keyspace

NOW = 1_000_000
"""Time that the scripts see, epoch ms, unless a test says otherwise."""
PATIENCE = 300_000
BODY = '{"prompt":"hi"}'
BODY_DIGEST = digest_of_bytes({b"body": BODY.encode()})
ERROR = openai_error("it did not work", "server_error", None, "broken")
LIMITS = QueueLimits(now_ms=NOW, patience_ms=PATIENCE, max_body_bytes=2_000 - ENVELOPE_BYTES, lane_limit=100)


class Queue:
    """The broker under test and what tests need around it: entries as anybody may XADD them, and the whole keyspace."""

    def __init__(self, connection: Connection, limits: QueueLimits = LIMITS, name: str = "q") -> None:
        self.connection = connection
        self.keys = Keys(name)
        self.limits = limits
        self.broker = Broker(connection, self.keys, limits)

    def at(self, now_ms: int) -> Queue:
        """The same queue at another time."""
        return self.with_limits(now_ms=now_ms)

    def with_limits(self, max_entry_bytes: int | None = None, **changes: Any) -> Queue:
        """The same queue with other limits."""
        if max_entry_bytes is not None:
            changes["max_body_bytes"] = max_entry_bytes - ENVELOPE_BYTES
        return Queue(self.connection, replace(self.limits, **changes), self.keys.queue)

    async def command(self, *words: Any) -> Any:
        return await self.connection.command(*words)

    async def dump(self) -> keyspace.Dump:
        return await keyspace.read(self.connection, self.keys)

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """Meanwhile no key changes."""
        before = await self.dump()
        yield
        assert await self.dump() == before

    async def add(self, lane: str, stream_id: str, /, **fields: Any) -> str:
        """XADD an entry, with a body unless `fields` has one; the stream id tells when it was enqueued."""
        return await self.add_flat(
            lane, stream_id, *[part for pair in ({"body": BODY} | fields).items() for part in pair]
        )

    async def add_flat(self, lane: str, stream_id: str, *flat: Any) -> str:
        """XADD an entry with its fields as they are, so that names may repeat."""
        return (await self.command("XADD", self.keys.lane(lane), stream_id, *flat)).decode()  # type: ignore[no-any-return]

    async def pull(
        self, worker: str = "w1", wanted: int | Rooms = 1, hints: Sequence[Hint] = (), **more: Any
    ) -> Pulled:
        return await self.broker.pull(worker, wanted, hints, **more)

    async def claim(self, worker: str = "w1") -> Lease:
        """The one best entry, now this worker's."""
        (claim,) = (await self.pull(worker)).claims
        return claim.lease

    async def running(self, lane: str = "high", stream_id: str = "1000-0", /, **fields: Any) -> Lease:
        """An entry added and claimed by w1, its place in the reading aside as if it were alone."""
        await self.add(lane, stream_id, **fields)
        return await self.claim()

    async def complete(
        self, worker: str, *leases: Lease, status: Status = Status.SUCCEEDED, **values: str
    ) -> list[int]:
        error = "" if status is Status.SUCCEEDED else ERROR
        return list(
            await self.broker.complete(worker, [Completion(lease, status, values, "", error) for lease in leases])
        )

    async def retry(self, worker: str, lease: Lease, delay_ms: int = 0, most: int = 3) -> int:
        (code,) = await self.broker.retry_later(worker, [Retry(lease, delay_ms, ERROR)], most)
        return code

    def note_calls(self) -> list[str]:
        """Verbs of the scripts that are called from now on, as they are called."""
        call, verbs = self.connection.script, []

        async def noted(verb: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
            verbs.append(verb)
            return await call(verb, keys, args)

        self.connection.script = noted  # type: ignore[method-assign]
        return verbs

    async def age(self, lane: str, stream_id: str, owner: str, idle_ms: int = 60_001) -> None:
        """Make a pending entry look as if its owner had been silent for so long."""
        words = ("XCLAIM", self.keys.lane(lane), GROUP, owner, 0, stream_id, "IDLE", idle_ms, "JUSTID")
        await self.command(*words)

    @asynccontextmanager
    async def full_memory(self) -> AsyncIterator[None]:
        """Meanwhile the server refuses whatever needs memory."""
        await self.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await self.command("CONFIG", "SET", "maxmemory", 1)
        try:
            yield
        finally:
            await self.command("CONFIG", "SET", "maxmemory", 0)

    async def read(self, lanes: Sequence[Lane]) -> list[Hint]:
        """Entries that a blocking read of the wake-ups and of some lanes would return at once."""
        keys: dict[str, Lane | None] = {self.keys.wake: None, **{self.keys.lane(lane): lane for lane in lanes}}
        words = ("XREADGROUP", "GROUP", GROUP, NOBODY, "COUNT", 1, "STREAMS", *keys, *[">"] * len(keys))
        found = await self.command(*words) or []
        return [Hint(keys[key.decode()], row[0].decode()) for key, rows in found for row in rows]

    async def hand_out(self, lane: str = "high") -> list[Hint]:
        """Do to one new entry of a lane what a watcher's blocking read does; the watcher has not pulled yet."""
        reply = await self.command(
            "XREADGROUP", "GROUP", GROUP, NOBODY, "COUNT", 1, "STREAMS", self.keys.lane(lane), ">"
        )
        return [Hint(Lane(lane), stream_id.decode()) for _, entries in reply for stream_id, _ in entries]


def submission(
    request_id: str, lane: Lane = Lane.HIGH, reply: str = "", body: str = BODY, digest: str = "d1"
) -> Submission:
    """A request as the client hands it to the broker."""
    fields = {"body": body.encode(), "id": request_id.encode()} | ({"reply": reply.encode()} if reply else {})
    return Submission(request_id, lane, fields, digest, reply)


def ids(claims: Sequence[Claim]) -> list[str]:
    """Stream ids of claims, in the order given."""
    return [claim.lease.stream_id for claim in claims]


def entry(**fields: Any) -> dict[str, str]:
    """Fields as `Queue.add` writes them."""
    return {name: str(value) for name, value in ({"body": BODY} | fields).items()}
