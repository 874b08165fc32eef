"""One trace from a service's enqueue to its result: real processes, sent to a real receiver of OTLP."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry comes with the traces extra, and with vLLM")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the same")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamfleet.common.errors import SettingsError
from streamfleet.producer import Client
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.tracing import Traces
from tests.integration.otlp import Receiver, Span, receiver
from tests.integration.worker_in_process import small_engine, worker_inside
from tests.integration.worker_process import Fleet
from tests.waiting import eventually

SECRET = "a body that is nobody's business"
SERVICE = f"""
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from streamfleet.producer import Client

provider = TracerProvider(resource=Resource({{"service.name": "a-service"}}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)

async def main():
    async with Client(sys.argv[1]) as fleet:
        with trace.get_tracer("a-service").start_as_current_span("asks"):
            handle = await fleet.enqueue({{"prompt": "{SECRET}", "max_tokens": 4}}, id="r-1")
            many = await fleet.enqueue_many([{{"body": {{"prompt": "hi", "max_tokens": 2}}}}] * 3)
        for each in (handle, *many):
            (await each.result(timeout=20)).raise_for_status()

asyncio.run(main())
"""


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Yields the receiver of the spans of this test's processes."""
    with receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield received


async def ask(fleet: Fleet) -> None:
    """A service that traces enqueues four requests and waits for their results."""
    words = [sys.executable, "-c", SERVICE, fleet.url]
    service = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert service.returncode == 0, service.stderr


async def test_one_trace_from_enqueue_to_result(fleet: Fleet, collected: Receiver) -> None:
    await fleet.worker("w1", traces="otlp")
    await ask(fleet)
    await eventually(lambda: len(collected.named("streamfleet.request")) == 4, 10, "the spans of four requests")
    (asks,) = collected.named("asks")
    one, many = sorted(collected.named("streamfleet.enqueue"), key=lambda span: span.start)
    assert (one.parent, many.parent, {span.trace for span in collected.spans}) == (asks.id, asks.id, {asks.trace})
    assert (one.service, one.attributes["messaging.batch.message_count"]) == ("a-service", 1)
    assert many.attributes["messaging.batch.message_count"] == 3
    (request,) = [span for span in collected.named("streamfleet.request") if span.parent == one.id]
    assert (request.service, request.failed) == ("streamfleet-worker", False)
    said = request.attributes
    assert (said["messaging.message.id"], said["streamfleet.lane"], said["streamfleet.attempt"]) == ("r-1", "normal", 1)
    assert (said["streamfleet.outcome"], said["gen_ai.usage.output_tokens"]) == ("succeeded", 4)
    steps = sorted((span for span in collected.spans if span.parent == request.id), key=lambda span: span.start)
    assert [span.name for span in steps] == ["streamfleet.wait", "streamfleet.run", "streamfleet.publish"]
    bounds = [request.start, *(span.end for span in steps)]
    assert [span.start for span in steps] == bounds[:3]
    assert bounds[3] == request.end
    assert bounds == sorted(bounds)
    assert SECRET not in repr(collected.spans)


async def test_nothing_is_sent_unless_asked_for(fleet: Fleet, collected: Receiver) -> None:
    worker = await fleet.worker("w1")
    await ask(fleet)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert {span.service for span in collected.spans} == {"a-service"}


async def test_what_is_left_is_sent_when_the_worker_ends(
    fleet: Fleet, collected: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    worker = await fleet.worker("w1", traces="otlp")
    await fleet.result(await fleet.add("r-1"))
    assert collected.spans == []
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert len(collected.named("streamfleet.request")) == 1


async def test_a_request_without_a_trace_begins_one_and_failures_are_marked(fleet: Fleet, collected: Receiver) -> None:
    await fleet.worker("w1", traces="otlp")
    context = f"00-{'ab' * 16}-{'cd' * 8}-"
    await fleet.add("plain")
    await fleet.add("broken", body="{" + SECRET)
    await fleet.add("unsampled", traceparent=f"{context}00")
    await fleet.add("sampled", traceparent=f"{context}01")
    await fleet.add("garbage", traceparent=SECRET)
    await fleet.results(["plain", "broken", "unsampled", "sampled", "garbage"])
    await eventually(lambda: len(collected.named("streamfleet.request")) == 4, 10, "all spans but the unsampled one")
    found: dict[str, Span] = {
        span.attributes["messaging.message.id"]: span for span in collected.named("streamfleet.request")
    }
    assert set(found) == {"plain", "broken", "sampled", "garbage"}
    assert (found["sampled"].trace, found["sampled"].parent) == ("ab" * 16, "cd" * 8)
    assert {name: span.parent for name, span in found.items() if name != "sampled"} == {
        "plain": "",
        "broken": "",
        "garbage": "",
    }
    assert {name for name, span in found.items() if span.failed} == {"broken", "garbage"}
    assert SECRET not in repr(collected.spans)


async def test_the_engine_is_told_which_span_runs_it(fleet: Fleet) -> None:
    asked: list[str] = []
    engine, exporter = small_engine(), InMemorySpanExporter()
    run = engine.run

    async def listening(request: EngineRequest) -> EngineReply:
        asked.append(request.traceparent)
        return await run(request)

    engine.run = listening  # type: ignore[method-assign]
    traces = Traces("default", "w1", exporter)
    async with worker_inside(fleet.url, engine, traces=traces):
        await fleet.result(await fleet.add(priority="9", source="web"))
        await fleet.settled()
        await asyncio.to_thread(traces.close)
    (whole,) = [span for span in exporter.get_finished_spans() if span.name == "streamfleet.request"]
    assert "'priority'" in str((whole.attributes or {})["streamfleet.warnings"])
    (ran,) = [span for span in exporter.get_finished_spans() if span.name == "streamfleet.run"]
    assert ran.context is not None
    assert ran.context.trace_flags.sampled
    assert asked == [f"00-{ran.context.trace_id:032x}-{ran.context.span_id:016x}-{ran.context.trace_flags:02x}"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"STREAMFLEET_TRACES: otlp needs opentelemetry.sdk.trace, .*\[traces\]"):
        Traces("default", "w1")


async def test_a_service_that_does_not_trace_names_no_trace(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it pay for one, where redis-py has imported OpenTelemetry because it is there."""
    monkeypatch.delattr("opentelemetry.trace.get_tracer")
    async with Client(fleet.url) as client:
        await client.enqueue({"prompt": "hi"})
        await client.enqueue_many([{"body": {"prompt": "hi"}}])
    entries = await fleet.redis.xrange("{default}:lane:normal")
    assert [set(fields) for _, fields in entries] == [{"id", "body", "reply"}] * 2
