"""Every metric of a gateway, in a registry of its own: the default one holds a worker's metrics, all 0 here.

Labels have few values, all known in advance; none is a batch, a tenant, a model or a host. `make docs` writes
docs/metrics.md from the texts here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from streamfleet.common import metrics as common
from streamfleet.common.protocol import stream_ms
from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.webhook_messages import Ending, Reason

REGISTRY = CollectorRegistry()
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 450, 600, 900, 3600)

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/messages/batches",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/streams",
    "/v1/files",
    "/v1/batches",
    "/v1/batch",
    "/ui",
    "/health",
    "/livez",
    "/readyz",
)
WITH_IDS = (
    "/v1/models",
    "/v1/streams",
    "/v1/responses",
    "/v1/messages/batches",
    "/v1/files",
    "/v1/batches",
    "/v1/batch",
    "/ui",
)
"""Endpoints below which there are further paths."""
OTHER = "other"
STREAM_ENDS = WHOLE, ERROR, LEFT, CUT = "whole", "error", "left", "cut"
_FIRST_OF_ITS_GROUP = "/0"
LAG_EVERY = 4
"""One of this many groups of chunks reports its lag: thousands a second would cost some percent of a processor."""
_groups = itertools.count()
CODES = frozenset(
    {200, 202, 304, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 431, 499, 500, 502, 503, 504, 529}
)
REASONS = (
    "answer_bytes",
    "batch_tokens",
    "batches",
    "body_bytes",
    "body_too_large",
    "body_too_slow",
    "connections",
    "content_encoding",
    "file_quota",
    "headers_too_large",
    "headers_too_slow",
    "idle_connection",
    "key",
    "lane",
    "malformed",
    "queue_full",
    "likely_late",
    "requests_per_minute",
    "responses",
    "slow_reader",
    "tokens_per_minute",
    "uploads",
)
BATCH_ENDED = "ended"
BATCH_STATUSES = (*(each.value for each in BatchStatus if not each.ended), BATCH_ENDED)
"""Statuses of an open batch; in the last one, its end is still to be announced."""
BATCH_LINES = COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"
STORE_ERRORS = STORE_GONE, STORE_FAILED = "gone", "failed"
WEBHOOK_LOST = "lost"
"""Outcome of an attempt whose lease had ended, so that another process had the webhook."""
WEBHOOK_OUTCOMES = (*Ending, WEBHOOK_LOST)

REQUESTS = Counter(
    "streamfleet_gateway_requests_total",
    "HTTP requests answered, by endpoint and status code.",
    ["endpoint", "code"],
    registry=REGISTRY,
)
SECONDS = Histogram(
    "streamfleet_gateway_request_seconds",
    "From the headers of an HTTP request to the end of its answer.",
    ["endpoint", "code"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
FIRST_TOKEN = Histogram(
    "streamfleet_gateway_first_token_seconds",
    "From the headers of an HTTP request to the first chunk of its stream.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
OPEN = Gauge("streamfleet_gateway_requests_open", "HTTP requests that are being answered.", registry=REGISTRY)
STREAMS = Gauge("streamfleet_gateway_streams_open", "Streams that are being sent.", registry=REGISTRY)
STREAMS_ENDED = Counter(
    "streamfleet_gateway_streams_ended_total",
    "Streams that were sent, by how they ended.",
    ["outcome"],
    registry=REGISTRY,
)
STREAM_LAG = Histogram(
    "streamfleet_gateway_stream_lag_seconds",
    "From a group of chunks being in Redis to its being sent.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
CONNECTIONS = Gauge("streamfleet_gateway_connections", "Connections that are open.", registry=REGISTRY)
CONNECTIONS_LIMIT = Gauge(
    "streamfleet_gateway_connections_limit", "Connections that may be open at once.", registry=REGISTRY
)
BODY_BYTES = Gauge(
    "streamfleet_gateway_body_bytes", "Bytes of request bodies that are held at the moment.", registry=REGISTRY
)
ANSWER_BYTES = Gauge(
    "streamfleet_gateway_answer_bytes", "Bytes of large answers that are held for their readers.", registry=REGISTRY
)
DEADLINE = Gauge(
    "streamfleet_gateway_deadline_seconds", "Deadline of a request whose caller names none.", registry=REGISTRY
)
REDIS_UP = Gauge("streamfleet_gateway_redis_up", "1 when Redis answered this gateway's last look.", registry=REGISTRY)
REFUSED = Counter(
    "streamfleet_gateway_refused_total", "What the gateway itself refused, by reason.", ["reason"], registry=REGISTRY
)
BATCHES_OPEN = Gauge("streamfleet_gateway_batches_open", "Batches that are not through.", ["status"], registry=REGISTRY)
BATCHES_RUNNING = Gauge("streamfleet_gateway_batches_running", "Batches that this gateway has.", registry=REGISTRY)
BATCHES_STALLED = Gauge(
    "streamfleet_gateway_batch_stalled_seconds",
    "Longest time that any open batch has made no progress; NaN while Redis does not answer.",
    registry=REGISTRY,
)
BATCH_LINES_DONE = Counter(
    "streamfleet_gateway_batch_lines_total", "Lines of batches that were written down.", ["outcome"], registry=REGISTRY
)
STORE_FAULTS = Counter(
    "streamfleet_gateway_file_store_errors_total",
    "What the store of files did not do, by reason.",
    ["reason"],
    registry=REGISTRY,
)
WEBHOOK_ATTEMPTS = Counter(
    "streamfleet_gateway_webhook_attempts_total",
    "Webhooks taken to be delivered, by what became of them.",
    ["outcome"],
    registry=REGISTRY,
)
WEBHOOKS_DEAD = Counter("streamfleet_gateway_webhooks_dead_total", "Webhooks given up.", ["reason"], registry=REGISTRY)
WEBHOOK_DELIVERED = Histogram(
    "streamfleet_gateway_webhook_delivered_seconds",
    "From announcing a webhook to its delivery.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 600, 3_600, 14_400, 43_200, 86_400, 259_200, 432_000),
    registry=REGISTRY,
)
WEBHOOKS_OUTSTANDING = Gauge(
    "streamfleet_gateway_webhooks_outstanding", "Webhooks not delivered and not given up yet.", registry=REGISTRY
)


def begin() -> None:
    """Set counters with known labels to 0, and register the metrics that every process has."""
    for counter, values in (
        (REFUSED, REASONS),
        (STREAMS_ENDED, STREAM_ENDS),
        (BATCH_LINES_DONE, BATCH_LINES),
        (STORE_FAULTS, STORE_ERRORS),
        (WEBHOOK_ATTEMPTS, WEBHOOK_OUTCOMES),
        (WEBHOOKS_DEAD, Reason),
    ):
        for value in values:
            counter.labels(value)
    REGISTRY.register(common.BUILD)
    ProcessCollector(registry=REGISTRY)
    PlatformCollector(registry=REGISTRY)


def observe_lag(chunk_id: str, now_ms: float) -> None:
    """Observe the time from Redis to this gateway for every fourth group of chunks, by its first chunk.

    Args:
        chunk_id: stream id, which begins with Redis's time, and the chunk's place in the group.
        now_ms: this machine's time, epoch ms.
    """
    if chunk_id.endswith(_FIRST_OF_ITS_GROUP) and next(_groups) % LAG_EVERY == 0:
        STREAM_LAG.observe(max(0.0, now_ms - stream_ms(chunk_id)) / 1000)


def endpoint_label(path: str) -> str:
    """Returns the endpoint of a path, for a label."""
    for endpoint in ENDPOINTS:
        if path == endpoint or (endpoint in WITH_IDS and path.startswith(f"{endpoint}/")):
            return endpoint
    return OTHER


def code_label(status: int) -> str:
    """Returns a status code, for a label."""
    return str(status) if status in CODES else OTHER


def count_lines(counts: Mapping[str, int]) -> None:
    """Count recorded lines of a batch. Those that came too late are part of the failed ones in `counts`."""
    late = counts.get("late", 0)
    for outcome, lines in (
        (COMPLETED, counts.get("completed", 0)),
        (FAILED, counts.get("failed", 0) - late),
        (EXPIRED, late),
    ):
        BATCH_LINES_DONE.labels(outcome).inc(max(0, lines))
