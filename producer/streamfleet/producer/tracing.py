"""Connects requests to the trace of the service that enqueues them, if it uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from streamfleet.common.envelope import traceparent_of


@contextmanager
def enqueueing(queue: str, requests: int) -> Iterator[str | None]:
    """A span around an enqueue, and its W3C traceparent for the requests to carry.

    None if this process has not set up OpenTelemetry.
    """
    api = sys.modules.get("opentelemetry.trace")  # set up means imported
    if api is None:
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
        set_up = context.is_valid  # without a set-up, spans are invalid
        yield traceparent_of(context.trace_id, context.span_id, context.trace_flags) if set_up else None
