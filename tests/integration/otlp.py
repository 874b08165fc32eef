"""A receiver of OTLP over HTTP, as a collector is one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span as it was sent; ids as hex, times in epoch nanoseconds."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    kind: int
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """Spans received so far."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        """Spans of this name."""
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        """An export request."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_span(service, span) for span in scope.spans]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _span(service: str, span: Any) -> Span:
    return Span(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        span.status.code == span.status.STATUS_CODE_ERROR,
        _attributes(span.attributes),
    )


@contextmanager
def receiver() -> Iterator[Receiver]:
    """One on a free port."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing to the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
