"""Arguments and return values of the broker's operations: plain values, no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import LANES, MAX_META_BYTES, MAX_NAME_CHARS, SHARES, Lane, Status, check_name


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of a queue, the same for all its producers and workers; settings, brokers and scripts have them from here.

    Attributes:
        lane_limit: largest number of requests in a lane; above it, a client's enqueue is refused.
        lane_bytes: most bytes of Redis's memory that a lane may take before it refuses requests of 16 KiB or more.
        result_ttl_ms: time for which results and their ids are kept.
        waiting_ttl_ms: time for which the id of a request that has not ended is kept, if longer.
        dead_ttl_ms: time for which dead letters are kept.
        patience_ms: default deadline for ranking, counted from enqueueing; for requests without a deadline.
        dead_cap: approximate number of dead letters that are kept.
        dead_bytes: approximate size of the newest dead letters that are kept, in bytes.
        reply_cap: approximate number of notifications that one reply stream keeps.
        max_entry_bytes: largest entry that may run; larger ones end as failed.
        shares: guaranteed picks per mille of each lane while it waits, most urgent first.
        lease_ms: silence of a worker after which its requests are reclaimed.
        max_deliveries: attempts after which a request is given up.
        retry_max_ms: longest delay of a request before its next attempt.
        enqueue_replicas: number of replicas that must have a request before the client's enqueue returns; 0 for none.
        enqueue_replicas_timeout_ms: longest wait for the replicas.
        watchers: number of idle workers that watch for work; the others wait on the bench list.
        at_once: largest number of requests that one call hands back.
        copied_bytes: most bytes of entries that one call copies, or stages; more would block Redis for too long.
        taken_bytes: most bytes of the requests that one pull takes.
        kept_bytes: most bytes of output of interrupted runs that are kept, of all requests together.
        kept_ttl_ms: time for which the output of an interrupted run is kept.
        notices_cap: approximate number of cancels, cancel requests and drains that Redis keeps.
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
    max_entry_bytes: int = 4_210_688
    shares: tuple[int, ...] = SHARES
    lease_ms: int = 10_000
    max_deliveries: int = 5
    retry_max_ms: int = 30_000
    enqueue_replicas: int = 0
    enqueue_replicas_timeout_ms: int = 1_000
    watchers: int = 2
    kept_bytes: int = 268_435_456
    kept_ttl_ms: int = 3_600_000
    at_once: int = 200
    copied_bytes: int = 262_144
    taken_bytes: int = 4_194_304
    notices_cap: int = 10_000
    now_ms: int | None = None

    @property
    def record_ttl_ms(self) -> int:
        """Time to live of the record of an id whose request has not ended."""
        return max(self.result_ttl_ms, self.waiting_ttl_ms)

    def encoded(self, prefix: str) -> str:
        """JSON of the limits that scripts read, with the lanes and the prefix of the queue's keys."""
        values = {name: getattr(self, name) for name in IN_SCRIPTS}
        values |= {"prefix": prefix, "lanes": LANES, "name_chars": MAX_NAME_CHARS, "meta_bytes": MAX_META_BYTES}
        return json.dumps({name: value for name, value in values.items() if value is not None})


IN_SCRIPTS = (
    *("result_ttl_ms", "record_ttl_ms", "dead_ttl_ms", "patience_ms", "dead_cap", "dead_bytes", "reply_cap"),
    *("max_entry_bytes", "shares", "watchers", "at_once", "copied_bytes", "taken_bytes", "notices_cap", "now_ms"),
)
"""Limits that the scripts get by name, as `cfg` in lua/lib/keys.lua."""

TOO_MANY_BYTES = "bytes"


class EnqueueCode(IntEnum):
    """Outcome of enqueueing one request; the return codes of enqueue.lua."""

    ACCEPTED = 1
    EXISTING = 2
    CONFLICT = 3
    FULL = 4
    ANSWERED = 5


class CompleteCode(IntEnum):
    """Outcome of publishing one completion; the return codes of complete.lua."""

    LOST = 0
    PUBLISHED = 1
    ENDED_BEFORE = 2
    PUBLISHED_BEFORE = 3


class RenewCode(IntEnum):
    """Outcome of renewing one lease; the return codes of renew.lua."""

    LOST = 0
    RENEWED = 1
    ANSWERED = 2


