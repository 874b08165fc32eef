"""The housekeeping part of the broker: work that one worker at a time does for the whole queue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamfleet.common.broker.reconciling import ReconcilingBroker
from streamfleet.common.broker.types import Reclaimed
from streamfleet.common.connection import MissingGroup
from streamfleet.common.protocol import BEFORE_IT_COMES
from streamfleet.common.queue_configuration import OF_CLIENTS, PROTOCOL, PROTOCOLS, encode
from streamfleet.common.replies import entries


class Turn(NamedTuple):
    """Answer to a request for the housekeeping's turn.

    Attributes:
        mine: the turn belongs to the worker that asked.
        unbroken_ms: if so, time since which workers have taken turns without a gap.
        workers: number of live workers.
        now_ms: Redis's clock, epoch ms.
        number: number of the turn, if it belongs to that worker.
        entries: number of entries in all lanes, if so.
    """

    mine: bool
    unbroken_ms: int
    workers: int
    now_ms: int
    number: int = 0
    entries: int = 1


class ExpiryScan(NamedTuple):
    """Extent of a scan for passed deadlines.

    Attributes:
        places: position of the next scan in each lane, in the script's own format.
        more: a bound cut the scan short.
    """

    places: Sequence[str] = ()
    more: bool = False


class HousekeepingBroker(ReconcilingBroker):
    """Take back, return, expire and delete entries; register and forget workers; measure and tidy."""

    @property
    def _with_clock(self) -> list[str]:
        return [*self._shared, self.keys.clock]

    async def acquire_housekeeping_lock(self, worker: str, hold_ms: int, gap_ms: int) -> Turn:
        """Take the lock under which this worker does the housekeeping for the next `hold_ms`, unless another has it.

        Args:
            worker: name of the worker that asks.
            hold_ms: length of its turn.
            gap_ms: time without a turn of any worker after which workers cannot have renewed either.
        """
        keys = [self.keys.maintain, self.keys.clock, self.keys.workers, *self.keys.lanes]
        answer = await self.connection.script("acquire_housekeeping_lock", keys, [worker, hold_ms, gap_ms])
        return Turn(bool(answer[0]), *answer[1:])

    async def reclaim(
        self, lease_ms: int, max_deliveries: int, limit: int = 100, latest_ms: int | None = None
    ) -> Reclaimed:
        """Take back entries that were not renewed for `lease_ms`; give up those delivered `max_deliveries` times.

        Sent once: repeated after an outage without renewals, it would take healthy requests from their workers.

        Args:
            lease_ms: the lease.
            max_deliveries: number of deliveries after which a request is given up.
            limit: largest number of entries to take back in each lane.
            latest_ms: if Redis's clock, epoch ms, is later, it has stepped forward, and nothing is taken back.
        """
        args = [self._config, lease_ms, max_deliveries, limit, "" if latest_ms is None else latest_ms]
        return Reclaimed(
            *await self._with_groups(lambda: self.connection.script_once("reclaim", self._with_clock, args))
        )

    async def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Replies to commands, in one round trip.

        Raises:
            BrokerUnavailable: Redis cannot be reached, or a key is of another type.
        """
        return await self._look_all(commands) if commands else []

    async def return_delayed(self, limit: int = 300, most_delay_ms: int | None = None) -> tuple[int, int | None]:
        """Make delayed requests that are due ready again.

        Args:
            limit: largest number of requests.
            most_delay_ms: longest possible delay; a later due time means that Redis's clock was set back.

        Returns:
            Number of requests made ready, and ms until the next one is due.
        """
        args = [self._config, limit, "" if most_delay_ms is None else most_delay_ms]
        returned, due = await self._with_groups(lambda: self.connection.script("return_delayed", self._shared, args))
        return int(returned), int(float(due)) if due else None

    async def tend_waiting(self, worker: str = "") -> None:
        """Wake workers, this one among them, if anything is ready; and replace watchers that died."""
        await self.connection.script("tend_waiting", self._shared, [self._config, worker])

    async def lose_homes(self, homes: Mapping[bytes, bytes], unused: int | None) -> None:
        """Make what waits for lost homes anybody's.

        Args:
            homes: number of each to its state in `sessions`, as it was read; one that has asked since is not lost.
            unused: number of all fields of `sessions` if none is of a session, which ends all homes; else None.
        """
        args = [self._config, "" if unused is None else unused, *(word for item in homes.items() for word in item)]
        await self.connection.script("lose_homes", self._shared, args)

    async def expire(self, seen: ExpiryScan | None = None, limit: int = 1000, most: int = 25) -> tuple[int, ExpiryScan]:
        """End queued requests whose deadline has passed.

        Args:
            seen: extent that an earlier scan returned; nothing before it is checked again.
            limit: largest number of ranks to check in each lane.
            most: largest number of requests to end in each lane.

        Returns:
            Number of requests that were ended, and the extent of this look.
        """
        args = [self._config, limit, most, json.dumps([*(seen.places if seen else ())])]
        ended, cut, *reached = await self.connection.script("expire", self._shared, args)
        return int(ended), ExpiryScan([part.decode() for part in reached], bool(cut))

    async def tidy_tenants(self, names: Sequence[bytes], unused: int | None) -> None:
        """Bring turns and charges of tenants to what is there, and forget tenants that have gone.

        Args:
            names: fields of `served` to check: records of tenants, and charges.
            unused: number of all its fields if none is such a one, which ends what is known of tenants; else None.
        """
        args = [self._config, "" if unused is None else unused, *names]
        await self.connection.script("tidy_tenants", self._shared, args)

    async def cancel_requests(self, most: int) -> list[tuple[str, str, str]]:
        """The oldest cancel requests: stream id, and as they were written the request id and `before_it_comes`."""
        found = entries(await self._look("XRANGE", self.keys.cancel_requests, "-", "+", "COUNT", most))
        return [
            (
                stream_id,
                fields.get(b"id", b"").decode(errors="replace"),
                fields.get(BEFORE_IT_COMES.encode(), b"").decode(errors="replace"),
            )
            for stream_id, fields in found
        ]

    async def drop_cancel_request(self, stream_id: str) -> None:
        """Delete a cancel request."""
        await self.connection.command("XDEL", self.keys.cancel_requests, stream_id)

    async def heartbeat(self, worker: str, description: Mapping[str, Any]) -> dict[str, str] | None:
        """Write a worker's heartbeat. Returns the queue's configuration; None if Redis refuses to read it.

        Raises:
            UnknownProtocol: this version does not know the queue's protocol.
        """
        keys, args = [*self._shared, self.keys.meta], [self._config, worker, json.dumps(description)]
        fields = await self.connection.script("heartbeat", keys, args)
        return None if fields is None else self._checked(fields)

    async def agree(self) -> dict[str, str]:
        """Write what the queue's configuration lacks, out of this worker's limits. Returns the whole of it.

        Raises:
            UnknownProtocol: another worker has written a protocol that this version does not know.
        """
        own = {name: value for name, value in encode(self.limits).items() if name not in OF_CLIENTS}
        return await self._write_configuration("add", {PROTOCOL: str(PROTOCOLS[-1]), **own})

    async def deregister(
        self,
        worker: str = "",
        silent_ms: int = 3_600_000,
        *,
        limit: int = 500,
        look_only: bool = False,
        pause_ms: int = 0,
    ) -> int:
        """Forget a worker that leaves, or up to `limit` workers silent for `silent_ms`; never one that holds entries.

        Once no silent worker is left, the search pauses for `pause_ms`, for all callers.

        Returns:
            Number of workers forgotten, or with `look_only` the number that would be.
        """
        args = [self._config, worker, silent_ms, limit, int(look_only), pause_ms]
        try:
            return int(await self.connection.script("deregister", self._with_clock, args))
        except MissingGroup:  # without a group, no worker holds anything
            if look_only:
                return 0
        await self.ensure_groups()
        return int(await self.connection.script("deregister", self._with_clock, args))

    async def retain(self, limit: int = 1_000) -> int:
        """Delete expired dead letters, about `limit` at most. Returns their number."""
        return int(await self.connection.script("retain", self._shared, [self._config, limit]))
