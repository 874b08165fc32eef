"""The part of the broker that carries tokens while they come, from the worker that runs a request to its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.records import TokenGroup
from streamfleet.common.replies import entries, streams

Entries = list[tuple[str, dict[bytes, bytes]]]


class StreamingBroker(BrokerBase):
    """Publish tokens, and read them. What they say is `streamfleet.common.tokens`' matter."""

    async def publish_tokens(self, groups: Sequence[TokenGroup], cap: int) -> None:
        """Add groups of chunks to their requests' streams, in one round trip.

        Args:
            groups: in order; those with `lasting` give their stream its life anew.
            cap: about how many entries one request's stream keeps.
        """
        commands: list[Sequence[Any]] = []
        for group in groups:
            key = self.keys.tokens(group.request_id)
            words = ("attempt", group.attempt, "run", group.run, "seq", group.seq, "chunks", group.chunks)
            commands.append(("XADD", key, "MAXLEN", "~", cap, "*", *words))
            if group.lasting:
                commands.append(("PEXPIRE", key, self.limits.result_ttl_ms))
        await self.connection.pipeline(commands)

    async def read_tokens(
        self, positions: Mapping[str, str], count: int, block_ms: int | None = None
    ) -> dict[str, Entries]:
        """What stands in requests' token streams behind the given stream ids; requests without any are left out.

        Args:
            positions: request id to the stream id to read behind.
            count: most entries of each.
            block_ms: wait so long for one; None looks once.
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
        """The newest entries of a request's tokens, newest first."""
        return entries(
            await self.connection.command("XREVRANGE", self.keys.tokens(request_id), "+", "-", "COUNT", count)
        )
