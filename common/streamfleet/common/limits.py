"""Limits of a queue, the same for all its producers and workers: one table. A new limit is a line in it.

`SharedLimits` are settings too: `QueueSettings` has them from here, with rule and description, and the queue's
configuration in Redis has them by the same names. `QueueLimits` is what brokers and scripts get.
"""

# Without `from __future__ import annotations`: each read of the marks would parse all of them, 3 ms of a start.
import json
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from streamfleet.common.protocol import DEFAULT_MAX_BODY_BYTES, LANES, SHARES

ENVELOPE_BYTES = 16_384
"""Bytes allowed for an entry's fields other than its body."""


Switch = Literal["off", "on"]


class Use(Enum):
    """Marks in the table.

    SCRIPTS: scripts get the limit, as ``cfg.<name>``.
    CLIENTS: only clients act on it. No worker writes it: the clients' own hold until an operator sets them.
    PROCESS: each process has its own. It is not in the queue's configuration.
    """

    SCRIPTS = auto()
    CLIENTS = auto()
    PROCESS = auto()


def _split_shares(value: Any) -> Any:
    parts = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value
    if len(parts) != len(LANES):
        raise ValueError(f"must be {len(LANES)} numbers, for {','.join(LANES)}")
    return parts


def _sane_shares(value: tuple[int, ...]) -> tuple[int, ...]:
    if min(value) < 0 or sum(value) > 1000:
        raise ValueError("must be numbers of 0 or more that add up to at most 1000")
    return value


@dataclass(frozen=True)
class SharedLimits:
    """Limits that are settings."""

    lease_ms: Annotated[
        int, Field(ge=1_000, description="A worker silent for so long has lost its requests, in ms.")
    ] = 10_000
    max_deliveries: Annotated[int, Field(ge=1, description="Tries before a request is given up as dead.")] = 5
    result_ttl_ms: Annotated[
        int, Field(ge=1_000, description="How long results and their ids are kept, in ms."), Use.SCRIPTS
    ] = 86_400_000
    tenant_result_bytes: Annotated[
        int,
        Field(
            ge=1_048_576,
            description=(
                "Most memory of Redis for ended requests of one tenant's API keys; those that ended first go before "
                "their time."
            ),
        ),
        Use.SCRIPTS,
    ] = 268_435_456
    patience_ms: Annotated[
        int,
        Field(ge=0, description="A request without a deadline ranks as if it had one so long after enqueueing, in ms."),
        Use.SCRIPTS,
    ] = 300_000
    judge_deadlines: Annotated[
        Switch,
        Field(
            description=(
                "on: a request that will not be done by its deadline, by how long others of its length took, ends as "
                "expired at its turn."
            ),
        ),
    ] = "off"
    rank_by_program: Annotated[
        Switch,
        Field(
            description=(
                "on: turns of one program, or else session, go ahead by the program's age, by at most half of their "
                "ttl or patience."
            ),
        ),
        Use.SCRIPTS,
    ] = "off"
    shares: Annotated[
        tuple[int, ...],
        NoDecode,
        BeforeValidator(_split_shares),
        AfterValidator(_sane_shares),
        Field(description=f"Picks per mille guaranteed to {','.join(LANES)} while they wait; else strict priority."),
        Use.SCRIPTS,
    ] = SHARES
    max_body_bytes: Annotated[int, Field(ge=1_024, description="Largest request body, in bytes.")] = (
        DEFAULT_MAX_BODY_BYTES
    )
    dead_bytes: Annotated[
        int,
        Field(
            ge=16_777_216,
            description="Dead letters are kept while they are among the last so many bytes written, about.",
        ),
        Use.SCRIPTS,
    ] = 1_073_741_824
    dead_ttl_ms: Annotated[int, Field(ge=1_000, description="How long dead letters are kept, in ms."), Use.SCRIPTS] = (
        604_800_000
    )
    lane_limit: Annotated[
        int, Field(ge=1, description="Most requests in one lane before enqueue raises QueueFull."), Use.CLIENTS
    ] = 100_000
    lane_bytes: Annotated[
        int,
        Field(
            ge=1_048_576,
            description=(
                "Most memory of Redis for one lane before enqueue raises QueueFull for requests of 16 KiB or more."
            ),
        ),
        Use.CLIENTS,
    ] = 1_073_741_824
    lane_tenant_percent: Annotated[
        int,
        Field(
            ge=1,
            le=100,
            description=(
                "Most of these two limits that one tenant may have waiting while another one enqueued within the hour."
            ),
        ),
        Use.CLIENTS,
    ] = 50
    enqueue_replicas: Annotated[
        int,
        Field(ge=0, description="Replicas that must have a request, within 1 s, before enqueue returns; 0 for none."),
        Use.PROCESS,
    ] = 0


