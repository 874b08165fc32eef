"""The producers' part of the broker."""

from __future__ import annotations

from collections.abc import Sequence

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.connection import MissingGroup
from streamfleet.common.errors import openai_error
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.records import Accepted, EnqueueCode, Submission
from streamfleet.common.replies import mapping, pending_row
from streamfleet.common.results import Result, decode_result


class ProducerBroker(BrokerBase):
    """Put requests in, follow them, get results out."""

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
