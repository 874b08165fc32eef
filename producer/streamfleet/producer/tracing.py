"""Requests join the trace of the service that enqueues them, where that service uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def enqueueing(queue: str, requests: int) -> Iterator[str | None]:
    """A span around an enqueue, and its W3C traceparent for the requests to carry.

    None, at hardly any cost, where nobody in this process has set up OpenTelemetry.
    """
    api = sys.modules.get("opentelemetry.trace")  # whoever set it up has imported it
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        yield None
        return
    attributes = {
        "messaging.system": "redis",
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
        "messaging.batch.message_count": requests,
    }
    tracer = api.get_tracer("streamfleet")
    with tracer.start_as_current_span("streamfleet.enqueue", kind=api.SpanKind.PRODUCER, attributes=attributes) as span:
        context = span.get_span_context()
        yield (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}" if context.is_valid else None
        )
