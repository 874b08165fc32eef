"""A server that speaks OpenAI's API over HTTP, well or in one of several bad ways, in threads of the test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """Behaviour of the server, and the requests that it got.

    Attributes:
        status: status of its answers.
        kind: content type of its answers.
        tokens: number of tokens of an answer.
        wait_s: seconds before it says anything.
        thinks_s: seconds from the chunk that names the role to the first token.
        hangs: true if it sends no more after the first token, until the test ends.
        breaks_off: true if it closes the connection after the first token.
        counts: true if it counts tokens.
        good: number of requests that it answers well before it does all that.
        bodies, priorities: bodies of the requests so far, and the priorities that vLLM would read.
        keys: their authorisations, and those of questions for models.
    """

    status: int = 200
    kind: str = "text/event-stream"
    tokens: int = 4
    wait_s: float = 0.0
    thinks_s: float = 0.0
    hangs: bool = False
    breaks_off: bool = False
    counts: bool = True
    good: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    priorities: set[str | None] = field(default_factory=set)
    keys: list[str | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.behaviour.keys.append(self.headers.get("Authorization"))
        refused = self.behaviour.status in {401, 403}
        self._whole(self.behaviour.status if refused else 200, {"data": [{"id": "first"}, {"id": "second"}]})

    def do_POST(self) -> None:
        acts = self.behaviour
        acts.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        acts.priorities.add(self.headers.get("X-Vllm-Priority"))
        if len(acts.bodies) <= acts.good:
            acts = Behaviour()
        time.sleep(acts.wait_s)
        if acts.status != 200 or acts.kind == "application/json":
            self._whole(acts.status, {"error": {"message": "it is broken"}} if acts.status != 200 else {"choices": []})
            return
        self.send_response(200)
        self.send_header("Content-Type", acts.kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        time.sleep(acts.thinks_s)
        for _ in range(acts.tokens):
            self._event({"choices": [{"index": 0, "delta": {"content": "a"}}]})
            if acts.hangs:
                acts.ended.wait()
            if acts.hangs or acts.breaks_off:
                self.close_connection = True
                return
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if acts.counts:
            self._event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": acts.tokens}})
        self._part(b"data: [DONE]\n\n")
        self._part(b"")

    def _whole(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _event(self, data: Any) -> None:
        self._part(b"data: " + json.dumps(data).encode() + b"\n\n")

    def _part(self, part: bytes) -> None:
        self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass  # clients that hang up


@contextmanager
def sse_server(behaviour: Behaviour) -> Iterator[str]:
    """A server of this behaviour; gives its URL, with /v1."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"behaviour": behaviour}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        behaviour.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
