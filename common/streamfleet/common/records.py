"""What the broker's operations take and give: plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane, Status, check_name


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What the scripts need to know of a queue; the same for all its producers and workers.

    Attributes:
        lane_limit: most requests a lane may hold before the client's enqueue is refused.
        lane_bytes: most bytes of Redis's memory that a lane may take before it refuses requests of 16 KiB or more.
        result_ttl_ms: how long results, and the ids they answer for, are kept.
        waiting_ttl_ms: how long the id of a request that does not end is kept, where that is longer.
        dead_ttl_ms: how long dead letters are kept.
        patience_ms: a request without a deadline ranks as if its deadline came this long after enqueueing.
        dead_cap: about how many dead letters are kept.
        dead_bytes: of about how many bytes of dead letters, the last ones written, those are kept.
        reply_cap: about how many notifications one reply stream keeps.
        max_entry_bytes: largest entry that may run; larger ones end as failed.
        shares: per mille of picks that each lane is guaranteed while it waits, most urgent first.
        enqueue_replicas: how many replicas must have a request before the client's enqueue returns; 0 waits for none.
        enqueue_replicas_timeout_ms: how long that may take.
        watchers: how many idle workers watch for work; the others wait on a bench.
        now_ms: a fixed clock for tests; None for the server's.
    """

    lane_limit: int = 100_000
    lane_bytes: int = 1_073_741_824
    result_ttl_ms: int = 86_400_000
    waiting_ttl_ms: int = 2_592_000_000
    dead_ttl_ms: int = 604_800_000
    patience_ms: int = 300_000
    dead_cap: int = 100_000
    dead_bytes: int = 1_073_741_824
    reply_cap: int = 100_000
    max_entry_bytes: int = 16_793_600
    shares: tuple[int, int, int, int] = (0, 0, 100, 50)
    enqueue_replicas: int = 0
    enqueue_replicas_timeout_ms: int = 1_000
    watchers: int = 2
    now_ms: int | None = None

    @property
    def record_ttl_ms(self) -> int:
        """Life of the record of an id whose request has not ended."""
        return max(self.result_ttl_ms, self.waiting_ttl_ms)


TOO_MANY_BYTES = "bytes"


class EnqueueCode(IntEnum):
    """What became of one enqueued request; the return codes of enqueue.lua."""

    ACCEPTED = 1
    EXISTING = 2
    CONFLICT = 3
    FULL = 4
    ANSWERED = 5


class CompleteCode(IntEnum):
    """What became of one outcome; the return codes of complete.lua."""

    LOST = 0
    PUBLISHED = 1
    ENDED_BEFORE = 2
    PUBLISHED_BEFORE = 3


class RenewCode(IntEnum):
    """What became of one lease; the return codes of renew.lua."""

    LOST = 0
    RENEWED = 1
    ANSWERED = 2


class RetryCode(IntEnum):
    """What became of one request handed back for later; the return codes of retry_later.lua."""

    LOST = 0
    DELAYED = 1
    DEAD = 2
    EXPIRED = 3
    ANSWERED = 4


class Role(IntEnum):
    """How a worker that got less than it asked for waits for more; given out by pull.lua."""

    NONE = 0
    WATCH = 1
    BENCH = 2


@dataclass(frozen=True, slots=True)
class Submission:
    """One request to enqueue: encoded fields and what the script needs beside them."""

    id: str
    lane: Lane
    fields: Mapping[str, bytes]
    digest: str
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What enqueueing answered.

    ``entry`` is ``<lane>:<stream id>``, empty when nothing stands in a lane; `TOO_MANY_BYTES` where the lane is full by
    its bytes.
    """

    code: EnqueueCode
    entry: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an entry that has not ended is: with a worker, at this attempt, or waiting (no worker)."""

    worker: str | None = None
    attempt: int = 0


class Lease(NamedTuple):
    """A worker's hold on one entry: the fence of every write about it."""

    lane: Lane
    stream_id: str
    attempt: int
    request_id: str

    @property
    def entry(self) -> str:
        return f"{self.lane}:{self.stream_id}"


@dataclass(slots=True)
class Claim:
    """An entry that a worker was given, with its fields as they stand in Redis.

    ``lost``: how many of its former attempts were lost with their workers. ``staged_ms``: when it was staged, epoch ms,
    where its stream id lay ahead of the clock.
    """

    lease: Lease
    fields: Mapping[bytes, bytes]
    lost: int = 0
    staged_ms: int | None = None

    @property
    def enqueued_ms(self) -> int:
        """When it was enqueued, epoch ms."""
        return int(self.lease.stream_id.partition("-")[0]) if self.staged_ms is None else self.staged_ms

    @property
    def reply(self) -> str:
        """Name of the caller's reply stream; empty when it gave none, or none that is usable."""
        given = self.fields.get(b"reply")
        if not given:
            return ""
        try:
            return check_name(given.decode("ascii"), "reply")
        except (InvalidRequest, UnicodeDecodeError):
            return ""


