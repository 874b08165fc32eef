"""The producers' part of the broker: enqueue and cancel requests, read their state and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.connection import MissingGroup
from streamfleet.common.errors import NotReplicated, openai_error
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.protocol import Lane
from streamfleet.common.records import Accepted, EnqueueCode, Standing, Submission
from streamfleet.common.replies import id_order, last_delivered, mapping, pending_row, ready_member, recorded, streams
from streamfleet.common.results import Result, decode_result

CANCEL_REQUESTS_CAP = 10_000
_CODES = {code.value: code for code in EnqueueCode}
IN_THE_QUEUE = frozenset({EnqueueCode.ACCEPTED, EnqueueCode.EXISTING})


class ProducerBroker(BrokerBase):
    """Enqueue requests, follow them, read their results."""

    async def enqueue(self, submissions: Sequence[Submission]) -> list[Accepted]:
        """Accept requests, each id once; one script call, so keep it to some hundred requests or a megabyte.

        Raises:
            NotReplicated: they are accepted, but fewer than `limits.enqueue_replicas` replicas have them; the error's
                `unconfirmed` holds the answers that would have been returned.
        """
        replicas, timeout_ms = self.limits.enqueue_replicas, self.limits.enqueue_replicas_timeout_ms
        keys, args = self._enqueue_words(submissions)
        replicated = 0
        if replicas:
            replies, replicated = await self.connection.script_replicated("enqueue", keys, args, replicas, timeout_ms)
        else:
            replies = await self.connection.script("enqueue", keys, args)
        codes, entries = replies[::2], replies[1::2]
        answers = [Accepted(_CODES[code], entry.decode()) for code, entry in zip(codes, entries, strict=True)]
        if replicated < replicas and any(answer.code in IN_THE_QUEUE for answer in answers):
            raise NotReplicated(
                f"the requests are in Redis at {self.connection.address}, but {replicated} of {replicas} replicas "
                f"(STREAMFLEET_ENQUEUE_REPLICAS) had them within {timeout_ms} ms: a failover now could lose them. "
                "Enqueue the same again with the same ids, which is safe, and look after the replicas",
                list(answers),
            )
        return answers

    def _enqueue_words(self, submissions: Sequence[Submission]) -> tuple[list[str], list[Any]]:
        """KEYS and ARGV of enqueue.lua. Values that neighbours share are sent once, because each word costs time."""
        limits = self.limits
        record, result = self.keys.request(""), self.keys.result("")
        keys = [
            *self.keys.lanes,
            *[record + item.id for item in submissions],
            *[result + item.id for item in submissions],
        ]
        touch = "touch" if limits.enqueue_replicas else ""
        args: list[Any] = [limits.lane_limit, limits.lane_bytes, limits.record_ttl_ms, touch]
        run: tuple[str, ...] = ()
        start = 0
        for item in submissions:
            fields = item.fields
            shared = (item.lane, item.reply, *fields)
            if shared != run:
                run, start = shared, len(args)
                args += (0, item.lane.number, item.lane, item.reply, len(fields), *fields)
            args[start] += 1
            args.append(item.digest)
            args += fields.values()
        return keys, args

    async def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """Cancel a request, queued or running. False if it had already ended in another way.

        A cancel writes a result, which the role of a producer may not do: then it raises NotPermitted and changes
            nothing.
        """
        entry, reply = recorded(await self.connection.command("GET", self.keys.request(request_id)))
        keys = [
            *self._shared,
            self.keys.result(request_id),
            self.keys.reply(reply) if reply else self.keys.result(request_id),
            self.keys.tokens(request_id),
        ]
        error = openai_error(reason, "cancelled", None, "cancelled")
        if await self.connection.script("cancel", keys, [self._config, request_id, reply, error, entry or request_id]):
            return True
        result = await self.result(request_id)
        return result is not None and result.status == "cancelled"

    async def ask_to_cancel(self, request_id: str) -> None:
        """Ask workers to cancel a request: done within about a second if a worker runs, else when one starts."""
        await self._ask(self.keys.cancel_requests, CANCEL_REQUESTS_CAP, "id", request_id)

    async def result(self, request_id: str) -> Result | None:
        """A request's result; None before it has one, and after the result has expired."""
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

    async def standing(self, entry: str) -> Standing | None:
        """State of an entry; None if it is no longer in its lane. Reads no body, because a producer may not."""
        lane_name, stream_id = entry.split(":", 1)
        lane = Lane(lane_name)
        stream = self.keys.lane(lane)
        try:
            pending, groups, waiting, delayed = await self.connection.pipeline(
                [
                    ("XPENDING", stream, GROUP, stream_id, stream_id, 1),
                    ("XINFO", "GROUPS", stream),
                    ("ZSCORE", self.keys.ready(lane), ready_member(stream_id)),
                    ("ZSCORE", self.keys.delayed, f"{lane.number}|{stream_id}"),
                ]
            )
        except MissingGroup:  # without a group, no worker was ever there, and nothing was delivered
            return Standing() if await self.connection.command("XLEN", stream) else None
        row = pending_row(pending[0]) if pending else None
        if row is not None and row[1] != NOBODY:
            return Standing(row[1], row[3])
        undelivered = id_order(stream_id) > id_order(last_delivered(groups, GROUP))
        return Standing() if row or waiting or delayed or undelivered else None

    async def read_replies(self, client: str, last_id: str, block_ms: int) -> tuple[str, list[str]]:
        """Wait up to `block_ms` for requests that end after `last_id`. Returns the id to go on from, and their ids."""
        words = ("XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", self.keys.reply(client), last_id)
        ids: list[str] = []
        for _, found in streams(await self.connection.block(block_ms / 1000, *words)):
            for stream_id, fields in found:
                last_id = stream_id
                ids.append(fields.get(b"id", b"").decode(errors="replace"))
        return last_id, ids

    async def delete_replies(self, client: str) -> None:
        """Delete a client's reply stream when the client leaves, also after its connection was shut.

        One try is enough, because the stream also expires by itself.
        """
        await self.connection.last("DEL", self.keys.reply(client))
