"""All Redis key names of a queue.

All keys of a queue share the hash tag ``{queue}``, so that they live in one cluster slot and scripts may
touch them together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import LANES, check_name

GROUP = "workers"
NOBODY = "~"
"""Consumer that holds what was delivered but not yet given to a worker; no worker may have this name."""


def check_prefix(value: str) -> str:
    """Check a key prefix: without braces, so that the queue's name stays the hash tag.

    Raises:
        InvalidRequest: it holds braces.
    """
    if set(value) & set("{}"):
        raise InvalidRequest("must not contain braces: they would take the place of the queue's hash tag", "key_prefix")
    return value


def gateway_base(prefix: str) -> str:
    """Prefix of the keys that all gateways share and that belong to no queue.

    A queue's keys have a colon after the hash tag and these have a slash. So no queue's name can collide with them, and
    no ACL rule for all queues (``{*}:*``) covers API keys or signing secrets.

    Raises:
        InvalidRequest: the prefix is not usable.
    """
    return f"{check_prefix(prefix)}{{gateway}}/"


@dataclass(frozen=True)
class Keys:
    """Key names of one queue.

    Args:
        queue: queue name, 1 to 256 printable ASCII characters, no braces.
        prefix: prefix of every key, for a shared Redis; may be empty, no braces.

    Raises:
        InvalidRequest: the queue's name or the prefix is not usable.
    """

    queue: str
    prefix: str = ""
    base: str = field(init=False)

    def __post_init__(self) -> None:
        check_name(self.queue, "queue", forbidden="{}")
        check_prefix(self.prefix)
        object.__setattr__(self, "base", f"{self.prefix}{{{self.queue}}}:")

    def lane(self, lane: str) -> str:
        """Stream of all outstanding requests of a lane."""
        return f"{self.base}lane:{lane}"

    def ready(self, lane: str) -> str:
        """Sorted set of staged requests, by rank (deadline in epoch ms)."""
        return f"{self.base}ready:{lane}"

    def result(self, request_id: str) -> str:
        """Hash, written once, with TTL."""
        return f"{self.base}result:{request_id}"

    def request(self, request_id: str) -> str:
        """Record of an enqueued id, ``<digest> <lane>:<stream id> <reply>``, with TTL; makes enqueueing idempotent."""
        return f"{self.base}request:{request_id}"

    def reply(self, client: str) -> str:
        """Stream of notifications for one client."""
        return f"{self.base}reply:{client}"

    def ended(self, tenant: str) -> str:
        """List of a tenant's `bounded` requests that have ended, each with the bytes of all up to it, with TTL."""
        return f"{self.base}ended:{tenant}"

    def tokens(self, request_id: str) -> str:
        """Stream of partial output of one request."""
        return f"{self.base}tokens:{request_id}"

    def kept(self, run: str) -> str:
        """Output that a run had generated when it was interrupted, with TTL; the entry's record in `sched` names it."""
        return f"{self.base}kept:{run}"

    def turns(self, lane: str) -> str:
        """Sorted set of tenants that share a lane, by tokens for their weight; below zero while they do not wait."""
        return f"{self.base}turns:{lane}"

    @property
    def waiting(self) -> str:
        """Sorted set, by name, of what is ready in lanes that tenants share, by tenant."""
        return f"{self.base}waiting"

    @property
    def served(self) -> str:
        """Hash of the tenants' records, the charges of running requests, and lengths of answers."""
        return f"{self.base}served"

    @property
    def arrivals(self) -> str:
        """Hash of tenants' requests in each lane that no worker has staged yet, and of who enqueued last."""
        return f"{self.base}arrivals"

    @property
    def of_shares(self) -> list[str]:
        """The keys by which enqueue.lua knows what a tenant has waiting."""
        return [*map(self.ready, LANES), self.arrivals, self.waiting, self.served, self.delayed]

    @property
    def tenants(self) -> str:
        """Hash of tenant to ``<weight> <most running at once>``, set by operators."""
        return f"{self.base}tenants"

    @property
    def homes(self) -> str:
        """Sorted set of what is ready, by the worker that it waits for."""
        return f"{self.base}homes"

    @property
    def sessions(self) -> str:
        """Hash of sessions, and beginnings of prompts, to the workers that have them in their caches."""
        return f"{self.base}sessions"

    @property
    def loads(self) -> str:
        """Sorted set of these workers' numbers, by what each holds and what waits for it."""
        return f"{self.base}loads"

    def home(self, worker: str) -> str:
        """List of at most one token; an idle worker pops it when something comes that waits for this worker."""
        return f"{self.base}home:{worker}"

    @property
    def wake(self) -> str:
        """Stream that wakes a watching worker."""
        return f"{self.base}wake"

    @property
    def sched(self) -> str:
        """Hash of the lanes' credits."""
        return f"{self.base}sched"

    @property
    def dead(self) -> str:
        """Stream of dead letters."""
        return f"{self.base}dead"

    @property
    def tries(self) -> str:
        """Hash ``<lane number>|<stream id>`` to ``<attempts>[ <worker>…]``; these workers were lost with it."""
        return f"{self.base}tries"

    @property
    def delayed(self) -> str:
        """Sorted set ``<lane number>|<stream id>`` by due time in epoch ms."""
        return f"{self.base}delayed"

    @property
    def bench(self) -> str:
        """List of tokens; idle waiters pop them (BLPOP)."""
        return f"{self.base}bench"

    @property
    def standby(self) -> str:
        """List of tokens; workers that have room for urgent requests only pop them (BLPOP)."""
        return f"{self.base}standby"

    @property
    def watch(self) -> str:
        """Sorted set of watching workers by the end of their watch, epoch ms."""
        return f"{self.base}watch"

    @property
    def counts(self) -> str:
        """Hash of lifetime counters: staged, each terminal status, duplicate, vanished, requeued, forgotten."""
        return f"{self.base}counts"

    @property
    def cancels(self) -> str:
        """Short stream of cancelled ids, read by every worker."""
        return f"{self.base}cancels"

    @property
    def cancel_requests(self) -> str:
        """Stream of ids to cancel, from clients that may not write results; the housekeeping processes it."""
        return f"{self.base}cancel_requests"

    @property
    def workers(self) -> str:
        """Hash of worker name to a JSON description with its last sign of life."""
        return f"{self.base}workers"

    @property
    def meta(self) -> str:
        """Hash of the queue's configuration, by name of the setting."""
        return f"{self.base}meta"

    @property
    def maintain(self) -> str:
        """Short lock for one worker at a time to do the queue's housekeeping."""
        return f"{self.base}maintain"

    @property
    def lanes(self) -> list[str]:
        """The lanes' streams, most urgent first."""
        return [self.lane(lane) for lane in LANES]

    def shared(self) -> list[str]:
        """The keys that every script of a queue gets first, in the order of lua/lib/keys.lua."""
        return [
            *self.lanes,
            *(self.ready(lane) for lane in LANES),
            *(self.turns(lane) for lane in LANES),
            self.wake,
            self.sched,
            self.dead,
            self.tries,
            self.delayed,
            self.bench,
            self.watch,
            self.counts,
            self.cancels,
            self.workers,
            self.waiting,
            self.served,
            self.tenants,
            self.homes,
            self.sessions,
            self.loads,
        ]
