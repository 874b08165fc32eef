"""The workers' broker: one method for each operation that a worker may do, each a script or command.

Claims leave by `pull`; outcomes, tokens and renewals enter. A lease (worker and attempt) fences every write.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from streamfleet.common.broker.housekeeping import HousekeepingBroker
from streamfleet.common.broker.types import (
    CompleteCode,
    Completion,
    Hint,
    Home,
    Lease,
    Notices,
    Pulled,
    RenewCode,
    Retry,
    RetryCode,
    Role,
    Rooms,
    TokenGroup,
)
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import (
    claim,
    entries,
    first_score,
    labelled_lanes,
    lease_row,
    number,
    pending_row,
    streams,
)

STAGE_ENTRIES = 96
"""Arrivals that one call brings in order: with labels that takes about 5 ms of Redis."""
_WISHES = struct.Struct(f"<{6 + 2 * len(LANES)}d")
"""Numbers that a pull is told, in the order of pull.lua."""


class WorkerBroker(HousekeepingBroker):
    """Verbs of workers: take requests, hold their leases, stream tokens, end requests or hand them back."""

    async def pull(
        self,
        worker: str,
        wanted: int | Rooms,
        hints: Sequence[Hint] = (),
        *,
        owing: bool = False,
        stage_entries: int = STAGE_ENTRIES,
        watch_ms: int = 7_000,
        needs: Mapping[str, int] | None = None,
        home: Home | None = None,
    ) -> Pulled:
        """Lease the best waiting requests to this worker. Sent once; see `disown` for a lost answer.

        Args:
            worker: this worker's name.
            wanted: largest number of requests, or the room for each lane; 0 for none (see `stage`).
            hints: entries that the last blocking read delivered.
            owing: True if it waited since its last pull; what it was woken for is told another one if it has no room.
            stage_entries: largest number of arrivals to stage.
            watch_ms: time that a watch lasts unless a pull renews it.
            needs: ms that this worker's requests of each class of length take at least: what has less time until its
                deadline is ended. None judges no deadline.
            home: tells sessions that this worker has a prefix cache; None if it has none.
        """
        rooms = wanted if isinstance(wanted, Rooms) else Rooms.same(wanted)
        most = max(rooms.lanes)
        numbers = _WISHES.pack(
            *(most, rooms.free, max(stage_entries, most), owing, watch_ms),
            *(0 if home is None else home.held, *rooms.lanes, *rooms.owed),
        )
        args: list[Any] = [self._config, worker, numbers, "" if needs is None else json.dumps(needs)]
        args += ["" if home is None else home.start]
        for hint in hints:
            args += [hint.lane.number if hint.lane else 0, hint.stream_id]
        keys = [*self._shared, self.keys.pace, self.keys.wake_up(worker)]
        reply = await self._with_groups(lambda: self.connection.script_once("pull", keys, args))
        claims, ready, role, now, staged, dropped, soonest = reply
        soonest_ms = None if soonest == b"" else int(soonest)
        return Pulled([claim(row) for row in claims], ready, Role(role), int(now), staged, dropped, soonest_ms)

    async def stage(self, worker: str, most: int = STAGE_ENTRIES) -> Pulled:
        """Move up to `most` arrivals into their ready sets, and take nothing: a pull without room."""
        return await self.pull(worker, 0, stage_entries=most)

    async def head(self) -> tuple[Lane, float] | None:
        """Lane and rank of the first staged request, of lanes that are not paused; None if there is none."""
        fields = [*(f"paused:{lane}" for lane in LANES), "labelled"]
        commands = [("ZRANGE", self.keys.ready(lane), 0, 0, "WITHSCORES") for lane in LANES]
        *found, (*paused, labels) = await self._look_all([*commands, ("HMGET", self.keys.lane_states, *fields)])
        counts = labelled_lanes(labels)
        for lane, rank, pause in zip(LANES, map(first_score, found), paused, strict=True):
            if pause is None:
                first = await self._first_rank(lane, rank) if lane in counts else rank
                if first is not None:
                    return lane, first
        return None

    async def _first_rank(self, lane: Lane, rank: int | None) -> int | None:
        """Rank of the first request of a lane in which something has a label; `rank`: of its first without one."""
        ready = self.keys.ready(lane)
        *firsts, turns = await self._look_all(
            [
                ("ZRANGE", f"{ready}:firsts", 0, 0, "WITHSCORES"),
                ("ZRANGE", f"{ready}:held", 0, 0, "WITHSCORES"),
                ("ZRANGEBYSCORE", self.keys.turns(lane), 0, "+inf", "LIMIT", 0, 1),
            ]
        )
        if turns and turns[0]:
            sets = [f"{ready}:{kind}:".encode() + turns[0] for kind in ("t", "th")]
            firsts += await self._look_all([("ZRANGE", key, 0, 0, "WITHSCORES") for key in sets])
        return min((each for each in (rank, *map(first_score, firsts)) if each is not None), default=None)

    async def watch(self, timeout_ms: int, lanes: Sequence[Lane] = LANES) -> list[Hint]:
        """Block as a watcher until there may be work, or for `timeout_ms`; the hints returned go into the next pull.

        Args:
            timeout_ms: longest wait.
            lanes: lanes whose arrivals it hears of.
        """
        timeout_ms = max(timeout_ms, 2)  # 0 blocks for ever
        keys = [self.keys.wake, *map(self.keys.lane, lanes)]
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

    async def wait(self, timeout_ms: int, worker: str) -> bool:
        """Block until this worker is woken, or for `timeout_ms`. Returns True if it is to watch, without a pull."""
        timeout_ms = max(timeout_ms, 2)  # BLPOP of Redis 6.2 rounds 1 ms down to 0, which blocks for ever
        words = ("BLPOP", self.keys.wake_up(worker), timeout_ms / 1000)
        found: list[bytes] | None = await self.connection.block(timeout_ms / 1000, *words)
        return found is not None and found[1] == b"watch"

    async def unblock(self) -> None:
        """End a wait in progress; an entry that is just being delivered is still returned by it."""
        await self.connection.unblock()

    async def complete(self, worker: str, completions: Sequence[Completion]) -> list[CompleteCode]:
        """Publish outcomes and remove their entries, in one script call."""
        keys, tokens = list(self._shared), []
        args: list[Any] = [self._config, worker]
        for item in completions:
            lane, stream_id, attempt, request_id = item.lease
            result = self.keys.result(request_id)
            keys += (result, self.keys.reply(item.reply) if item.reply else result)
            args += (lane.number, stream_id, attempt, request_id, item.reply, item.status.value, item.error)
            args.append("" if item.held is None else _held(item.held))
            args += (item.digest, 2 * len(item.values), *chain.from_iterable(item.values.items()))
            if "streamed" in item.values:
                tokens.append(self.keys.tokens(request_id))
        replies = await self._with_groups(lambda: self.connection.script("complete", keys + tokens, args))
        return [CompleteCode(code) for code in replies]

    async def renew(
        self, worker: str, leases: Sequence[Lease], kept: Mapping[Lease, tuple[str, int]] = MappingProxyType({})
    ) -> list[RenewCode]:
        """Renew leases. Returns a code for each: renewed, lost, or answered (its id has a result by now).

        Args:
            worker: this worker's name.
            leases: the leases.
            kept: run and bytes of output, of those of which some was kept: the next run goes on from it.
        """
        rows = [[*lease_row(lease), lease.request_id, *kept.get(lease, ())] for lease in leases]
        args = [self._config, worker, json.dumps(rows)]
        replies = await self._with_groups(lambda: self.connection.script("renew", self._shared, args))
        return [RenewCode(code) for code in replies]

    async def release(
        self,
        worker: str,
        leases: Sequence[Lease],
        *,
        in_turn: bool = False,
        gave_way: bool = False,
        kept: Mapping[Lease, tuple[str, int]] = MappingProxyType({}),
        generated: Mapping[Lease, int] = MappingProxyType({}),
    ) -> int:
        """Hand requests back at once, attempt not counted.

        Args:
            worker: this worker's name.
            leases: the requests.
            in_turn: True if their lanes get their picks back as well.
            gave_way: True if they were interrupted for urgent ones, which is counted for each.
            kept: run and bytes of their output, of those of which it was kept.
            generated: tokens that their runs have generated, which stay charged.

        Returns:
            Number of requests that were still leased to this worker.
        """
        rows = [
            [*lease_row(lease), *kept.get(lease, (False, False)), generated.get(lease, 0)]
            if lease in kept or lease in generated
            else [*lease_row(lease)]
            for lease in leases
        ]
        released, at_once = 0, self.limits.at_once
        how = "gave way" if gave_way else int(in_turn)
        while rows:
            args = [self._config, worker, json.dumps(rows[:at_once]), how]
            back, looked_at = await self._with_groups(partial(self.connection.script, "release", self._shared, args))
            released, rows = released + back, rows[looked_at:]
        return released

    async def keep(self, outputs: Mapping[str, bytes]) -> bool:
        """Store the output of interrupted runs, by run, for a time. Returns False if Redis has no room for it."""
        kept = await self._look("HGET", self.keys.entries, "kept_bytes")
        if number(kept or b"0") + sum(map(len, outputs.values())) > self.limits.kept_bytes:
            return False
        life = ("PX", self.limits.kept_ttl_ms)
        try:
            await self.connection.pipeline([("SET", self.keys.kept(run), out, *life) for run, out in outputs.items()])
        except BrokerOutOfMemory:
            await self.connection.command("DEL", *map(self.keys.kept, outputs))  # some may have been stored
            return False
        return True

    async def kept(self, runs: Sequence[str]) -> list[bytes | None]:
        """The output of interrupted runs; None for what is gone, or was overwritten with another type."""
        replies: list[bytes | None] = await self.connection.command("MGET", *map(self.keys.kept, runs))
        return replies

    async def disown(self, worker: str, known: Sequence[Lease]) -> int:
        """Hand back entries that this worker holds unknowingly after a pull's answer was lost. Returns their number."""
        known_entries = {(lease.lane, lease.stream_id) for lease in known}
        commands = [("XPENDING", self.keys.lane(lane), GROUP, "-", "+", 10_000, worker) for lane in LANES]
        replies = await self._with_groups(lambda: self._look_all(commands))
        unknown = [
            Lease(lane, row[0], row[3], "")
            for lane, rows in zip(LANES, replies, strict=True)
            for row in map(pending_row, rows)
            if (lane, row[0]) not in known_entries
        ]
        return await self.release(worker, unknown) if unknown else 0

    async def retry_later(self, worker: str, retries: Sequence[Retry], max_deliveries: int) -> list[RetryCode]:
        """Hand requests back, attempt counted; each is due after its delay (0: at once)."""
        rows = [
            [
                *lease_row(item.lease),
                item.delay_ms,
                item.error,
                item.worker_lost,
                item.held is not None and _held(item.held),
            ]
            for item in retries
        ]
        codes: list[RetryCode] = []
        while rest := rows[len(codes) :]:
            args = [self._config, worker, max_deliveries, json.dumps(rest[: self.limits.at_once])]
            replies = await self._with_groups(partial(self.connection.script, "retry_later", self._shared, args))
            codes += map(RetryCode, replies)
        return codes

    async def read_notices(self, last_id: str, block_ms: int) -> Notices:
        """Wait up to `block_ms` for notices to all workers after `last_id` (``$``: from now on)."""
        words = ("XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", self.keys.cancels, last_id)
        found = [row for _, rows in streams(await self.connection.block(block_ms / 1000, *words)) for row in rows]

        def named(field: bytes) -> list[str]:
            return [fields[field].decode(errors="replace") for _, fields in found if field in fields]

        last_id = found[-1][0] if found else last_id
        return Notices(last_id, named(b"id"), frozenset(named(b"drain")), bool(named(b"configuration")))

    async def last_notice(self) -> str:
        """Id of the newest notice, to start `read_notices` from."""
        newest = await self._look("XREVRANGE", self.keys.cancels, "+", "-", "COUNT", 1)
        found = entries(newest)
        return found[0][0] if found else "0-0"

    async def publish_tokens(self, groups: Sequence[TokenGroup], cap: int) -> None:
        """Add groups of chunks to their requests' streams, in one round trip.

        Args:
            groups: groups in order; a group with `lasting` resets its stream's time to live.
            cap: approximate number of entries that one request's stream keeps.
        """
        commands: list[Sequence[Any]] = []
        for group in groups:
            key = self.keys.tokens(group.request_id)
            words = ("attempt", group.attempt, "run", group.run, "seq", group.seq, "chunks", group.chunks)
            resumed = ("resumed", group.resumed) if group.resumed else ()
            commands.append(("XADD", key, "MAXLEN", "~", cap, "*", *words, *resumed))
            if group.lasting:
                commands.append(("PEXPIRE", key, self.limits.result_ttl_ms))
        await self.connection.pipeline(commands)


def _held(tokens: float) -> str | int:
    """Output tokens for the time in the engine, as scripts read them."""
    return "all" if math.isinf(tokens) else round(tokens)
