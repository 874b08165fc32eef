"""Metric of the store of files, which counts its errors here; its label's values are known in advance."""

from __future__ import annotations

from prometheus_client import Counter

from streamfleet.gateway.metrics import REGISTRY

ERRORS = GONE, FAILED = "gone", "failed"
STORE_ERRORS = Counter(
    "streamfleet_gateway_file_store_errors_total",
    "What the store of files did not do, by reason.",
    ["reason"],
    registry=REGISTRY,
)


def begin() -> None:
    """Set counters with known labels to 0."""
    for reason in ERRORS:
        STORE_ERRORS.labels(reason)
