"""The metrics of batches. Labels have few values, all known beforehand; no batch, tenant or model is one."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

from streamfleet.common.batch_records import BatchStatus
from streamfleet.gateway.metrics import REGISTRY

ENDED = "ended"
STATUSES = (
    *(each.value for each in BatchStatus if not each.ended),
    ENDED,
)
"""Where an open batch may be; the last one stays open until its end was told."""
RUNS = BACK, WAITS, INTERRUPTED, STUMBLED, LOST = "back", "waits", "interrupted", "stumbled", "lost"
"""How a gateway's having a batch ends, besides with the end of the batch."""
LINES = COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"
FIRST, AGAIN = "first", "again"

OPEN = Gauge("streamfleet_gateway_batches_open", "Batches that are not through.", ["status"], registry=REGISTRY)
RUNNING = Gauge("streamfleet_gateway_batches_running", "Batches that this gateway has.", registry=REGISTRY)
STALLED = Gauge(
    "streamfleet_gateway_batch_stalled_seconds",
    "For how long the open batch has made no progress that has made none for longest.",
    registry=REGISTRY,
)
TAKEN = Counter(
    "streamfleet_gateway_batches_taken_total", "Batches that this gateway took.", ["how"], registry=REGISTRY
)
RUNS_ENDED = Counter(
    "streamfleet_gateway_batch_runs_total",
    "Batches that this gateway had, by why it has them no more.",
    ["outcome"],
    registry=REGISTRY,
)
LINES_DONE = Counter(
    "streamfleet_gateway_batch_lines_total", "Lines of batches that were written down.", ["outcome"], registry=REGISTRY
)


def begin() -> None:
    """Let counters with known labels stand at 0 before they first count."""
    for how in (FIRST, AGAIN):
        TAKEN.labels(how)
    for outcome in (ENDED, *RUNS):
        RUNS_ENDED.labels(outcome)
    for outcome in LINES:
        LINES_DONE.labels(outcome)


def took(epoch: int) -> None:
    """A batch was taken, which somebody may have had before."""
    TAKEN.labels(FIRST if epoch == 1 else AGAIN).inc()


def wrote(counts: Mapping[str, int]) -> None:
    """Lines were written down. Those that came too late are among what failed."""
    late = counts.get("late", 0)
    for outcome, lines in (
        (COMPLETED, counts.get("completed", 0)),
        (FAILED, counts.get("failed", 0) - late),
        (EXPIRED, late),
    ):
        LINES_DONE.labels(outcome).inc(max(0, lines))
