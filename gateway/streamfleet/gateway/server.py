"""The gateway as a process: opens the port, serves until SIGTERM, lets the answers in progress finish, and ends.

`run_gateway` takes all settings. It configures logs and the garbage collector of the whole process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator, Iterator

import structlog
import uvicorn
import uvloop

from streamfleet.common import logs
from streamfleet.common import metrics as common_metrics
from streamfleet.common.errors import SettingsError
from streamfleet.common.garbage import collect_rarely
from streamfleet.common.settings import LogSettings, QueueSettings, unknown_variables
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway import metrics
from streamfleet.gateway.app import build
from streamfleet.gateway.connection import Limits, within
from streamfleet.gateway.edge import Edge
from streamfleet.gateway.gateway import Gateway
from streamfleet.gateway.health import KEYS_OFF, HealthPort

log = structlog.get_logger(__name__)
BACKLOG = 1_024
MOST_HEADERS, MOST_HEADER_BYTES = 128, 32_768
"""Headers of one request, and bytes of its path and headers: several times what browsers and proxies send."""
HEAD_TIMEOUT_S = 10.0
"""Time for the headers of a request to arrive: an honest caller sends them at once."""
WRITE_TIMEOUT_S = 30.0
"""Time over which the pace of a caller that takes its answer is measured: a phone that changes networks needs less."""
LAST_S = 5
"""Seconds to write the last answers, after all waiting callers were told that this process stops."""


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling; `_stop` decides when it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: uvicorn's version would end the process by the same signal once more."""
        yield


def run_gateway(queue: QueueSettings, settings: GatewaySettings, log_settings: LogSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish the answers in progress; a second signal shortens that.

    Raises:
        SettingsError: the Redis URL cannot be parsed, or the port is taken.
    """
    logs.configure(log_settings)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the edge tells of each request, with its id
    for name, nearest in unknown_variables().items():
        log.warning("no_such_setting", variable=name, perhaps=nearest or None)
    with listen(settings.gateway_host, settings.gateway_port) as opened:
        common_metrics.describe_build()
        metrics.begin()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(queue, settings, opened))
    log.info("gateway_stopped")


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Yields a socket that listens on that address.

    Raises:
        SettingsError: the address is taken or not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        opened = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(
            f"STREAMFLEET_GATEWAY_PORT: cannot listen on {host}:{port}: {reason}; set another port, or 0 for any"
        ) from None
    with opened:
        yield opened


async def _serve(queue: QueueSettings, settings: GatewaySettings, opened: socket.socket) -> None:
    gateway = Gateway(queue, settings)
    health = HealthPort(gateway)
    server = Server(_config(gateway, settings))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, _stop, gateway, server)
    if not gateway.keys_on:
        log.warning("gateway_is_open", why=KEYS_OFF)
    log.info(
        "gateway_ready",
        port=opened.getsockname()[1],
        health_port=health.port,
        queues=gateway.models.queues,
        models=[route.model for route in settings.routes] or "as the workers say",
        keys=settings.gateway_keys,
    )
    collect_rarely()
    gateway.authenticator.start()
    gateway.budget.start()
    gateway.batching.start()
    gateway.webhooks.start()
    health.start()
    try:
        await server.serve([opened])
    finally:
        await gateway.close()
        await asyncio.to_thread(health.stop)


def _stop(gateway: Gateway, server: Server) -> None:
    """Accept no new callers; send waiting ones to another gateway after `gateway_drain_ms`."""
    if gateway.draining:
        gateway.stop()
        return
    gateway.draining = True
    server.should_exit = True
    drain_s = gateway.settings.gateway_drain_ms / 1000
    log.info("gateway_draining", within_s=drain_s)
    asyncio.get_running_loop().call_later(drain_s, gateway.stop)


def _config(gateway: Gateway, settings: GatewaySettings) -> uvicorn.Config:
    limits = Limits(MOST_HEADERS, MOST_HEADER_BYTES, HEAD_TIMEOUT_S, WRITE_TIMEOUT_S, settings.gateway_max_connections)
    return uvicorn.Config(
        Edge(build(gateway), WRITE_TIMEOUT_S, gateway.answers),
        http=within(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.gateway_keep_alive_s,
        timeout_graceful_shutdown=settings.gateway_drain_ms // 1000 + LAST_S + 1,
    )
