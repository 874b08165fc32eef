"""Every metric of a gateway, in a registry of its own: the default one has a worker's, which would all be 0 here.

Labels have few values, all known beforehand. docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from streamfleet.common import metrics as common

REGISTRY = CollectorRegistry()
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/streams",
    "/v1/files",
    "/v1/batches",
    "/v1/batch",
    "/health",
    "/livez",
    "/readyz",
    "/metrics",
)
WITH_IDS = ("/v1/models", "/v1/streams", "/v1/files", "/v1/batches", "/v1/batch")
"""Something may stand behind these."""
OTHER = "other"
CODES = frozenset({200, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 431, 499, 500, 502, 503, 504})
REASONS = (
    "body_too_large",
    "body_too_slow",
    "connections",
    "headers_too_large",
    "headers_too_slow",
    "key",
    "lane",
    "malformed",
    "queue_full",
    "requests_per_minute",
    "slow_reader",
    "tokens_per_minute",
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
CONNECTIONS = Gauge("streamfleet_gateway_connections", "Connections that are open.", registry=REGISTRY)
REFUSED = Counter(
    "streamfleet_gateway_refused_total", "What the gateway itself refused, by reason.", ["reason"], registry=REGISTRY
)
CANCELLED = Counter(
    "streamfleet_gateway_cancelled_total", "Requests cancelled because their caller had left.", registry=REGISTRY
)
RESTARTS = Counter(
    "streamfleet_gateway_stream_restarts_total",
    "Streams that began anew after chunks had been sent.",
    registry=REGISTRY,
)


def begin() -> None:
    """Let counters with known labels stand at 0 before they first count, and add what every process tells of itself."""
    for reason in REASONS:
        REFUSED.labels(reason)
    REGISTRY.register(common.BUILD)
    ProcessCollector(registry=REGISTRY)
    PlatformCollector(registry=REGISTRY)


def endpoint_label(path: str) -> str:
    """The endpoint of a path, for a label."""
    for endpoint in ENDPOINTS:
        if path == endpoint or (endpoint in WITH_IDS and path.startswith(f"{endpoint}/")):
            return endpoint
    return OTHER


def code_label(status: int) -> str:
    """A status code, for a label."""
    return str(status) if status in CODES else OTHER
