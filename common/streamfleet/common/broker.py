"""The only module that talks to Redis about queues: one typed method per operation, each one script or one command."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import redis.exceptions

from streamfleet.common.connection import Connection, MissingGroup
from streamfleet.common.errors import BrokerOutOfMemory, openai_error
from streamfleet.common.keys import GROUP, NOBODY, Keys
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.records import (
    Accepted,
    Audit,
    CompleteCode,
    Completion,
    EnqueueCode,
    Hint,
    Lease,
    Pulled,
    QueueLimits,
    Reclaimed,
    RenewCode,
    Retry,
    RetryCode,
    Role,
    Submission,
)
from streamfleet.common.replies import claim, entries, first_score, lane_audit, lease_row, mapping, pending_row, streams
from streamfleet.common.results import Result, decode_result

T = TypeVar("T")


class Broker:
    """One queue on one Redis.

    Every method raises BrokerUnavailable when Redis stays away for the connection's patience, and
    BrokerOutOfMemory when a new request does not fit into Redis.
    """

    def __init__(self, connection: Connection, keys: Keys, limits: QueueLimits | None = None) -> None:
        self.connection = connection
        self.keys = keys
        self.limits = limits or QueueLimits()
        self._shared = keys.shared()
        self._config = self._configuration()

    def _configuration(self) -> str:
        limits = self.limits
        values: dict[str, Any] = {
            "prefix": self.keys.base,
            "result_ttl_ms": limits.result_ttl_ms,
            "patience_ms": limits.patience_ms,
            "dead_cap": limits.dead_cap,
            "reply_cap": limits.reply_cap,
            "max_entry_bytes": limits.max_entry_bytes,
        }
        if limits.now_ms is not None:
            values["now_ms"] = limits.now_ms
        return json.dumps(values)

    async def close(self) -> None:
        await self.connection.close()

    async def ensure_groups(self) -> None:
        """Make the lanes' streams and groups where they are missing; they start at 0, never at ``$``."""
        for key in (*self.keys.lanes, self.keys.wake):
            try:
                await self.connection.command("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM")
            except BrokerOutOfMemory:  # said before Redis looks whether there is anything to make
                if not await self._has_group(key):
                    raise
            except redis.exceptions.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    async def _has_group(self, key: str) -> bool:
        try:
            await self.connection.command("XPENDING", key, GROUP)
        except MissingGroup:
            return False
        return True

    # -- producers ---------------------------------------------------------------------------------------------

    async def enqueue(self, submissions: Sequence[Submission]) -> list[Accepted]:
        """Accept requests, each id once; one script call, so keep it to some hundred requests or a megabyte."""
        keys, args = list(self._shared), [self._config, self.limits.lane_limit, self.limits.result_ttl_ms]
        for item in submissions:
            keys += (self.keys.request(item.id), self.keys.result(item.id))
            flat = [part for pair in item.fields.items() for part in pair]
            args += (item.lane.number, item.id, item.digest, item.reply, len(flat), *flat)
        replies = await self.connection.script("enqueue", keys, args)
        return [Accepted(EnqueueCode(code), entry.decode()) for code, entry in replies]

    async def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """Cancel a request, queued or running. False when it had ended before, other than by a cancel."""
        record = await self.connection.command("GET", self.keys.request(request_id))
        reply = record.decode().split(" ", 2)[2] if record else ""
        keys = [
            *self._shared,
            self.keys.result(request_id),
            self.keys.reply(reply) if reply else self.keys.result(request_id),
        ]
        error = openai_error(reason, "cancelled", None, "cancelled")
        if await self.connection.script("cancel", keys, [self._config, request_id, reply, error]):
            return True
        result = await self.result(request_id)
        return result is not None and result.status == "cancelled"

    async def result(self, request_id: str) -> Result | None:
        """A request's result; None while it has none (or none any more)."""
        return (await self.results([request_id]))[0]

    async def results(self, request_ids: Sequence[str]) -> list[Result | None]:
        """Results of several requests in one round trip, in the order asked for."""
        replies = await self.connection.pipeline(
            [("HGETALL", self.keys.result(request_id)) for request_id in request_ids]
        )
        return [
            decode_result(request_id, mapping(reply)) for request_id, reply in zip(request_ids, replies, strict=True)
        ]

    async def record(self, request_id: str) -> str | None:
        """``<lane>:<stream id>`` of a request that a client enqueued; None when there is no record of it."""
        record = await self.connection.command("GET", self.keys.request(request_id))
        return record.decode().split(" ", 2)[1] if record else None

    async def running(self, entry: str) -> tuple[str, int] | None:
        """Worker and attempt of an entry that is running; None when it is not."""
        lane, stream_id = entry.split(":", 1)
        try:
            rows = await self.connection.command("XPENDING", self.keys.lane(lane), GROUP, stream_id, stream_id, 1)
        except MissingGroup:
            return None
        row = pending_row(rows[0]) if rows else None
        return None if row is None or row[1] == NOBODY else (row[1], row[3])

    async def exists(self, entry: str) -> bool:
        """Whether an entry still stands in its lane."""
        lane, stream_id = entry.split(":", 1)
        return bool(await self.connection.command("XRANGE", self.keys.lane(lane), stream_id, stream_id))

    async def read_replies(self, client: str, last_id: str, block_ms: int) -> tuple[str, list[str]]:
        """Request ids that ended since `last_id`, waiting up to `block_ms` for one, and the id to go on from."""
        return await self._read_ids(self.keys.reply(client), last_id, block_ms)

    async def delete_replies(self, client: str) -> None:
        """Delete a client's reply stream when the client leaves."""
        await self.connection.command("DEL", self.keys.reply(client))

    # -- workers -----------------------------------------------------------------------------------------------

    async def pull(
        self,
        worker: str,
        wanted: int,
        hints: Sequence[Hint] = (),
        *,
        watching: bool = False,
        owing: bool = False,
        stage_entries: int = 256,
        watch_ms: int = 7_000,
    ) -> Pulled:
        """The best requests that wait, now this worker's; sent once, see `disown` for a lost answer.

        Args:
            worker: this worker's name.
            wanted: how many at most; 0 only brings arrivals in order.
            hints: what the last blocking read delivered.
            watching: whether the last pull gave this worker the watch.
            owing: whether it took a wake-up since, which others need should it have no room any more.
            stage_entries: how many arrivals to bring in order at most.
            watch_ms: how long a watch lasts unless renewed by a pull.
        """
        arg = {
            "worker": worker,
            "n": wanted,
            "hints": [[hint.lane.number if hint.lane else 0, hint.stream_id] for hint in hints],
            "watching": watching,
            "owing": owing,
            "stage_entries": stage_entries,
            "stage_bytes": 262_144,
            "take_bytes": 4_194_304,
            "shares": self.limits.shares,
            "watchers": self.limits.watchers,
            "watch_ms": watch_ms,
        }
        reply = await self._with_groups(
            lambda: self.connection.script_once("pull", self._shared, [self._config, json.dumps(arg)])
        )
        claims, ready, role, now, staged, dropped = reply
        return Pulled([claim(row) for row in claims], ready, Role(role), int(now), staged, dropped)

    async def wait(self, role: Role, timeout_ms: int) -> list[Hint]:
        """Block until there may be work, or for `timeout_ms`; what comes back goes into the next pull."""
        timeout_ms = max(
            timeout_ms, 2
        )  # 0 would be for ever, and so is 1 to a BLPOP of Redis 6.2, which rounds it down
        if role is Role.BENCH:
            await self.connection.block(timeout_ms / 1000, "BLPOP", self.keys.bench, timeout_ms / 1000)
            return []
        keys = [self.keys.wake, *self.keys.lanes]
        reply = await self._with_groups(
            lambda: self.connection.block(
                timeout_ms / 1000,
                *("XREADGROUP", "GROUP", GROUP, NOBODY, "COUNT", 1, "BLOCK", timeout_ms, "STREAMS", *keys),
                *[">"] * len(keys),
            )
        )
        lane_of: dict[str, Lane | None] = {
            self.keys.wake: None,
            **{self.keys.lane(lane): lane for lane in LANES},
        }
        return [Hint(lane_of[key], stream_id) for key, entries in streams(reply) for stream_id, _ in entries]

    async def unblock(self) -> None:
        """End a `wait` under way; what was just being delivered still comes back from it."""
        await self.connection.unblock()

    async def complete(self, worker: str, completions: Sequence[Completion]) -> list[CompleteCode]:
        """Publish outcomes and remove their entries, in one script call."""
        keys = list(self._shared)
        args: list[Any] = [self._config, worker]
        for item in completions:
            result = self.keys.result(item.lease.request_id)
            keys += (result, self.keys.reply(item.reply) if item.reply else result)
            flat = [part for pair in item.values.items() for part in pair]
            lease = item.lease
            args += (lease.lane.number, lease.stream_id, lease.attempt, lease.request_id)
            args += (item.reply, item.status.value, item.error, len(flat), *flat)
        replies = await self._with_groups(lambda: self.connection.script("complete", keys, args))
        return [CompleteCode(code) for code in replies]

    async def renew(self, worker: str, leases: Sequence[Lease]) -> list[RenewCode]:
        """Renew leases; says which were lost and which ids have a result by now."""
        rows = [[*lease_row(lease), lease.request_id] for lease in leases]
        args = [self._config, worker, json.dumps(rows)]
        replies = await self._with_groups(lambda: self.connection.script("renew", self._shared, args))
        return [RenewCode(code) for code in replies]

    async def release(self, worker: str, leases: Sequence[Lease]) -> int:
        """Hand requests back at once, their attempt not counted. Returns how many were still this worker's."""
        args = [self._config, worker, json.dumps([lease_row(lease) for lease in leases])]
        return int(await self._with_groups(lambda: self.connection.script("release", self._shared, args)))

    async def disown(self, worker: str, known: Sequence[Lease]) -> int:
        """Hand back what this worker holds without knowing, because the answer to a pull was lost. Returns how many."""
        known_entries = {(lease.lane, lease.stream_id) for lease in known}
        commands = [("XPENDING", self.keys.lane(lane), GROUP, "-", "+", 10_000, worker) for lane in LANES]
        replies = await self._with_groups(lambda: self.connection.pipeline(commands))
        unknown = [
            Lease(lane, row[0], row[3], "")
            for lane, rows in zip(LANES, replies, strict=True)
            for row in map(pending_row, rows)
            if (lane, row[0]) not in known_entries
        ]
        return await self.release(worker, unknown) if unknown else 0

    async def retry_later(self, worker: str, retries: Sequence[Retry], max_deliveries: int) -> list[RetryCode]:
        """Hand requests back, attempts counted, to be due after their delay (0: at once)."""
        rows = [[*lease_row(item.lease), item.delay_ms, item.error] for item in retries]
        args = [self._config, worker, max_deliveries, json.dumps(rows)]
        replies = await self._with_groups(lambda: self.connection.script("retry_later", self._shared, args))
        return [RetryCode(code) for code in replies]

    async def read_cancels(self, last_id: str, block_ms: int) -> tuple[str, list[str]]:
        """Ids cancelled since `last_id` (``$``: from now on), waiting up to `block_ms` for one."""
        return await self._read_ids(self.keys.cancels, last_id, block_ms)

    async def last_cancel(self) -> str:
        """Id to start `read_cancels` from: the newest there is."""
        newest = await self.connection.command("XREVRANGE", self.keys.cancels, "+", "-", "COUNT", 1)
        found = entries(newest)
        return found[0][0] if found else "0-0"

    async def _read_ids(self, key: str, last_id: str, block_ms: int) -> tuple[str, list[str]]:
        words = ("XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", key, last_id)
        ids: list[str] = []
        for _, found in streams(await self.connection.block(block_ms / 1000, *words)):
            for stream_id, fields in found:
                last_id = stream_id
                ids.append(fields.get(b"id", b"").decode(errors="replace"))
        return last_id, ids

    # -- housekeeping ------------------------------------------------------------------------------------------

    async def lock_maintenance(self, worker: str, hold_ms: int) -> bool:
        """Whether this worker does the housekeeping for the next `hold_ms`.

        A full Redis has no room for the lock, yet it is the housekeeping that empties it: then everybody does it, which
        is only more work.
        """
        try:
            return bool(await self.connection.command("SET", self.keys.maintain, worker, "NX", "PX", hold_ms))
        except BrokerOutOfMemory:
            return True

    async def reclaim(self, lease_ms: int, max_deliveries: int, limit: int = 1000) -> Reclaimed:
        """Take back what was not renewed for `lease_ms`; give up on what was delivered `max_deliveries` times.

        Sent once: behind an outage that nobody could renew in, it would take healthy requests from their workers.
        """
        args = [self._config, lease_ms, max_deliveries, limit]
        return Reclaimed(*await self._with_groups(lambda: self.connection.script_once("reclaim", self._shared, args)))

    async def promote(self, limit: int = 1000) -> tuple[int, int | None]:
        """Bring delayed requests that are due back; how many, and in how many ms the next one is due."""
        args = [self._config, limit, self.limits.watchers]
        promoted, due = await self._with_groups(lambda: self.connection.script("promote", self._shared, args))
        return int(promoted), int(float(due)) if due else None

    async def expire(self, seen_ms: int | None = None, limit: int = 5000) -> tuple[int, int]:
        """End queued requests whose deadline has passed, `limit` looked at in each lane.

        Args:
            seen_ms: what an earlier call returned; nothing before it is looked at again but the first few.
            limit: how many ranks to look at in each lane at most.

        Returns:
            How many were ended, and the rank (epoch ms) up to which the lanes have been looked through.
        """
        args = [self._config, limit, "" if seen_ms is None else seen_ms]
        ended, seen = await self.connection.script("expire", self._shared, args)
        return int(ended), int(seen)

    async def check_in(self, worker: str, description: Mapping[str, Any]) -> int:
        """A worker's sign of life. Returns Redis's clock, epoch ms."""
        return int(
            await self.connection.script("check_in", self._shared, [self._config, worker, json.dumps(description)])
        )

    async def check_out(self, worker: str = "", silent_ms: int = 3_600_000) -> int:
        """Forget a worker that leaves, and those silent for `silent_ms`, where nothing of theirs is pending."""
        args = [self._config, worker, silent_ms]
        return int(await self._with_groups(lambda: self.connection.script("check_out", self._shared, args)))

    async def _with_groups(self, operation: Callable[[], Awaitable[T]]) -> T:
        try:
            return await operation()
        except MissingGroup:
            await self.ensure_groups()
            return await operation()

    # -- operators ---------------------------------------------------------------------------------------------

    async def audit(self, bound: int = 10_000) -> Audit:
        """Everything counted at one instant; undelivered entries up to `bound` for each lane."""
        counts, delayed, tries, dead, lanes = await self.connection.script("audit", self._shared, [self._config, bound])
        return Audit(
            counts={key.decode(): int(value) for key, value in mapping(counts).items()},
            delayed=delayed,
            tries=tries,
            dead_letters=dead,
            lanes=[lane_audit(lane, row) for lane, row in zip(LANES, lanes, strict=True)],
        )

    async def now_ms(self) -> int:
        """Redis's clock, epoch ms: what ages and deadlines are measured by."""
        seconds, microseconds = await self.connection.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def workers(self) -> dict[str, dict[str, Any]]:
        """Who is, or was lately, alive: worker name to its description."""
        reply = mapping(await self.connection.command("HGETALL", self.keys.workers))
        return {name.decode(errors="replace"): json.loads(text) for name, text in reply.items()}

    async def nearest(self, lane: Lane) -> tuple[int | None, int | None]:
        """Enqueueing time of a lane's oldest entry, and the first rank of its ready set, both epoch ms."""
        oldest, first = await self.connection.pipeline(
            [
                ("XRANGE", self.keys.lane(lane), "-", "+", "COUNT", 1),
                ("ZRANGE", self.keys.ready(lane), 0, 0, "WITHSCORES"),
            ]
        )
        found = entries(oldest)
        enqueued = int(found[0][0].split("-")[0]) if found else None
        return enqueued, first_score(first)

    async def running_by_worker(self, lane: Lane) -> dict[str, int]:
        """How many of a lane's requests each worker runs."""
        try:
            reply = await self.connection.command("XPENDING", self.keys.lane(lane), GROUP)
        except MissingGroup:
            return {}
        named = {name.decode(): int(count) for name, count in reply[3] or []}
        return {name: count for name, count in named.items() if name != NOBODY}

    async def dead_letters(self, newest: int = 10) -> list[tuple[str, dict[bytes, bytes]]]:
        """The newest dead letters, newest first: dead letter id and fields."""
        return entries(await self.connection.command("XREVRANGE", self.keys.dead, "+", "-", "COUNT", newest))

    async def dead_letter(self, letter_id: str) -> dict[bytes, bytes] | None:
        """One dead letter's fields; None when there is none of this id."""
        found = entries(await self.connection.command("XRANGE", self.keys.dead, letter_id, letter_id))
        return found[0][1] if found else None

    async def every_dead_letter(self, batch: int = 100) -> AsyncIterator[tuple[str, dict[bytes, bytes]]]:
        """All dead letters, oldest first."""
        start = "-"
        while True:
            found = entries(await self.connection.command("XRANGE", self.keys.dead, start, "+", "COUNT", batch))
            for entry in found:
                yield entry
            if len(found) < batch:
                return
            start = f"({found[-1][0]}"

    async def requeue(self, letter_id: str, request_id: str, lane: Lane, fields: Sequence[bytes]) -> str | None:
        """Enqueue a dead letter's fields again and forget its result; the new stream id, None when it was gone."""
        keys = [*self._shared, self.keys.result(request_id), self.keys.request(request_id)]
        reply = await self.connection.script("requeue", keys, [self._config, letter_id, lane.number, *fields])
        return reply.decode() or None

    async def delete_queue(self) -> int:
        """Delete every key of this queue, whatever they hold. Returns how many there were."""
        deleted, cursor = 0, b"0"
        pattern = re.sub(r"([*?\[\]^\\])", r"\\\1", self.keys.base) + "*"
        while True:
            cursor, found = await self.connection.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            if found:
                deleted += int(await self.connection.command("UNLINK", *found))
            if cursor == b"0":
                return deleted

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Delete dead letters; how many there were."""
        return int(await self.connection.command("XDEL", self.keys.dead, *letter_ids)) if letter_ids else 0
