"""Health over HTTP: /livez, /readyz and /metrics, on a thread that answers also while the event loop is busy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
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
    """State of the process: it is alive, it takes work, and the reason if not."""

    live: bool
    ready: bool
    reason: str


def ask_loop(loop: asyncio.AbstractEventLoop, question: Coroutine[Any, Any, str], within_s: float) -> Health:
    """State of a process by its event loop, for another thread. The answer says why no work is taken; empty if it is.

    The process counts as hanging if there is no answer in time.
    """
    asked = asyncio.run_coroutine_threadsafe(question, loop)
    try:
        reason = asked.result(within_s)
    except TimeoutError:
        asked.cancel()
        return Health(live=False, ready=False, reason="the event loop does not answer")
    return Health(live=True, ready=not reason, reason=reason)


class _Server(ThreadingMixIn, WSGIServer):
    """Closes the oldest connection when there are too many: probes are short, and idle connections can neither block a
    probe nor fill the process with threads."""

    daemon_threads = True
    request_queue_size = 128  # with a short queue, a probe among many clients would wait for TCP's retry

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._guests: deque[Any] = deque()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._guests.append(request)
        if len(self._guests) > MOST_CONNECTIONS:
            with contextlib.suppress(OSError, IndexError):  # it was closed a moment ago
                self._guests.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            self._guests.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class calls it so
        """Log a client that left or was too slow; the base class would print a traceback."""
        log.debug("health_client_failed", error=repr(sys.exception()))


class _Quiet(WSGIRequestHandler):
    timeout = 10.0  # seconds; ends the thread of a client that sends nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing: probes come every few seconds."""


class HealthServer:
    """Serves /livez, /readyz and /metrics; port 0 picks a free port.

    Args:
        host, port: address to listen on.
        look: called at every probe, on a thread of the server.
        registry: metrics to serve; by default all of this process, the engine's own included.
        setting: the port's environment variable, for the error.
        live: called at /livez in place of `look`, if `look` depends on other services and may be slow.

    Raises:
        SettingsError: the address is in use or not available.
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
        # The argument is the polling interval for a stop, in seconds; stopping takes that long.
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
