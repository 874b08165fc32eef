"""Requests join the trace of the service that enqueues them, where that service uses OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from streamfleet.common.envelope import traceparent_of


@contextmanager
def enqueueing(queue: str, requests: int) -> Iterator[str | None]:
    """A span around an enqueue, and its W3C traceparent for the requests to carry.

    None where nobody in this process has set up OpenTelemetry.
    """
    api = sys.modules.get("opentelemetry.trace")  # whoever set it up has imported it
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
        set_up = context.is_valid  # what was imported and not set up makes spans that are none
        yield traceparent_of(context.trace_id, context.span_id, context.trace_flags) if set_up else None
