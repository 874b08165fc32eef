"""Types that the brokers of producers and workers take and return: requests, leases, outcomes, return codes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import LANES, Lane, Status, check_name, stream_ms

TOO_MANY_BYTES = "bytes"


class EnqueueCode(IntEnum):
    """Outcome of enqueueing one request; the return codes of enqueue.lua."""

    ACCEPTED = 1
    EXISTING = 2
    CONFLICT = 3
    FULL = 4
    ANSWERED = 5
    SHARE_USED = 6

    @property
    def full(self) -> bool:
        """True if there was no room: in the lane, or in the tenant's share of it."""
        return self in (EnqueueCode.FULL, EnqueueCode.SHARE_USED)


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
    """Way in which a worker that got too few requests waits for more; assigned by pull.lua."""

    NONE = 0
    WATCHER = 1
    WAITER = 2


@dataclass(frozen=True, slots=True)
class Submission:
    """One request to enqueue: encoded fields, and the script's other arguments.

    ``digest`` is that of its JSON and of its bytes (protocol.py).
    """

    id: str
    lane: Lane
    fields: Mapping[str, bytes]
    digest: str
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Answer to one enqueued request.

    ``entry`` is ``<lane>:<stream id>``, empty if the request has no entry; `TOO_MANY_BYTES` if the lane, or the
    tenant's share of it, is full by its bytes.
    """

    code: EnqueueCode
    entry: str


@dataclass(frozen=True, slots=True)
class EntryState:
    """State of an entry that has not ended: with a worker, at this attempt, or waiting (no worker)."""

    worker: str | None = None
    attempt: int = 0


class Expected(NamedTuple):
    """Forecast for a request that waits, or would wait.

    Attributes:
        place: number of requests of its lane that go first; None if it does not wait in order.
        wait_ms: time until a worker takes it; None if nobody can tell.
        run_ms: time of a usual run; None as for `wait_ms`.
        left_ms: time that would be left of them until its deadline, negative if it will likely be late; None without a
            deadline too.
        rank_ms: rank of one that waits, epoch ms; None as for `place`.
    """

    place: int | None = None
    wait_ms: int | None = None
    run_ms: int | None = None
    left_ms: int | None = None
    rank_ms: int | None = None


class Labelled(NamedTuple):
    """Number of requests that wait in a lane with a label, by the sets that `Keys.ready` lists.

    Attributes:
        tenant: in ``:t:``, with a tenant and without a home.
        both: in ``:th:`` and ``:ht:``, with a tenant and a home.
        home: in ``:h:``, with a home and without a tenant.
        held: in ``:held``, interrupted ones that wait for their worker.
    """

    tenant: int = 0
    both: int = 0
    home: int = 0
    held: int = 0

    @property
    def shared(self) -> bool:
        """True if tenants share the lane."""
        return self.tenant + self.both > 0


class TenantRule(NamedTuple):
    """Weight and limit of a tenant.

    Attributes:
        weight: its share beside others'.
        max_running: most of its requests that run at once; None for no limit.
        key: id of the API key that names them; empty if an operator has set them.
        set_ms: when the key was given them (epoch ms); 0 for now.
    """

    weight: float = 1.0
    max_running: int | None = None
    key: str = ""
    set_ms: int = 0

    @property
    def usual(self) -> bool:
        """True for a tenant like any other."""
        return self.weight == 1 and self.max_running is None


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
        passed_ms: time from enqueueing to the claim, if it waited for another worker; None if it did not.
        length: class of its length; empty if its deadline was not judged.
    """

    lease: Lease
    fields: Mapping[bytes, bytes]
    lost: int = 0
    staged_ms: int | None = None
    interrupted: int = 0
    kept: str = ""
    passed_ms: int | None = None
    length: str = ""

    @property
    def enqueued_ms(self) -> int:
        """Time of enqueueing, epoch ms."""
        return stream_ms(self.lease.stream_id) if self.staged_ms is None else self.staged_ms

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
class Rooms:
    """Room of a worker that has not the same for all lanes.

    Attributes:
        lanes: for each lane the number of requests, of all lanes together, up to which it is taken from.
        owed: the same for a lane that is owed a pick, while more requests of others wait than there is room for.
        free: number of requests that have a slot without interrupting another one.
    """

    lanes: Sequence[int]
    owed: Sequence[int]
    free: int

    @classmethod
    def same(cls, room: int) -> Rooms:
        """The same room for all lanes."""
        return cls((room,) * len(LANES), (room,) * len(LANES), room)


@dataclass(frozen=True, slots=True)
class Home:
    """A worker with a prefix cache.

    Attributes:
        start: name of this start of the worker: each has a cache of its own.
        held: number of requests that it holds; of a full worker, urgent ones count twice.
    """

    start: str
    held: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """Answer to a pull.

    Attributes:
        claims: entries that are now leased to this worker, best first.
        ready: number of staged requests that wait after this pull.
        role: way to wait if there were fewer than wanted.
        now_ms: Redis's clock at the pull, epoch ms.
        staged, dropped: number of entries that this pull staged, and that it ended (expired, cancelled, oversized).
        soonest_ms: time after which this worker may take what waits for another one; None if nothing does.
    """

    claims: Sequence[Claim]
    ready: int
    role: Role
    now_ms: int
    staged: int
    dropped: int
    soonest_ms: int | None = None


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
        held: output tokens that a run which nobody counted is charged for its time in the engine, if `usage` does not
            tell more; infinite for as many as were expected when it was picked; None if `usage` has all.
        digest: of the request's bytes (protocol.py), if it has an id of its own; its record holds it from now on.
    """

    lease: Lease
    status: Status
    values: Mapping[str, bytes | str | int]
    reply: str = ""
    error: str = ""
    held: float | None = None
    digest: str = ""


class TokenGroup(NamedTuple):
    """Some chunks of one streamed request, to be published.

    Attributes:
        request_id: id of the request.
        attempt: attempt that generated them.
        run: unique name of the execution.
        seq: number of chunks of the run before these.
        chunks: JSON, one chunk per line.
        lasting: reset the stream's time to live.
        resumed: number of output tokens that the run took over from earlier ones.
    """

    request_id: str
    attempt: int
    run: str
    seq: int
    chunks: bytes
    lasting: bool
    resumed: int = 0


@dataclass(frozen=True, slots=True)
class Retry:
    """One request to hand back for later.

    Attributes:
        delay_ms: ms until it is due; 0 for at once.
        error: JSON of the OpenAI error object, reported if this was the last attempt.
        worker_lost: the worker ends with this attempt, and is recorded among the workers lost with the request.
        held: output tokens that its tenant is charged for its time in the engine, beside the prompt; infinite for as
            many as were expected when it was picked; None if nothing is charged.
    """

    lease: Lease
    delay_ms: int
    error: str
    worker_lost: bool = False
    held: float | None = None


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Numbers of entries that one round of reclaiming made ready, dead, or ended."""

    ready: int
    dead: int
    ended: int
