"""A whole run as a value: who asks for what and when, and which faults strike at which point. Pure.

Faults are tied to progress, the number of requests that have ended, so that the same seed strikes at the same points of
a run on a slower machine; a fault that progress does not reach in time strikes all the same.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any
from zlib import crc32


class Kind(StrEnum):
    """Kind of a request, which decides how it may end."""

    GOOD = "good"
    DEADLINE = "deadline"
    LATE = "late"
    CANCELLED = "cancelled"
    TWICE = "twice"
    NAMELESS = "nameless"
    MALFORMED = "malformed"
    POISON = "poison"
    HANG = "hang"


ALLOWED: dict[Kind, frozenset[str]] = {
    Kind.GOOD: frozenset({"succeeded"}),
    Kind.DEADLINE: frozenset({"succeeded", "expired"}),
    Kind.LATE: frozenset({"expired"}),
    Kind.CANCELLED: frozenset({"succeeded", "cancelled"}),
    Kind.TWICE: frozenset({"succeeded"}),
    Kind.NAMELESS: frozenset({"succeeded"}),
    Kind.MALFORMED: frozenset({"failed"}),
    Kind.POISON: frozenset({"dead"}),
    Kind.HANG: frozenset({"dead"}),
}
"""Terminal statuses. `dead` may come to any request whose every attempt was struck by a fault; they are counted."""


@dataclass(frozen=True)
class Item:
    """One request.

    Attributes:
        nonce: tells it from all others, also where it has no id; carried in `meta`.
        id: its id, or empty.
        kind: what it is.
        lane: lane.
        fields: the entry's fields but id, reply and meta.
        cancel_after_s: when to cancel it; None for never.
    """

    nonce: str
    id: str
    kind: Kind
    lane: str
    fields: dict[str, str]
    cancel_after_s: float | None = None


def of_tenants(step: Step) -> Step:
    """The same, but two thirds of the requests are one of two tenants', and half are of some sessions."""
    return replace(step, items=tuple(map(_of_tenant, step.items)))


def _of_tenant(item: Item) -> Item:
    number = crc32(item.nonce.encode())
    names = {"tenant": ("", "a", "b")[number % 3], "session": f"s{number % 7}" if number // 3 % 2 else ""}
    return replace(item, fields=item.fields | {field: name for field, name in names.items() if name})


@dataclass(frozen=True)
class Step:
    """Something that a producer does at a time.

    Attributes:
        at_s: seconds from the start.
        how: `many` (one bulk call), `one` (a call each), `again` (bulk, then once more with the same ids), `xadd`.
        items: the requests.
    """

    at_s: float
    how: str
    items: tuple[Item, ...]


class FaultKind(StrEnum):
    """Kinds of faults."""

    KILL = "kill"
    STOP = "stop"
    TERM = "term"
    TERM_STORM = "term_storm"
    REDIS_KILL = "redis_kill"
    CUT = "cut"
    DELAY = "delay"
    BLACK_HOLE = "black_hole"
    SWALLOW = "swallow"
    ENGINE_DEATH = "engine_death"
    ENGINE_HANG = "engine_hang"
    CLOCK = "clock"
    REDIS_CLOCK = "redis_clock"
    MAXMEMORY = "maxmemory"
    SCRIPT_FLUSH = "script_flush"
    LIMIT = "limit"
    DELETE = "delete"
    RESTORE = "restore"
    PASSWORD = "password"
    POINT = "point"


@dataclass(frozen=True)
class Fault:
    """One fault of a plan.

    Attributes:
        at: number of ended requests at which it strikes.
        kind: what strikes.
        slot: which worker, or which proxy; passed over where it strikes all.
        seconds: how long it lasts, where it lasts.
        what: point and action, script verb, key, or how hard; by kind.
    """

    at: int
    kind: FaultKind
    slot: int = 0
    seconds: float = 0.0
    what: str = ""

    def line(self) -> str:
        """For people."""
        lasting = f" {self.seconds:g} s" if self.seconds else ""
        return f"{self.at:>7}  {self.kind:<12} slot {self.slot}{lasting} {self.what}".rstrip()


@dataclass(frozen=True)
class Setup:
    """Set-up of a run's fleet; times in the units of their names.

    ``queues``: producers have one each, by turns; all workers serve the first, and every second one, with the same
    engine, the others too. ``start_s``: how long a worker may take to be ready. ``settle_s``: how long everything may
    take to end after the last fault. ``more``: further settings, by name without prefix.
    """

    workers: int = 8
    lease_ms: int = 3_000
    max_deliveries: int = 5
    watchdog_s: float = 4.0
    drain_ms: int = 2_000
    batch_size: int = 8
    max_body_bytes: int = 65_536
    engine: str = "simulated"
    queues: tuple[str, ...] = ("default",)
    start_s: float = 20.0
    settle_s: float = 120.0
    more: dict[str, str] = field(default_factory=dict)

    def queue_of(self, producer: int) -> str:
        """The queue of a producer, by its number."""
        return self.queues[producer % len(self.queues)]

    def of_worker(self, slot: int) -> dict[str, str]:
        """Environment variables of the worker in a slot, beside those of all."""
        if len(self.queues) == 1 or slot % 2 == 0:
            return {}
        routes = ",".join(f"{queue}={queue}=simulated" for queue in self.queues)
        return {"STREAMFLEET_WORKER_MODELS": routes}

    def variables(self) -> dict[str, str]:
        """The settings as environment variables of producers and workers."""
        values: dict[str, Any] = {
            "ENGINE": self.engine,
            "SIMULATED_PROFILE": "fast",
            "LEASE_MS": self.lease_ms,
            "MAX_DELIVERIES": self.max_deliveries,
            "WATCHDOG_S": self.watchdog_s,
            "DRAIN_MS": self.drain_ms,
            "BATCH_SIZE": self.batch_size,
            "MAX_BODY_BYTES": self.max_body_bytes,
            "HEALTH_PORT": 0,
            "LOG_FORMAT": "json",
            **self.more,
        }
        return {f"STREAMFLEET_{name}": str(value) for name, value in values.items()}


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        seed: of which everything here was made; with the size, it makes it again.
        setup: the fleet.
        producers: what each of them does, in order.
        faults: what strikes, in order.
        seconds: about how long the producers take.
    """

    seed: int
    setup: Setup
    producers: tuple[tuple[Step, ...], ...]
    faults: tuple[Fault, ...]
    seconds: float

    @property
    def requests(self) -> int:
        """Number of requests that will be asked for."""
        return sum(len(step.items) for steps in self.producers for step in steps)

    def lines(self) -> list[str]:
        """The schedule, for people."""
        return [f"  ended  fault ({self.requests} requests in all)", *(fault.line() for fault in self.faults)]


def body(tokens: int) -> str:
    """A chat body that takes about so many hundredths of a second on the fast simulated engine."""
    message = {"role": "user", "content": "Say hi"}
    return json.dumps({"messages": [message], "max_tokens": tokens, "ignore_eos": True})


def steps_as_json(steps: tuple[Step, ...]) -> str:
    """For the producer's process."""
    return json.dumps([asdict(step) for step in steps])


def steps_from_json(text: str) -> tuple[Step, ...]:
    """Reads the text that `steps_as_json` made."""
    return tuple(
        Step(
            step["at_s"],
            step["how"],
            tuple(Item(**{**item, "kind": Kind(item["kind"])}) for item in step["items"]),
        )
        for step in json.loads(text)
    )
