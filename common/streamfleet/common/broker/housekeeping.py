"""The housekeeping part of the broker: what any one worker does for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.connection import MissingGroup
from streamfleet.common.records import Reclaimed
from streamfleet.common.replies import entries


class Turn(NamedTuple):
    """Whose turn the housekeeping is.

    Attributes:
        mine: of the worker that asked.
        unbroken_ms: where it is: for how long turns have come, whoever's, without a gap.
        workers: how many are alive.
        now_ms: Redis's clock, epoch ms.
    """

    mine: bool
    unbroken_ms: int
    workers: int
    now_ms: int


class Looked(NamedTuple):
    """Extent of a look for passed deadlines.

    Attributes:
        places: where the next look goes on in each lane, in words of the script.
        more: a bound cut the look short.
    """

    places: Sequence[str] = ()
    more: bool = False


class HousekeepingBroker(BrokerBase):
    """Keep the queue moving, and forget what is gone."""

    async def take_turn(self, worker: str, hold_ms: int, gap_ms: int) -> Turn:
        """Whether this worker does the housekeeping for the next `hold_ms`.

        Args:
            worker: who asks.
            hold_ms: how long its turn is.
            gap_ms: after how long without anybody's turn workers cannot have renewed either.
        """
        keys = [self.keys.maintain, self.keys.sched, self.keys.workers]
        answer = await self.connection.script("take_turn", keys, [worker, hold_ms, gap_ms])
        return Turn(bool(answer[0]), *answer[1:])

    async def reclaim(
        self, lease_ms: int, max_deliveries: int, limit: int = 100, latest_ms: int | None = None
    ) -> Reclaimed:
        """Take back what was not renewed for `lease_ms`; give up on what was delivered `max_deliveries` times.

        Sent once: behind an outage that nobody could renew in, it would take healthy requests from their workers.

        Args:
            lease_ms: the lease.
            max_deliveries: when a request is given up.
            limit: how many to take back in each lane at most.
            latest_ms: nothing is taken back where Redis's clock, epoch ms, is beyond this: it has stepped forward.
        """
        args = [self._config, lease_ms, max_deliveries, limit, "" if latest_ms is None else latest_ms]
        return Reclaimed(*await self._with_groups(lambda: self.connection.script_once("reclaim", self._shared, args)))

    async def promote(self, limit: int = 300, most_delay_ms: int | None = None) -> tuple[int, int | None]:
        """Bring delayed requests that are due back.

        Args:
            limit: how many at most.
            most_delay_ms: the longest that one waits: what is due later was delayed before Redis's clock was set back.

        Returns:
            How many, and in how many ms the next one is due.
        """
        args = [self._config, limit, self.limits.watchers, "" if most_delay_ms is None else most_delay_ms]
        promoted, due = await self._with_groups(lambda: self.connection.script("promote", self._shared, args))
        return int(promoted), int(float(due)) if due else None

    async def expire(self, seen: Looked | None = None, limit: int = 1000, most: int = 25) -> tuple[int, Looked]:
        """End queued requests whose deadline has passed.

        Args:
            seen: extent of an earlier look; nothing before it is looked at again.
            limit: how many ranks to look at in each lane at most.
            most: how many to end in each lane at most.

        Returns:
            How many have ended, and the extent of this look.
        """
        args = [self._config, limit, most, json.dumps([*(seen.places if seen else ())])]
        ended, cut, *reached = await self.connection.script("expire", self._shared, args)
        return int(ended), Looked([part.decode() for part in reached], bool(cut))

    async def cancel_requests(self, most: int) -> list[tuple[str, str]]:
        """The oldest cancels that were asked for: stream id, and the request id as it was written."""
        found = entries(await self._look("XRANGE", self.keys.cancel_requests, "-", "+", "COUNT", most))
        return [(stream_id, fields.get(b"id", b"").decode(errors="replace")) for stream_id, fields in found]

    async def drop_cancel_request(self, stream_id: str) -> None:
        """Forget a cancel that was asked for."""
        await self.connection.command("XDEL", self.keys.cancel_requests, stream_id)

    async def check_in(self, worker: str, description: Mapping[str, Any]) -> int:
        """A worker's sign of life. Returns Redis's clock, epoch ms."""
        return int(
            await self.connection.script("check_in", self._shared, [self._config, worker, json.dumps(description)])
        )

    async def check_out(
        self,
        worker: str = "",
        silent_ms: int = 3_600_000,
        *,
        limit: int = 500,
        look_only: bool = False,
        pause_ms: int = 0,
    ) -> int:
        """Forget a worker that leaves, or up to `limit` of those silent for `silent_ms`; none that holds anything.

        Once nobody is left to forget, nobody is looked for during `pause_ms`, whoever asks.

        Returns:
            How many were forgotten, or with `look_only` would be.
        """
        args = [self._config, worker, silent_ms, limit, int(look_only), pause_ms]
        try:
            return int(await self.connection.script("check_out", self._shared, args))
        except MissingGroup:  # and so nobody holds anything
            if look_only:
                return 0
        await self.ensure_groups()
        return int(await self.connection.script("check_out", self._shared, args))

    async def retain(self, limit: int = 1_000) -> int:
        """Delete dead letters beyond their life, about `limit` at most. Returns how many."""
        return int(await self.connection.script("retain", self._shared, [self._config, limit]))
