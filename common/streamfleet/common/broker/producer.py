"""The producers' broker: one method for each operation that a producer may do, each a script or command.

Requests enter by `enqueue`; results, states and streamed tokens leave. Nothing here takes work or repairs a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamfleet.common.broker.client import ClientBroker
from streamfleet.common.broker.types import Accepted, EnqueueCode, EntryState, Labelled, Submission
from streamfleet.common.connection import MissingGroup
from streamfleet.common.errors import NotReplicated
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.protocol import BEFORE_IT_COMES, Lane
from streamfleet.common.replies import (
    entries,
    id_order,
    labelled_lanes,
    last_delivered,
    pending_row,
    ready_member,
    recorded,
    streams,
)

_CODES = {code.value: code for code in EnqueueCode}
Entries = list[tuple[str, dict[bytes, bytes]]]
Notifications = list[tuple[str, dict[bytes, bytes] | None]]
"""Ids of requests that ended, each with the fields of its result if they came along."""
READ_AT_ONCE = 1_000
"""Most notifications of one read."""
REPLICAS_MS = 1_000
"""Longest wait for replicas. One that is in step answers within milliseconds, and enqueueing again is safe."""
IN_THE_QUEUE = frozenset({EnqueueCode.ACCEPTED, EnqueueCode.EXISTING})


class ProducerBroker(ClientBroker):
    """Verbs of producers: enqueue requests, follow them, read their tokens and results."""

    async def enqueue(self, submissions: Sequence[Submission]) -> list[Accepted]:
        """Accept requests, each id once; one script call, so keep it to some hundred requests or a megabyte.

        Raises:
            NotReplicated: they are accepted, but fewer than `limits.enqueue_replicas` replicas have them; the error's
                `unconfirmed` holds the answers that would have been returned.
        """
        replicas = self.limits.enqueue_replicas
        keys, args = self._enqueue_words(submissions)
        replicated = 0
        if replicas:
            replies, replicated = await self.connection.script_replicated("enqueue", keys, args, replicas, REPLICAS_MS)
        else:
            replies = await self.connection.script("enqueue", keys, args)
        codes, entries = replies[::2], replies[1::2]
        answers = [Accepted(_CODES[code], entry.decode()) for code, entry in zip(codes, entries, strict=True)]
        if replicated < replicas and any(answer.code in IN_THE_QUEUE for answer in answers):
            raise NotReplicated(
                f"the requests are in Redis at {self.connection.address}, but {replicated} of {replicas} replicas "
                f"(STREAMFLEET_ENQUEUE_REPLICAS) had them within {REPLICAS_MS} ms: a failover now could lose them. "
                "Enqueue the same again with the same ids, which is safe, and look after the replicas",
                list(answers),
            )
        return answers

    def _enqueue_words(self, submissions: Sequence[Submission]) -> tuple[list[str], list[Any]]:
        """KEYS and ARGV of enqueue.lua. Values that neighbours share are sent once, because each word costs time."""
        limits, lanes = self.limits, self.keys.lanes
        record, result = self.keys.request(""), self.keys.result("")
        shared = limits.lane_tenant_percent < 100 and any("tenant" in item.fields for item in submissions)
        keys = [
            *lanes,
            *(self.keys.of_shares if shared else ()),
            *[record + item.id for item in submissions],
            *[result + item.id for item in submissions],
        ]
        touch = "touch" if limits.enqueue_replicas else ""
        args: list[Any] = [limits.lane_limit, limits.lane_bytes, limits.record_ttl_ms, touch, len(lanes)]
        args.append(limits.lane_tenant_percent if shared else 0)
        run: tuple[str, ...] = ()
        start = 0
        for item in submissions:
            fields = item.fields
            similar = (item.lane, item.reply, *fields)
            if similar != run:
                run, start = similar, len(args)
                args += (0, item.lane.number, item.lane, item.reply, len(fields), *fields)
            args[start] += 1
            args.append(item.digest)
            args += fields.values()
        return keys, args

    async def ask_to_cancel(self, request_id: str, before_ms: int | None = None) -> None:
        """Ask workers to cancel a request: done within about a second if a worker runs, else when one starts.

        Args:
            request_id: its id.
            before_ms: as in `cancel`.
        """
        before = () if before_ms is None else (BEFORE_IT_COMES, before_ms)
        await self._ask(self.keys.cancel_requests, self.limits.notices_cap, "id", request_id, *before)

    async def record(self, request_id: str) -> str | None:
        """``<lane>:<stream id>`` of a request that a client enqueued; None when there is no record of it."""
        entry, _ = recorded(await self.connection.command("GET", self.keys.request(request_id)))
        return entry or None

    async def known(self, request_ids: Sequence[str]) -> list[str | None]:
        """Records of requests that clients enqueued, in the order asked for.

        Returns:
            For each request ``<lane>:<stream id>`` from its record; empty if only a result is left; None if nothing is.
        """
        # Records are read first: a request that ends between the two reads then still shows its record.
        count = len(request_ids)
        replies = await self.connection.pipeline(
            [
                *[("GET", self.keys.request(request_id)) for request_id in request_ids],
                *[("EXISTS", self.keys.result(request_id)) for request_id in request_ids],
            ]
        )
        records, results = replies[:count], replies[count:]
        return [
            recorded(record)[0] if record is not None or result else None
            for record, result in zip(records, results, strict=True)
        ]

    async def entry_state(self, entry: str) -> EntryState | None:
        """State of an entry; None if it is no longer in its lane. Reads no body, because a producer may not.

        An entry that was staged and is nowhere else is taken for one that waits, while others of its lane wait with a
        tenant: their sets cannot be asked for a stream id alone.
        """
        lane_name, stream_id = entry.split(":", 1)
        lane = Lane(lane_name)
        stream = self.keys.lane(lane)
        try:
            pending, groups, waiting, delayed, ticket, labels = await self.connection.pipeline(
                [
                    ("XPENDING", stream, GROUP, stream_id, stream_id, 1),
                    ("XINFO", "GROUPS", stream),
                    ("ZSCORE", self.keys.ready(lane), ready_member(stream_id)),
                    ("ZSCORE", self.keys.delayed, f"{lane.number}|{stream_id}"),
                    ("HGET", self.keys.tickets, f"{lane.number}|{stream_id}"),
                    ("HGET", self.keys.lane_states, "labelled"),
                ]
            )
        except MissingGroup:  # without a group, no worker was ever there, and nothing was delivered
            return EntryState() if await self.connection.command("XLEN", stream) else None
        row = pending_row(pending[0]) if pending else None
        if row is not None and row[1] != NOBODY:
            return EntryState(row[1], row[3])
        undelivered = id_order(stream_id) > id_order(last_delivered(groups, GROUP))
        counts = labelled_lanes(labels).get(lane, Labelled())
        known = row or waiting or delayed or undelivered or ticket
        return EntryState() if known or counts.tenant + counts.held else None

    async def read_replies(self, client: str, last_id: str, block_ms: int) -> tuple[str, Notifications]:
        """Wait up to `block_ms` for requests that end after `last_id`. Returns the id to go on from, and them."""
        words = ("XREAD", "COUNT", READ_AT_ONCE, "BLOCK", block_ms, "STREAMS", self.keys.reply(client), last_id)
        ended: Notifications = []
        for _, found in streams(await self.connection.block(block_ms / 1000, *words)):
            for stream_id, fields in found:
                last_id = stream_id
                request_id = fields.pop(b"id", b"").decode(errors="replace")
                ended.append((request_id, fields if b"finished_ms" in fields else None))
        return last_id, ended

    async def trim_replies(self, client: str, last_id: str) -> None:
        """Delete about all notifications before this one, so that a client's reply stream stays small."""
        await self.connection.command_once("XTRIM", self.keys.reply(client), "MINID", "~", last_id)

    async def delete_replies(self, client: str) -> None:
        """Delete a client's reply stream when the client leaves, also after its connection was shut.

        One try is enough, because the stream also expires by itself.
        """
        await self.connection.last("DEL", self.keys.reply(client))

    async def read_tokens(
        self, positions: Mapping[str, str], count: int, block_ms: int | None = None
    ) -> dict[str, Entries]:
        """New entries of requests' token streams after the given stream ids; requests without any are left out.

        Args:
            positions: request id to the stream id to read after.
            count: largest number of entries of each.
            block_ms: longest wait for an entry; None does not wait.
        """
        keys = [self.keys.tokens(request_id) for request_id in positions]
        behind = ("STREAMS", *keys, *positions.values())
        if block_ms is None:
            reply = await self.connection.command("XREAD", "COUNT", count, *behind)
        else:
            reply = await self.connection.block(block_ms / 1000, "XREAD", "COUNT", count, "BLOCK", block_ms, *behind)
        start = len(self.keys.tokens(""))
        return {key[start:]: found for key, found in streams(reply)}

    async def newest_tokens(self, request_id: str, count: int) -> Entries:
        """The newest entries of a request's token stream, newest first."""
        return entries(
            await self.connection.command("XREVRANGE", self.keys.tokens(request_id), "+", "-", "COUNT", count)
        )
