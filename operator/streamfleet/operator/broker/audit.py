"""Counts of a queue at one instant, and a sample of what waits: what the operators' broker returns. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.protocol import Lane, Status

LARGEST = 1e12
"""Number above which a learnt length is none, whoever wrote it."""


@dataclass(frozen=True, slots=True)
class LaneAudit:
    """One lane at one instant; ``undelivered`` and ``ever_added`` are None if the server cannot tell."""

    lane: Lane
    length: int
    ready: int
    running: int
    handed_out: int
    undelivered: int | None
    ever_added: int | None


def lane_audit(lane: Lane, row: list[int]) -> LaneAudit:
    """Read a lane that audit.lua returned."""
    length, ready, running, handed_out, undelivered, added = row
    return LaneAudit(
        lane,
        length,
        ready,
        running,
        handed_out,
        None if undelivered < 0 else undelivered,
        None if added < 0 else added,
    )


@dataclass(frozen=True, slots=True)
class TenantAudit:
    """One tenant: its requests that have ended, those that run, and its tokens.

    Attributes:
        limited: number of its runs that count against its limit.
        requests, missed: requests that a worker has ended; that have expired.
        charged, tokens: tokens charged for runs that are over; those of them whose requests have ended.
        lost: tokens of runs that were lost with their workers, which are not charged.
        seen_ms: when a request of it came or ran last, epoch ms.
        running, limited_charges: number of charges of runs, and of those that count against its limit.
        kept, outstanding: tokens of requests that have not ended, for runs that are over; and for those that run too.
    """

    limited: int = 0
    requests: int = 0
    charged: int = 0
    tokens: int = 0
    lost: int = 0
    missed: int = 0
    seen_ms: int = 0
    running: int = 0
    limited_charges: int = 0
    kept: int = 0
    outstanding: int = 0


def tenant_audits(served: Mapping[str, str]) -> dict[str, TenantAudit]:
    """Read the tenants' records and charges, as the hash `served` holds them; what is no number counts as none."""
    records = {name[2:]: [*map(_whole, value.split())][:7] for name, value in served.items() if name.startswith("t|")}
    charges: dict[str, list[int]] = {}
    for field_name, value in served.items():
        words = value.split(" ", 6) if field_name.startswith("c|") else []
        if len(words) == 7:
            prompt, output, _, kept, _, counted, tenant = words
            run, known = _whole(prompt) + _whole(output), charges.setdefault(tenant, [0, 0, 0, 0])
            known[0] += run > 0
            known[1] += run > 0 and counted == "1"
            known[2] += _whole(kept)
            known[3] += run + _whole(kept)
    return {name: TenantAudit(*record, *charges.get(name, ())) for name, record in records.items()}