@dataclass(frozen=True, slots=True)
class QueueLimits(SharedLimits):
    """All limits of a queue. Those that are no setting are the same everywhere; only tests pass other values.

    Attributes:
        waiting_ttl_ms: time for which the id of a request that waits or runs is remembered. 30 days outlast any wait,
            so that an id is not taken twice.
        dead_cap: approximate number of dead letters that are kept. `dead_bytes` bounds their memory; this bounds their
            number where they are small.
        reply_cap: approximate number of notifications that one reply stream keeps: a client reads them at once, so more
            than this belong to a client that has left.
        watchers: number of workers that watch for work; each of the others waits to be woken by name.
        at_once: largest number of requests that one call hands back.
        copied_bytes: most bytes of entries that one call copies, or stages; more would block Redis for too long.
        taken_bytes: most bytes of the requests that one pull takes.
        kept_bytes: most bytes of output of interrupted runs that are kept, of all requests together.
        kept_ttl_ms: time for which the output of an interrupted run is kept.
        notices_cap: approximate number of cancels, cancel requests and drains that Redis keeps.
        now_ms: a fixed clock for tests; None for the server's.
    """

    waiting_ttl_ms: int = 2_592_000_000
    dead_cap: Annotated[int, Use.SCRIPTS] = 100_000
    reply_cap: Annotated[int, Use.SCRIPTS] = 100_000
    watchers: Annotated[int, Use.SCRIPTS] = 2
    kept_bytes: int = 268_435_456
    kept_ttl_ms: int = 3_600_000
    at_once: Annotated[int, Use.SCRIPTS] = 200
    copied_bytes: Annotated[int, Use.SCRIPTS] = 262_144
    taken_bytes: Annotated[int, Use.SCRIPTS] = 4_194_304
    notices_cap: Annotated[int, Use.SCRIPTS] = 10_000
    now_ms: Annotated[int | None, Use.SCRIPTS] = None

    @property
    def record_ttl_ms(self) -> int:
        """Time to live of the record of an id whose request has not ended."""
        return max(self.result_ttl_ms, self.waiting_ttl_ms)

    @property
    def max_entry_bytes(self) -> int:
        """Largest entry that may run; larger ones end as failed."""
        return self.max_body_bytes + ENVELOPE_BYTES

    def in_scripts(self) -> dict[str, Any]:
        """The limits that scripts read, by name."""
        return {name: getattr(self, name) for name in (*IN_SCRIPTS, "record_ttl_ms", "max_entry_bytes")}

    def encoded(self, prefix: str) -> str:
        """JSON of the prefix of the queue's keys, and of the limits that scripts read and that are not the default.

        The defaults are in the scripts' text: decoding all of them would take a fifth of a short call.
        """
        others = {name: value for name, value in self.in_scripts().items() if value != DEFAULTS[name]}
        return json.dumps({"prefix": prefix, **others})


def marked(use: Use) -> tuple[str, ...]:
    """Names of the limits with a mark, in the order of the table."""
    return tuple(each.name for each in fields(QueueLimits) if use in getattr(each.type, "__metadata__", ()))


IN_SCRIPTS = marked(Use.SCRIPTS)
DEFAULTS = QueueLimits().in_scripts()
