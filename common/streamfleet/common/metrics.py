"""Every metric of streamfleet, in the default registry, so that one /metrics page serves them beside vLLM's own."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram, Info

_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)

BUILD = Info("streamfleet_build", "Version of streamfleet.")
CLAIMED = Counter("streamfleet_requests_claimed_total", "Requests that this worker took.", ["lane"])
FINISHED = Counter(
    "streamfleet_requests_finished_total",
    "Requests that this worker ended, by terminal status.",
    ["lane", "status"],
)
RETRIED = Counter(
    "streamfleet_requests_retried_total", "Requests handed back for later after a passing fault.", ["lane"]
)
RELEASED = Counter(
    "streamfleet_requests_released_total",
    "Requests handed back uncounted: draining, unfit, or too many together.",
    ["lane"],
)
DROPPED = Counter("streamfleet_requests_dropped_total", "Requests ended at the pull: expired, cancelled, oversized.")
EXPIRED = Counter("streamfleet_requests_expired_total", "Queued requests ended at their deadline.")
RECLAIMED = Counter("streamfleet_reclaimed_total", "Entries taken back from silent workers.", ["outcome"])
LEASES_LOST = Counter("streamfleet_leases_lost_total", "Leases that were gone at renewal or completion.")
RENEWALS_LATE = Counter("streamfleet_lease_renewals_late_total", "Renewals later than half a lease after the last one.")
QUEUED = Histogram("streamfleet_queued_seconds", "From enqueueing to being claimed.", ["lane"], buckets=_SECONDS)
FIRST_TOKEN = Histogram(
    "streamfleet_first_token_seconds", "From the engine to its first token.", ["lane"], buckets=_SECONDS
)
RUN = Histogram("streamfleet_run_seconds", "From the engine to its outcome.", ["lane"], buckets=_SECONDS)
TOTAL = Histogram("streamfleet_total_seconds", "From enqueueing to the outcome.", ["lane"], buckets=_SECONDS)
TOKENS = Counter("streamfleet_tokens_total", "Tokens of finished requests.", ["kind"])
TOKENS_SAVED = Counter(
    "streamfleet_tokens_saved_total", "Output tokens at most not generated because a request was aborted."
)
RUNNING = Gauge("streamfleet_running", "Requests that this worker holds.")
CREDIT = Gauge("streamfleet_credit", "How many more requests this worker could take now.")
READY = Gauge("streamfleet_ready", "1 when this worker takes requests.")


M = TypeVar("M", Counter, Gauge, Histogram)


@functools.cache
def of(metric: M, *labels: str) -> M:
    """`metric.labels(*labels)`, looked up once: the library's own look-up costs as much as the counting."""
    child: M = metric.labels(*labels)
    return child


def describe_build() -> None:
    """Set the build's labels."""
    BUILD.info({"version": metadata.version("streamfleet")})
