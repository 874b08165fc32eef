"""Limits of a queue: one value object for settings, brokers and scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass

from streamfleet.common.protocol import LANES, MAX_META_BYTES, MAX_NAME_CHARS, SHARES

LEAST_WEIGHT, MOST_OF_A_TENANT = 0.001, 1_000_000
"""Least weight of a tenant; largest weight, and most of its requests that a limit lets run at once."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of a queue, the same for all its producers and workers; settings, brokers and scripts have them from here.

    Attributes:
        lane_limit: largest number of requests in a lane; above it, a client's enqueue is refused.
        lane_bytes: most bytes of Redis's memory that a lane may take before it refuses requests of 16 KiB or more.
        lane_tenant_percent: most of these two limits, in percent, that one tenant may have waiting while others use the
            queue.
        result_ttl_ms: time for which results and their ids are kept.
        tenant_result_bytes: most bytes of results that are kept of one tenant's `bounded` requests.
        waiting_ttl_ms: time for which the id of a request that has not ended is kept, if longer.
        dead_ttl_ms: time for which dead letters are kept.
        judge_deadlines: "on" if a worker does not start what cannot be done by its deadline, else "off".
        rank_by_program: "on" if turns of a program go by its first arrival, else "off".
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
    lane_tenant_percent: int = 50
    result_ttl_ms: int = 86_400_000
    tenant_result_bytes: int = 268_435_456
    waiting_ttl_ms: int = 2_592_000_000
    dead_ttl_ms: int = 604_800_000
    judge_deadlines: str = "off"
    rank_by_program: str = "off"
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
    *("rank_by_program", "tenant_result_bytes"),
)
"""Limits that the scripts get by name, as `cfg` in lua/lib/keys.lua."""
