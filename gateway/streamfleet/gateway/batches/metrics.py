"""Metrics of batches: those of this gateway, counted where it happens, and those of all, set by `monitor`.

Labels have few values, all known in advance; no label is a batch, a tenant or a model.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.metrics import REGISTRY

ENDED = "ended"
STATUSES = (
    *(each.value for each in BatchStatus if not each.ended),
    ENDED,
)
"""Statuses of an open batch; in the last one, its end is still to be announced."""
LINES = COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"

OPEN = Gauge("streamfleet_gateway_batches_open", "Batches that are not through.", ["status"], registry=REGISTRY)
RUNNING = Gauge("streamfleet_gateway_batches_running", "Batches that this gateway has.", registry=REGISTRY)
STALLED = Gauge(
    "streamfleet_gateway_batch_stalled_seconds",
    "Longest time that any open batch has made no progress; NaN while Redis does not answer.",
    registry=REGISTRY,
)
LINES_DONE = Counter(
    "streamfleet_gateway_batch_lines_total", "Lines of batches that were written down.", ["outcome"], registry=REGISTRY
)


def begin() -> None:
    """Set counters with known labels to 0."""
    for outcome in LINES:
        LINES_DONE.labels(outcome)


def count_recorded(counts: Mapping[str, int]) -> None:
    """Count recorded lines. Those that came too late are part of the failed ones in `counts`."""
    late = counts.get("late", 0)
    for outcome, lines in (
        (COMPLETED, counts.get("completed", 0)),
        (FAILED, counts.get("failed", 0) - late),
        (EXPIRED, late),
    ):
        LINES_DONE.labels(outcome).inc(max(0, lines))