@dataclass(frozen=True, slots=True)
class Hint:
    """An entry that a blocking read delivered; lane None is the wake stream."""

    lane: Lane | None
    stream_id: str


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull gave.

    Attributes:
        claims: entries that are this worker's now, best first.
        ready: how many wait staged after this pull.
        role: how to wait when there was less than wanted.
        now_ms: Redis's clock at the pull, epoch ms.
        staged, dropped: entries brought in order, and entries ended (expired, cancelled, oversized) by this pull.
    """

    claims: Sequence[Claim]
    ready: int
    role: Role
    now_ms: int
    staged: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Notices:
    """What all workers were told.

    Attributes:
        last_id: stream id of the last of it, to go on from.
        cancelled: request ids that have a result by now.
        drain: names of workers that are to finish and leave.
    """

    last_id: str
    cancelled: Sequence[str]
    drain: Set[str]


@dataclass(slots=True)
class Completion:
    """One outcome to publish.

    Attributes:
        lease: the hold under which it was reached.
        status: terminal status.
        values: further fields of the result hash; of a streamed request `streamed` too: how many chunks there were.
        reply: the caller's reply stream, or empty.
        error: JSON of the OpenAI error for the dead letter; empty with success.
    """

    lease: Lease
    status: Status
    values: Mapping[str, bytes | str | int]
    reply: str = ""
    error: str = ""


class TokenGroup(NamedTuple):
    """Some chunks of one request, on their way to its readers.

    Attributes:
        request_id: whose.
        attempt: which attempt they are of.
        run: names one execution; no other one ever has the same.
        seq: how many chunks its run had before these.
        chunks: JSON, one a line.
        lasting: give the stream its life anew.
    """

    request_id: str
    attempt: int
    run: str
    seq: int
    chunks: bytes
    lasting: bool


@dataclass(frozen=True, slots=True)
class Retry:
    """One request to hand back for later.

    Attributes:
        delay_ms: when it is due; 0 for at once.
        error: JSON of the OpenAI error object, reported should this have been the last attempt.
        worker_lost: the worker ends with this attempt, and is remembered as one that the request was lost with.
    """

    lease: Lease
    delay_ms: int
    error: str
    worker_lost: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a queue that only commands by hand can have broken.

    Attributes:
        kind: what is wrong; see `streamfleet.producer.repair.KINDS`.
        name: what it is about: ``<lane>:<stream id>``, a lane, a key, a member, or a request id.
        detail: more about it, where there is more.
    """

    kind: str
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """What a key of a queue has to be like.

    Attributes:
        key: its full name.
        type: what TYPE has to say of it.
        life_ms: life to give it should it have none; None where it needs none.
        field: field that it must have, or empty.
    """

    key: str
    type: str
    life_ms: int | None = None
    field: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """What the counters had to be brought up by: entries never counted as staged, entries that vanished unseen, and how
    far the streams' own counts are off since a lane or the counters were deleted."""

    staged: int
    vanished: int
    forgotten: int


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What one round of reclaiming did."""

    ready: int
    dead: int
    ended: int


@dataclass(frozen=True, slots=True)
class LaneAudit:
    """One lane at one instant; ``undelivered`` and ``ever_added`` are None where the server cannot tell."""

    lane: Lane
    length: int
    ready: int
    running: int
    handed_out: int
    undelivered: int | None
    ever_added: int | None


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything counted at one instant. An entry is outstanding until it has been counted under one ending."""

    counts: Mapping[str, int]
    delayed: int
    tries: int
    dead_letters: int
    lanes: Sequence[LaneAudit] = field(default_factory=tuple)

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
        """Requests ever accepted, as counted when they were delivered or stand undelivered; duplicates count once."""
        if any(
            lane.undelivered is None for lane in self.lanes
        ):  # too many to count: what is left of the lanes' lengths
            unseen = self.outstanding - self.delayed - sum(lane.ready + lane.running for lane in self.lanes)
        else:
            unseen = sum((lane.undelivered or 0) + lane.handed_out for lane in self.lanes)
        return self.counts.get("staged", 0) + unseen - self.counts.get("duplicate", 0) - self.counts.get("vanished", 0)

    def line(self) -> str:
        """The identity that must hold, on one line."""
        ended = " + ".join(f"{status}={number}" for status, number in self.ended.items())
        rest = f" + outstanding={self.outstanding}" if self.outstanding else ""
        return f"accepted={self.accepted} = {ended}{rest}"

    def problems(self) -> list[str]:
        """What does not add up, one line each; empty when all is well."""
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
            seen = self.accepted + self.counts.get("duplicate", 0) + self.counts.get("vanished", 0)
            given = sum(count or 0 for count in added) + self.counts.get("forgotten", 0)
            if given != seen:
                found.append(f"the lanes were given {given} entries, but {seen} were seen")
        return found


@dataclass(frozen=True, slots=True)
class Ranked:
    """One place of a ready set: ``place`` 0 runs next; when its request was enqueued and its rank are epoch ms."""

    lane: Lane
    place: int
    enqueued_ms: int
    rank_ms: int


@dataclass(frozen=True, slots=True)
class Glance:
    """How late a queue is, and who works on it.

    Attributes:
        now_ms: Redis's clock, epoch ms.
        workers: worker name to its description.
        delayed: delayed requests by lane, as far as they were looked through.
        oldest_ms: when each lane's oldest entry was enqueued, epoch ms; empty lanes are missing.
        ranked: the places that were asked for and are taken, lane by lane.
    """

    now_ms: int
    workers: Mapping[str, Mapping[str, Any]]
    delayed: Mapping[Lane, int]
    oldest_ms: Mapping[Lane, int]
    ranked: Sequence[Ranked]
