"""Health over HTTP: /livez, /readyz and /metrics, on a thread that a busy event loop cannot silence."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import REGISTRY, make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from streamfleet.common.errors import SettingsError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


log = structlog.get_logger(__name__)
MOST_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the process should live on, whether it takes work, and why not."""

    live: bool
    ready: bool
    reason: str


class _Server(ThreadingMixIn, WSGIServer):
    """Serves whoever came last at the cost of whoever has been there longest: a probe is done in no time, and those who
    connect to say nothing can neither keep it out nor fill the process with their threads."""

    daemon_threads = True
    request_queue_size = 128  # with a short one, a crowd makes a probe wait for its connection to be tried again

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._guests: deque[Any] = deque()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._guests.append(request)
        if len(self._guests) > MOST_CONNECTIONS:
            with contextlib.suppress(OSError, IndexError):  # it left by itself a moment ago
                self._guests.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            self._guests.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class calls it so
        """A client that left or was too slow; the base class would print a traceback into the log."""
        log.debug("health_client_failed", error=repr(sys.exception()))


class _Quiet(WSGIRequestHandler):
    timeout = 10.0  # seconds: a client that says nothing must not hold its thread for ever

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Probes come every few seconds; they are nobody's log line."""


class HealthServer:
    """Serves health; port 0 picks a free one.

    Args:
        host, port: where to listen.
        look: asked at every probe, on a thread of the server's.
        registry: whose metrics /metrics has; by default all that this process counts, an engine's own too.
        setting: the port's variable, for the error.
        live: asked in place of `look` at /livez, where `look` asks others and may take long.

    Raises:
        SettingsError: the address is taken or not to be had.
    """

    def __init__(
        self,
        host: str,
        port: int,
        look: Callable[[], Health],
        registry: CollectorRegistry = REGISTRY,
        setting: str = "STREAMFLEET_HEALTH_PORT",
        live: Callable[[], Health] | None = None,
    ) -> None:
        self._look, self._live = look, live or look
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = make_server(host, port, self._answer, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            raise SettingsError(
                f"{setting}: cannot listen on {host}:{port}: {error.strerror}; set another port, or 0 for any"
            ) from None
        self.port = int(self._server.server_port)
        # The argument is how often it looks whether to stop, in seconds: stopping takes so long.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        health = self._live() if path == "/livez" else self._look()
        good = {"/livez": health.live, "/readyz": health.live and health.ready}.get(path)
        status = "404 Not Found" if good is None else "200 OK" if good else "503 Service Unavailable"
        text = "try /livez, /readyz or /metrics" if good is None else "ok" if good else health.reason
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [f"{text}\n".encode()]
