"""A worker's spans by themselves: whatever stands in an entry or an answer, and however OpenTelemetry fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry comes with the traces extra, and with vLLM")

from opentelemetry.sdk.trace import ReadableSpan, Tracer
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.errors import SettingsError
from streamfleet.common.protocol import Lane, Status
from streamfleet.worker import tracing
from streamfleet.worker.credit import Demand
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Finished
from streamfleet.worker.tracing import Traces
from tests.unit.worker_requests import CLAIMED_MS, in_flight_request

WITHIN_S = 20.0


def run(traces: Traces, request: InFlightRequest, usage: dict[str, Any] | None = None) -> None:
    """A request from its claim to its stored result."""
    spans = traces.begin(request)
    assert spans is not None
    spans.starts(100.1)
    spans.done(Finished(Status.SUCCEEDED, 200, usage=usage or {}), 100.2)
    spans.left(100.3)


class Silent:
    """A collector that takes spans and says nothing until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 - exporters are called so
        self.let_go.wait(WITHIN_S)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


def test_a_collector_that_says_nothing_holds_up_no_worker_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 0.01)
    silent = Silent()
    traces = Traces("default", "w1", silent)
    run(traces, in_flight_request())
    closing = threading.Thread(target=traces.close, daemon=True)
    closing.start()
    closing.join(WITHIN_S / 2)
    held_up = closing.is_alive()
    silent.let_go.set()
    assert not held_up


def test_an_entry_of_the_far_future_begins_when_it_was_claimed() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces("default", "w1", exporter)
    far = Lease(Lane.HIGH, f"{2**64 - 1}-0", 1, "r-1")
    run(traces, InFlightRequest(Claim(far, {}), 100.0, CLAIMED_MS, Demand()))
    traces.close()
    spans = exporter.get_finished_spans()
    assert len(spans) == 4
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert CLAIMED_MS * 1_000_000 <= span.start_time <= span.end_time < 2**63


@pytest.mark.parametrize("odd", [-1, 2**63, 10**400, "3", None])
def test_token_counts_that_cannot_be_are_left_out(odd: object) -> None:
    exporter = InMemorySpanExporter()
    traces = Traces("default", "w1", exporter)
    run(traces, in_flight_request(), {"prompt_tokens": 3, "completion_tokens": odd})
    traces.close()
    (request,) = [span for span in exporter.get_finished_spans() if span.name == "streamfleet.request"]
    assert {name for name in request.attributes or {} if name.startswith("gen_ai.")} == {"gen_ai.usage.input_tokens"}


def test_what_opentelemetry_raises_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("a sampler broke")

    traces = Traces("default", "w1", InMemorySpanExporter())
    spans = traces.begin(in_flight_request())
    assert spans is not None
    monkeypatch.setattr(Tracer, "start_span", broken)
    assert traces.begin(in_flight_request()) is None
    spans.starts(100.1)
    spans.done(Finished(Status.SUCCEEDED, 200), 100.2)
    spans.left(100.3)
    traces.close()


def test_where_opentelemetry_is_switched_off_the_engine_is_told_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    spans = Traces("default", "w1", InMemorySpanExporter()).begin(in_flight_request())
    assert spans is not None
    assert spans.traceparent == ""


def test_a_variable_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    with pytest.raises(SettingsError, match=r"STREAMFLEET_TRACES: .*OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"):
        Traces("default", "w1", InMemorySpanExporter())
