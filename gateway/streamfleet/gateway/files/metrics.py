"""Metrics of files and their store: bytes moved, uploads by outcome, errors of the store.

Routes and the store count here. Labels have few values, all known in advance; no label is a name or a tenant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.metrics import REGISTRY

DIRECTIONS = WRITTEN, READ = "written", "read"
UPLOADS = STORED, REFUSED, BROKEN = "stored", "refused", "broken"
ERRORS = GONE, FAILED = "gone", "failed"

BYTES = Counter(
    "streamfleet_gateway_file_bytes_total", "Bytes to and from the store of files.", ["direction"], registry=REGISTRY
)
UPLOADED = Counter(
    "streamfleet_gateway_uploads_total", "Uploads, by what became of them.", ["outcome"], registry=REGISTRY
)
STORE_ERRORS = Counter(
    "streamfleet_gateway_file_store_errors_total",
    "What the store of files did not do, by reason.",
    ["reason"],
    registry=REGISTRY,
)


def begin() -> None:
    """Set counters with known labels to 0."""
    for direction in DIRECTIONS:
        BYTES.labels(direction)
    for outcome in UPLOADS:
        UPLOADED.labels(outcome)
    for reason in ERRORS:
        STORE_ERRORS.labels(reason)


@contextmanager
def count_upload() -> Iterator[None]:
    """Counts an upload as stored, refused (by its content) or broken (the caller left, the store or Redis failed)."""
    try:
        yield
    except BaseException as error:
        wrong = isinstance(error, InvalidRequest) or (isinstance(error, ApiError) and error.status < 500)
        UPLOADED.labels(REFUSED if wrong else BROKEN).inc()
        raise
    UPLOADED.labels(STORED).inc()
