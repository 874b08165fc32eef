"""Every metric of a gateway, in a registry of its own: the default one holds a worker's metrics, all 0 here.

Labels have few values, all known in advance. `make docs` writes docs/metrics.md from the texts here.
"""

from __future__ import annotations

import itertools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from streamfleet.common import metrics as common

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


def begin() -> None:
    """Set counters with known labels to 0, and register the metrics that every process has."""
    for reason in REASONS:
        REFUSED.labels(reason)
    for outcome in STREAM_ENDS:
        STREAMS_ENDED.labels(outcome)
    REGISTRY.register(common.BUILD)
    ProcessCollector(registry=REGISTRY)
    PlatformCollector(registry=REGISTRY)


def export_limits(connections: int, deadline_ms: int) -> None:
    """Export the limits that other metrics are compared with: most connections, and the default deadline in ms."""
    CONNECTIONS_LIMIT.set(connections)
    DEADLINE.set(deadline_ms / 1000)


def observe_lag(chunk_id: str, now_ms: float) -> None:
    """Observe the time from Redis to this gateway for every fourth group of chunks, by its first chunk.

    Args:
        chunk_id: stream id, which begins with Redis's time, and the chunk's place in the group.
        now_ms: this machine's time, epoch ms.
    """
    if chunk_id.endswith(_FIRST_OF_ITS_GROUP) and next(_groups) % LAG_EVERY == 0:
        STREAM_LAG.observe(max(0.0, now_ms - int(chunk_id.partition("-")[0])) / 1000)


def endpoint_label(path: str) -> str:
    """Returns the endpoint of a path, for a label."""
    for endpoint in ENDPOINTS:
        if path == endpoint or (endpoint in WITH_IDS and path.startswith(f"{endpoint}/")):
            return endpoint
    return OTHER


def code_label(status: int) -> str:
    """Returns a status code, for a label."""
    return str(status) if status in CODES else OTHER