class RetryCode(IntEnum):
    """Outcome of handing one request back for later; the return codes of retry_later.lua."""

    LOST = 0
    DELAYED = 1
    DEAD = 2
    EXPIRED = 3
    ANSWERED = 4


class Role(IntEnum):
    """Way in which a worker that got too few requests waits for more; assigned by pull.lua.

    A listener and a stand-by have room for the requests of some lanes only: they are full of patient work.
    """

    NONE = 0
    WATCHER = 1
    IDLE_WAITER = 2
    LISTENER = 3
    STANDBY = 4


@dataclass(frozen=True, slots=True)
class Submission:
    """One request to enqueue: encoded fields, and the script's other arguments."""

    id: str
    lane: Lane
    fields: Mapping[str, bytes]
    digest: str
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Answer to one enqueued request.

    ``entry`` is ``<lane>:<stream id>``, empty if the request has no entry; `TOO_MANY_BYTES` if the lane is full by its
    bytes.
    """

    code: EnqueueCode
    entry: str


@dataclass(frozen=True, slots=True)
class Standing:
    """State of an entry that has not ended: with a worker, at this attempt, or waiting (no worker)."""

    worker: str | None = None
    attempt: int = 0


class Lease(NamedTuple):
    """A worker's lease on one entry; it fences every write about the entry."""

    lane: Lane
    stream_id: str
    attempt: int
    request_id: str

    @property
    def entry(self) -> str:
        return f"{self.lane}:{self.stream_id}"


@dataclass(slots=True)
class Claim:
    """An entry that was leased to a worker, with its raw fields.

    Attributes:
        lease: the worker's lease.
        fields: fields as they are in Redis.
        lost: number of former attempts that were lost with their workers.
        staged_ms: time of staging, epoch ms, if its stream id was ahead of the clock; else None.
        interrupted: number of times that it gave way to an urgent request.
        kept: run whose output was kept; empty if there is none.
    """

    lease: Lease
    fields: Mapping[bytes, bytes]
    lost: int = 0
    staged_ms: int | None = None
    interrupted: int = 0
    kept: str = ""

    @property
    def enqueued_ms(self) -> int:
        """Time of enqueueing, epoch ms."""
        return int(self.lease.stream_id.partition("-")[0]) if self.staged_ms is None else self.staged_ms

    @property
    def reply(self) -> str:
        """Name of the caller's reply stream; empty if it is missing or invalid."""
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
    """Answer to a pull.

    Attributes:
        claims: entries that are now leased to this worker, best first.
        ready: number of staged requests that wait after this pull.
        role: way to wait if there were fewer than wanted.
        now_ms: Redis's clock at the pull, epoch ms.
        staged, dropped: number of entries that this pull staged, and that it ended (expired, cancelled, oversized).
    """

    claims: Sequence[Claim]
    ready: int
    role: Role
    now_ms: int
    staged: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Notices:
    """Notices to all workers.

    Attributes:
        last_id: stream id of the last notice, to continue from.
        cancelled: request ids that have a result by now.
        drain: names of workers that are to finish and stop.
        configured: True if the queue's configuration has changed.
    """

    last_id: str
    cancelled: Sequence[str]
    drain: Set[str]
    configured: bool = False


@dataclass(slots=True)
class Completion:
    """One outcome to publish.

    Attributes:
        lease: the lease under which the request ran.
        status: terminal status.
        values: further fields of the result hash; for a streamed request also `streamed`, its number of chunks.
        reply: the caller's reply stream, or empty.
        error: JSON of the OpenAI error for the dead letter; empty with success.
    """

    lease: Lease
    status: Status
    values: Mapping[str, bytes | str | int]
    reply: str = ""
    error: str = ""


class TokenGroup(NamedTuple):
    """Some chunks of one streamed request, to be published.

    Attributes:
        request_id: id of the request.
        attempt: attempt that generated them.
        run: unique name of the execution.
        seq: number of chunks of the run before these.
        chunks: JSON, one chunk per line.
        lasting: reset the stream's time to live.
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
        delay_ms: ms until it is due; 0 for at once.
        error: JSON of the OpenAI error object, reported if this was the last attempt.
        worker_lost: the worker ends with this attempt, and is recorded among the workers lost with the request.
    """

    lease: Lease
    delay_ms: int
    error: str
    worker_lost: bool = False


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Numbers of entries that one round of reclaiming made ready, dead, or ended."""

    ready: int
    dead: int
    ended: int
