"""OpenTelemetry spans of a worker, off by default: one for each request, and within it its wait, run and publishing.

A request belongs to the trace that its entry names (`traceparent`, W3C Trace Context); without one it begins a trace.
All times are Redis's: with two machines' clocks a span could end before it began.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import structlog

from streamfleet.common.envelope import traceparent_of, unknown_fields
from streamfleet.common.errors import SettingsError
from streamfleet.common.results import cached_tokens, tokens_used
from streamfleet.worker.outcome import Finished, Outcome, Postponed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from streamfleet.worker.in_flight import InFlightRequest

log = structlog.get_logger(__name__)
P = ParamSpec("P")
FLUSH_S = 5.0
SERVICE = "streamfleet-worker"
USAGE = (("prompt_tokens", "gen_ai.usage.input_tokens"), ("completion_tokens", "gen_ai.usage.output_tokens"))


class Trace(Protocol):
    """Spans of one request."""

    @property
    def traceparent(self) -> str:
        """Trace context of its run, the parent of the engine's spans."""
        ...

    def starts(self, now: float) -> None:
        """Record that it goes into the engine."""
        ...

    def done(self, outcome: Outcome, now: float) -> None:
        """Record its outcome, which is to be written."""
        ...

    def left(self, now: float) -> None:
        """Record that the outcome is written."""
        ...


class Traces:
    """Makes a trace for each request.

    Args:
        queue, worker: names, for the spans' attributes.
        exporter: gets the spans; None for OTLP over HTTP, configured by the standard ``OTEL_…`` variables.

    Raises:
        SettingsError: OpenTelemetry is not installed, or cannot read one of its variables.
    """

    def __init__(self, queue: str, worker: str, exporter: SpanExporter | None = None) -> None:
        try:
            self._provider = _provider(worker, exporter)
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"STREAMFLEET_TRACES: otlp needs {error.name}, which is not there: pip install '.[traces]' in a clone"
            ) from None
        except ValueError as error:
            raise SettingsError(
                f"STREAMFLEET_TRACES: OpenTelemetry cannot read one of its variables: {error}"
            ) from None
        self._tracer = self._provider.get_tracer("streamfleet")
        self._attributes = {
            "messaging.system": "redis",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "messaging.consumer.group.name": "workers",
            "messaging.client.id": worker,
        }

    def begin(self, request: InFlightRequest) -> Trace | None:
        """Returns the trace of a pulled request; its span began when it was enqueued. None if OpenTelemetry fails."""
        try:
            return _Spans(self._tracer, request, self._attributes)
        except Exception:
            log.exception("tracing_failed")
            return None

    def close(self) -> None:
        """Send the remaining spans, for `FLUSH_S` at most."""
        # OpenTelemetry's own limits do not hold: if the collector does not answer, either call takes a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)


def _provider(worker: str, exporter: SpanExporter | None) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    resource = Resource({"service.instance.id": worker}).merge(Resource.create())
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over our names.
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _never_raises(step: Callable[P, None]) -> Callable[P, None]:
    """Decorator that suppresses errors: an error of a sampler must end neither a request nor the worker."""

    @functools.wraps(step)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(*args, **kwargs)
        except Exception:
            log.exception("tracing_failed")

    return guarded


class _Spans:
    def __init__(self, tracer: Any, request: InFlightRequest, common: Mapping[str, str]) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self._request = tracer, request
        lease = request.claim.lease
        # A forged stream id may lie far ahead; a span with such a time cannot be sent.
        began = min(request.enqueued_ms, request.claimed_ms) * 1_000_000
        unknown = unknown_fields(request.claim.fields)
        given = request.claim.fields.get(b"traceparent", b"").decode(errors="replace")
        self._span: Span = tracer.start_span(
            "streamfleet.request",
            context=TraceContextTextMapPropagator().extract({"traceparent": given}),
            kind=trace.SpanKind.CONSUMER,
            start_time=began,
            attributes={
                **common,
                "messaging.message.id": lease.request_id,
                "streamfleet.lane": str(lease.lane),
                "streamfleet.entry": lease.entry,
                "streamfleet.attempt": lease.attempt,
                **({"streamfleet.warnings": [warning for _, warning in unknown]} if unknown else {}),
            },
        )
        self._within = trace.set_span_in_context(self._span)
        self._step: Span = tracer.start_span("streamfleet.wait", context=self._within, start_time=began)

    @property
    def traceparent(self) -> str:
        context = self._step.get_span_context()
        if not context.is_valid:  # OTEL_SDK_DISABLED
            return ""
        return traceparent_of(context.trace_id, context.span_id, context.trace_flags)

    @_never_raises
    def starts(self, now: float) -> None:
        self._next("streamfleet.run", now)

    @_never_raises
    def done(self, outcome: Outcome, now: float) -> None:
        from opentelemetry.trace import Status, StatusCode

        name = str(outcome.status) if isinstance(outcome, Finished) else _in_words(type(outcome).__name__)
        self._span.set_attribute("streamfleet.outcome", name)
        if isinstance(outcome, Finished):
            self._span.set_attribute("http.response.status_code", int(outcome.http_status))
            for field, attribute in USAGE:
                if (tokens := tokens_used(outcome.usage, field)) is not None:
                    self._span.set_attribute(attribute, tokens)
            if cached := cached_tokens(outcome.usage):
                self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)
        if not (isinstance(outcome, Finished) and outcome.status == "succeeded"):
            # Never the engine's own words: they may repeat the request.
            reason = outcome.reason if isinstance(outcome, Postponed) else name
            self._span.set_status(Status(StatusCode.ERROR, reason))
        self._next("streamfleet.publish", now)

    @_never_raises
    def left(self, now: float) -> None:
        at = self._at(now)
        self._step.end(at)
        self._span.end(at)

    def _next(self, name: str, now: float) -> None:
        at = self._at(now)
        self._step.end(at)
        self._step = self._tracer.start_span(name, context=self._within, start_time=at)

    def _at(self, now: float) -> int:
        """Redis's clock, in epoch nanoseconds, at a monotonic time of this worker."""
        request = self._request
        return request.claimed_ms * 1_000_000 + round((now - request.claimed_at) * 1e9)


def _in_words(name: str) -> str:
    """``HandedBack`` as ``handed_back``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
