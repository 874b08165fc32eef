"""The part of the operators' broker that counts requests, steers lanes and workers, and handles dead letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from streamfleet.common.broker.client import ClientBroker
from streamfleet.common.broker.types import TenantRule
from streamfleet.common.connection import MissingGroup
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.protocol import LANES, Lane
from streamfleet.common.replies import (
    consumer_name,
    descriptions,
    entries,
    first_score,
    id_order,
    labelled_lanes,
    lane_of,
    mapping,
    number,
    pace_per_s,
    ranked_member,
    tenant_rule,
    texts,
)
from streamfleet.operator.broker.audit import Audit, Ranked, Sample, lane_audit, length_audits, places, tenant_audits
from streamfleet.operator.broker.waiting import WaitingBroker

OUTSTANDING = "outstanding"
"""Status that requeue.lua returns for a request that has not ended."""


class ControlBroker(WaitingBroker, ClientBroker):
    """Count requests, pause lanes, drain workers, change the queue's configuration, handle dead letters."""

    async def audit(self, bound: int = 10_000) -> Audit:
        """All counts at one instant; undelivered entries are counted up to `bound` per lane."""
        counts, delayed, tries, dead, lanes, served = await self.connection.script(
            "audit", self._shared, [self._config, bound]
        )
        return Audit(
            counts={key.decode(errors="replace"): number(value) for key, value in mapping(counts).items()},
            delayed=delayed,
            tries=tries,
            dead_letters=dead,
            lanes=[lane_audit(lane, row) for lane, row in zip(LANES, lanes, strict=True)],
            tenants=tenant_audits(texts(served)),
            lengths=length_audits(texts(served)),
        )

    async def sample(self, ready: Mapping[Lane, int], delayed_at_most: int) -> Sample:
        """Ages and deadlines, as far as `audit` does not tell, at a cost that does not grow with the queue.

        One round trip, and four more while requests wait that have a tenant or a home.

        Args:
            ready: number of requests that wait in each lane.
            delayed_at_most: largest number of delayed requests to count by lane.
        """
        asked = [(lane, place) for lane in LANES for place in places(ready[lane])]
        (seconds, microseconds), workers, delayed, (*paused, labels), pace, *rows = await self._look_all(
            [
                ("TIME",),
                ("HGETALL", self.keys.workers),
                ("ZRANGE", self.keys.delayed, 0, delayed_at_most - 1),
                ("HMGET", self.keys.lane_states, *self._paused_fields, "labelled"),
                ("GET", self.keys.pace),
                *(("XRANGE", self.keys.lane(lane), "-", "+", "COUNT", 1) for lane in LANES),
                *(("ZRANGE", self.keys.ready(lane), place, place, "WITHSCORES") for lane, place in asked),
            ]
        )
        oldest, staged = rows[: len(LANES)], list(zip(asked, rows[len(LANES) :], strict=True))
        first_ms = {
            lane: rank for (lane, place), row in staged if place == 0 and (rank := first_score(row)) is not None
        }
        ranked = [Ranked(*at, *found) for at, row in staged if (found := ranked_member(row))]
        for labelled, (first, merged) in (await self._ranked(labelled_lanes(labels))).items():
            ranked = [each for each in ranked if each.lane is not labelled] + merged
            if first is not None:
                first_ms[labelled] = first
        return Sample(
            now_ms=int(seconds) * 1000 + int(microseconds) // 1000,
            workers=descriptions(workers),
            delayed=Counter(lane for member in delayed if (lane := lane_of(member))),
            oldest_ms={
                lane: id_order(entry)[0] for lane, row in zip(LANES, oldest, strict=True) for entry, _ in entries(row)
            },
            paused_ms=_paused(paused),
            first_ms=first_ms,
            ranked=ranked,
            pace_per_s=pace_per_s(pace),
        )

    async def running_by_worker(self, lane: Lane) -> dict[str, int]:
        """Number of a lane's requests that each worker runs."""
        try:
            reply = await self.connection.command("XPENDING", self.keys.lane(lane), GROUP)
        except MissingGroup:
            return {}
        named = {consumer_name(name): int(count) for name, count in reply[3] or []}
        return {name: count for name, count in named.items() if name != NOBODY}

    async def dead_letters(self, newest: int = 10) -> list[tuple[str, dict[bytes, bytes]]]:
        """The newest dead letters, newest first: dead letter id and fields."""
        return entries(await self.connection.command("XREVRANGE", self.keys.dead, "+", "-", "COUNT", newest))

    async def dead_letter(self, letter_id: str) -> dict[bytes, bytes] | None:
        """One dead letter's fields; None if there is none with this id."""
        found = entries(await self.connection.command("XRANGE", self.keys.dead, letter_id, letter_id))
        return found[0][1] if found else None

    async def requeue(
        self,
        letter_id: str,
        request_id: str,
        lane: Lane,
        fields: Sequence[bytes],
        *,
        entry: str,
        digest: str = "-",
        reply: str = "",
    ) -> tuple[str | None, str]:
        """Enqueue a dead letter's fields again and forget its result, unless its id names another entry by now.

        Args:
            letter_id, request_id, lane, entry: as in the dead letter; ``entry`` is ``<lane>:<stream id>``.
            fields: flat names and values.
            digest: digest that identifies the same request if its record is gone.
            reply: the caller's reply stream, or empty.

        Returns:
            The new stream id, also if the letter was requeued before; None if the letter is gone or was refused. Then
            the
            status of the request that now has its id, or `OUTSTANDING`, or empty.
        """
        keys = [
            *self._shared,
            self.keys.result(request_id),
            self.keys.request(request_id),
            self.keys.tokens(request_id),
        ]
        words = (letter_id, lane.number, entry, request_id, digest, reply)
        new, newer = await self.connection.script("requeue", keys, [self._config, *words, *fields])
        return new.decode() or None, newer.decode(errors="replace")

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Delete dead letters. Returns the number deleted."""
        return int(await self.connection.command("XDEL", self.keys.dead, *letter_ids)) if letter_ids else 0

    async def pause(self, lanes: Sequence[Lane] = LANES) -> list[Lane]:
        """Stop workers from taking requests of these lanes. Returns the lanes that were not paused before."""
        return await self._pause(lanes, "1")

    async def resume(self, lanes: Sequence[Lane] = LANES) -> list[Lane]:
        """Continue these lanes. Returns the lanes that were paused."""
        return await self._pause(lanes, "0")

    async def paused(self) -> dict[Lane, int]:
        """The paused lanes, and the start of each pause (epoch ms; 0 if it cannot be read)."""
        return _paused(await self._look("HMGET", self.keys.lane_states, *self._paused_fields))

    async def drain(self, worker: str) -> None:
        """Tell a worker to finish its requests and stop; told twice, it hands them back."""
        await self._ask(self.keys.cancels, self.limits.notices_cap, "drain", worker)

    async def set_configuration(self, values: Mapping[str, str]) -> dict[str, str]:
        """Change the queue's configuration and tell all workers. Returns the whole of it. `decode` checks values."""
        return await self._write_configuration("set", values)

    async def tenant_rules(self) -> dict[str, TenantRule]:
        """Weight and limit of the tenants that have some of their own."""
        found = texts(await self._look("HGETALL", self.keys.tenants))
        return {name: rule for name, value in found.items() if not (rule := tenant_rule(value)).usual}

    async def has_tenants(self) -> bool:
        """True if a tenant was given lately, or operators have set something of one."""
        return bool(await self._look("HGET", self.keys.lane_states, "tenants") or await self.tenant_rules())

    @property
    def _paused_fields(self) -> list[str]:
        return [f"paused:{lane}" for lane in LANES]

    async def _pause(self, lanes: Sequence[Lane], on: str) -> list[Lane]:
        args = [self._config, json.dumps([lane.number for lane in lanes]), on]
        changed = await self.connection.script("pause", self._shared, args)
        return [lane for lane, did in zip(lanes, changed, strict=True) if did]


def _paused(found: Sequence[bytes | None]) -> dict[Lane, int]:
    return {lane: max(0, number(since)) for lane, since in zip(LANES, found, strict=True) if since is not None}