def length_audits(served: Mapping[str, str]) -> dict[str, dict[str, tuple[float, float]]]:
    """Read the learnt lengths of tenants: of each, by class of asked limit, the number of samples and mean output."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, value in served.items():
        for row in value.split(";")[1:] if name.startswith("l|") else ():
            label, *numbers = row.split(" ")
            try:
                number, mean, _ = map(float, numbers[:3])
            except ValueError:
                continue
            if 0 < number < LARGEST and 0 <= mean < LARGEST:
                found.setdefault(name[2:], {})[label] = (number, mean)
    return found


def _whole(text: str) -> int:
    return int(text) if text.removeprefix("-").isdigit() else 0


@dataclass(frozen=True, slots=True)
class Audit:
    """All counts of a queue at one instant, and `lengths` of tenants as `length_audits` returns them.

    An entry is outstanding until it is counted under one terminal status.
    """

    counts: Mapping[str, int]
    delayed: int
    tries: int
    dead_letters: int
    lanes: Sequence[LaneAudit] = field(default_factory=tuple)
    tenants: Mapping[str, TenantAudit] = field(default_factory=dict)
    lengths: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    @property
    def outstanding(self) -> int:
        """Entries that have not ended."""
        return sum(lane.length for lane in self.lanes)

    @property
    def ended(self) -> Mapping[str, int]:
        """Requests by terminal status."""
        return {status.value: self.counts.get(status.value, 0) for status in Status}

    @property
    def accepted(self) -> int:
        """Number of requests ever accepted, delivered or not; duplicates count once, and a reused id is none."""
        if any(
            lane.undelivered is None for lane in self.lanes
        ):  # too many to count: use the rest of the lanes' lengths
            unseen = self.outstanding - self.delayed - sum(lane.ready + lane.running for lane in self.lanes)
        else:
            unseen = sum((lane.undelivered or 0) + lane.handed_out for lane in self.lanes)
        return self.counts.get("staged", 0) + unseen - self._others

    @property
    def _others(self) -> int:
        """Number of entries that have ended without an ending of a request."""
        return sum(self.counts.get(name, 0) for name in ("duplicate", "id_reused", "vanished"))

    def line(self) -> str:
        """The identity that must hold, on one line."""
        ended = " + ".join(f"{status}={number}" for status, number in self.ended.items())
        rest = f" + outstanding={self.outstanding}" if self.outstanding else ""
        return f"accepted={self.accepted} = {ended}{rest}"

    def problems(self) -> list[str]:
        """Contradictions between the counts, one line each; empty if there are none."""
        found: list[str] = []
        ended = sum(self.ended.values())
        if self.accepted != ended + self.outstanding:
            found.append(f"accepted {self.accepted} is not ended {ended} + outstanding {self.outstanding}")
        if all(lane.undelivered is not None for lane in self.lanes):
            parts = (
                sum(lane.ready + lane.running + lane.handed_out + (lane.undelivered or 0) for lane in self.lanes)
                + self.delayed
            )
            if parts != self.outstanding:
                found.append(
                    f"lanes hold {self.outstanding} entries, but undelivered + ready + delayed + running is {parts}"
                )
        added = [lane.ever_added for lane in self.lanes]
        if None not in added:
            seen = self.accepted + self._others
            given = sum(count or 0 for count in added) + self.counts.get("forgotten", 0)
            if given != seen:
                found.append(f"the lanes were given {given} entries, but {seen} were seen")
        return found + self._tenant_problems()

    def _tenant_problems(self) -> list[str]:
        found = []
        for name, tenant in self.tenants.items():
            if tenant.charged != tenant.tokens + tenant.kept:
                found.append(
                    f"tenant {name!r} is charged {tenant.charged} tokens, but {tenant.tokens} settled + "
                    f"{tenant.kept} of requests that have not ended are there"
                )
            if tenant.limited != tenant.limited_charges:
                found.append(f"tenant {name!r} runs {tenant.limited}, but {tenant.limited_charges} are charged")
        return found


PLACES = 17


def places(size: int, most: int = PLACES) -> list[int]:
    """Up to `most` places of a sorted set of this size to read: the first, the last, and some spread evenly between."""
    return sorted({step * max(0, size - 1) // (most - 1) for step in range(most)})


@dataclass(frozen=True, slots=True)
class Ranked:
    """One request that waits: ``place`` 0 runs next; the time of its enqueueing and its rank are epoch ms.

    It stands for ``number`` requests of its lane.
    """

    lane: Lane
    place: int
    enqueued_ms: int
    rank_ms: int
    number: float = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """Ages and deadlines of some requests of a queue, and its workers, as far as an audit does not tell.

    Attributes:
        now_ms: Redis's clock, epoch ms.
        workers: worker name to its description.
        delayed: number of delayed requests by lane, among those that were read.
        oldest_ms: time of enqueueing of each lane's oldest entry, epoch ms; empty lanes are missing.
        paused_ms: start of the pause of each paused lane, epoch ms; 0 if it cannot be read.
        first_ms: first rank of what waits in each lane, epoch ms, whoever wrote it; empty ones are missing.
        ranked: the places that were asked for and hold a request, lane by lane.
        pace_per_s: requests that the fleet takes a second while any wait (lua/policies/pace.lua), as last measured;
            None before that.
    """

    now_ms: int
    workers: Mapping[str, Mapping[str, Any]]
    delayed: Mapping[Lane, int] = field(default_factory=dict)
    oldest_ms: Mapping[Lane, int] = field(default_factory=dict)
    paused_ms: Mapping[Lane, int] = field(default_factory=dict)
    first_ms: Mapping[Lane, int] = field(default_factory=dict)
    ranked: Sequence[Ranked] = ()
    pace_per_s: float | None = None
