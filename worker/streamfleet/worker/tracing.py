"""OpenTelemetry spans of a worker, off unless asked for: one request, and within it its wait, its run, its publishing.

A request belongs to the trace that its entry names (`traceparent`, W3C Trace Context), else it begins one. All times
are Redis's: a span must not end before it began because two machines' clocks differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from streamfleet.common.errors import SettingsError
from streamfleet.worker.outcome import Finished, Outcome, Postponed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from streamfleet.worker.flights import Flight

FLUSH_MS = 5_000
SERVICE = "streamfleet-worker"
USAGE = (("prompt_tokens", "gen_ai.usage.input_tokens"), ("completion_tokens", "gen_ai.usage.output_tokens"))


class Trace(Protocol):
    """One request's spans."""

    @property
    def traceparent(self) -> str:
        """Its run, as a parent of what the engine does."""
        ...

    def starts(self, now: float) -> None:
        """It goes into the engine."""
        ...

    def landed(self, outcome: Outcome, now: float) -> None:
        """It has an outcome, which is to be written."""
        ...

    def left(self, now: float) -> None:
        """The outcome is written."""
        ...


class Traces:
    """Makes a trace for each request.

    Args:
        queue, worker: names, for the spans' attributes.
        exporter: where spans go; None for OTLP over HTTP, as the standard ``OTEL_…`` variables say.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """

    def __init__(self, queue: str, worker: str, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"STREAMFLEET_TRACES: otlp needs {error.name}, which is not there: pip install 'streamfleet[traces]'"
            ) from None
        resource = Resource({"service.instance.id": worker}).merge(Resource.create())
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before ours.
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        self._provider: TracerProvider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("streamfleet")
        self._attributes = {
            "messaging.system": "redis",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "messaging.consumer.group.name": "workers",
            "messaging.client.id": worker,
        }

    def begin(self, flight: Flight) -> Trace:
        """A request was taken: its span, which began when it was enqueued."""
        return _Spans(self._tracer, flight, self._attributes)

    def close(self) -> None:
        """Send what is left, for `FLUSH_MS` at most."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


class _Spans:
    def __init__(self, tracer: Any, flight: Flight, common: Mapping[str, str]) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self._flight = tracer, flight
        lease = flight.claim.lease
        began = flight.enqueued_ms * 1_000_000
        given = flight.claim.fields.get(b"traceparent", b"").decode(errors="replace")
        self._request: Span = tracer.start_span(
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
            },
        )
        self._within = trace.set_span_in_context(self._request)
        self._step: Span = tracer.start_span("streamfleet.wait", context=self._within, start_time=began)

    @property
    def traceparent(self) -> str:
        context = self._step.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def starts(self, now: float) -> None:
        self._next("streamfleet.run", now)

    def landed(self, outcome: Outcome, now: float) -> None:
        from opentelemetry.trace import Status, StatusCode

        name = str(outcome.status) if isinstance(outcome, Finished) else _in_words(type(outcome).__name__)
        self._request.set_attribute("streamfleet.outcome", name)
        if isinstance(outcome, Finished):
            self._request.set_attribute("http.response.status_code", int(outcome.http_status))
            for field, attribute in USAGE:
                if isinstance(tokens := outcome.usage.get(field), int):
                    self._request.set_attribute(attribute, tokens)
        if not (isinstance(outcome, Finished) and outcome.status == "succeeded"):
            # Never the engine's own words: they may repeat what it was sent.
            reason = outcome.reason if isinstance(outcome, Postponed) else name
            self._request.set_status(Status(StatusCode.ERROR, reason))
        self._next("streamfleet.publish", now)

    def left(self, now: float) -> None:
        at = self._at(now)
        self._step.end(at)
        self._request.end(at)

    def _next(self, name: str, now: float) -> None:
        at = self._at(now)
        self._step.end(at)
        self._step = self._tracer.start_span(name, context=self._within, start_time=at)

    def _at(self, now: float) -> int:
        """Redis's clock, in epoch nanoseconds, at a monotonic time of this worker's."""
        flight = self._flight
        return flight.claimed_ms * 1_000_000 + round((now - flight.claimed_at) * 1e9)


def _in_words(name: str) -> str:
    """``HandedBack`` as ``handed_back``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
