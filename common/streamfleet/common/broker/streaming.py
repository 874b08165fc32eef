"""The part of the broker that carries streamed tokens from the worker that runs a request to its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.records import TokenGroup
from streamfleet.common.replies import entries, streams

Entries = list[tuple[str, dict[bytes, bytes]]]


class StreamingBroker(BrokerBase):
    """Publish chunks of tokens, and read them; their content is not interpreted here."""

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
            commands.append(("XADD", key, "MAXLEN", "~", cap, "*", *words))
            if group.lasting:
                commands.append(("PEXPIRE", key, self.limits.result_ttl_ms))
        await self.connection.pipeline(commands)

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
