"""The gateway as a process: opens the port, serves until SIGTERM, lets the answers in progress finish, and ends.

`run_gateway` takes all settings. It configures logs and the garbage collector of the whole process. With several
processes it hands over to `processes`, which starts each of them with `run_child`; they accept from one socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

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
from streamfleet.gateway.health import KEYS_OFF, open_health_port
from streamfleet.gateway.processes import STOPS, Parent, receive_child
from streamfleet.gateway.shared_counts import Count, SharedCounts
from streamfleet.gateway.webhooks.deliverer import PER_HOST

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


REFUSED_S = 1.0  # as asyncio waits where no more files may be open
SLACK, PAUSE_S = 4, 0.005
"""Connections that a process may have beyond its part, and how long it leaves the next one to others then."""


class Acceptor:
    """Accepts connections from a socket that other processes listen on too, so that each has about as many.

    libuv accepts all that wait in one go, and the kernel prefers some of the processes: of 500 connections at once, one
    of two processes took 425; of those that came one by one, one of four processes took none.

    Args:
        opened: the socket.
        make_protocol: makes the protocol of a connection.
        shared: the connections of all processes.
    """

    def __init__(
        self, opened: socket.socket, make_protocol: Callable[[], asyncio.Protocol], shared: SharedCounts
    ) -> None:
        self._opened, self._make_protocol, self._shared = opened, make_protocol, shared
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._waited = self._refused = False
        self._beginning: set[asyncio.Task[Any]] = set()
        self._loop.add_reader(opened, self._accept)

    def close(self) -> None:
        """Accept no more. uvicorn calls this at its end."""
        self._loop.remove_reader(self._opened)
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        """uvicorn calls this after `close`, when all connections have ended."""

    def _accept(self) -> None:
        if not self._waited and self._is_ahead():
            self._wait(PAUSE_S)
            return
        self._waited = False
        try:
            connection, _ = self._opened.accept()
        except BlockingIOError:  # another process was faster
            return
        except ConnectionAbortedError:  # its caller has left
            return
        except OSError as error:  # no more files may be open
            if not self._refused:
                log.warning("connections_not_accepted", error=str(error))
            self._refused = True
            self._wait(REFUSED_S)
            return
        self._refused = False
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make_protocol, connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _is_ahead(self) -> bool:
        """True if this process has clearly more connections than the mean of those that serve."""
        ports, connections = map(self._shared.of_each, (Count.HEALTH_PORT, Count.CONNECTIONS))
        serving = [count for count, port in zip(connections, ports, strict=True) if port]
        return connections[self._shared.place] > SLACK + sum(serving) / max(1, len(serving))

    def _wait(self, pause_s: float) -> None:
        self._loop.remove_reader(self._opened)
        self._pause = self._loop.call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._waited = True
        self._loop.add_reader(self._opened, self._accept)


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling; `_stop` decides when it ends."""

    def __init__(self, config: uvicorn.Config, shared: SharedCounts) -> None:
        super().__init__(config)
        self._shared = shared

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; with several processes, by an `Acceptor`."""
        if self._shared.processes == 1:
            await super().startup(sockets)
            return
        await super().startup([])
        protocol: Any = self.config.http_protocol_class
        make = partial(protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        acceptors: list[Any] = [Acceptor(each, make, self._shared) for each in sockets or ()]
        self.servers = acceptors

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: uvicorn's version would end the process by the same signal once more."""
        yield


def run_gateway(queue: QueueSettings, settings: GatewaySettings, log_settings: LogSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish the answers in progress; a second signal shortens that.

    Raises:
        SettingsError: the Redis URL cannot be parsed, the port is taken, or several processes are not to be had here.
    """
    if settings.gateway_processes > 1 and not hasattr(os, "memfd_create"):
        raise SettingsError("STREAMFLEET_GATEWAY_PROCESSES: several processes need Linux; leave it at 1 here")
    logs.configure(log_settings)
    for name, nearest in unknown_variables().items():
        log.warning("no_such_setting", variable=name, perhaps=nearest or None)
    with listen(settings.gateway_host, settings.gateway_port) as opened:
        if settings.gateway_processes > 1:
            status = asyncio.run(Parent(queue, settings, log_settings, opened).run())
            if status:
                sys.exit(status)
        else:
            _run(queue, settings, opened, SharedCounts())
    log.info("gateway_stopped")


def run_child() -> None:
    """Be one of several processes: `processes.Parent` says which."""
    child = receive_child()
    logs.configure(child.log_settings, process=child.shared.place + 1)
    with child.opened:
        _run(child.queue, child.settings, child.opened, child.shared, child.health_port, (STOPS,))


def _run(queue: QueueSettings, settings: GatewaySettings, opened: socket.socket, *more: Any) -> None:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the edge tells of each request, with its id
    common_metrics.describe_build()
    metrics.begin()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(queue, settings, opened, *more))


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


async def _serve(
    queue: QueueSettings,
    settings: GatewaySettings,
    opened: socket.socket,
    shared: SharedCounts,
    health_port: int = 0,
    stops: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> None:
    gateway = Gateway(queue, settings, shared)
    health = open_health_port(gateway)
    server = Server(_config(gateway, settings, shared), shared)
    loop = asyncio.get_running_loop()
    for signum in stops:
        loop.add_signal_handler(signum, _stop, gateway, server)
    if not gateway.keys_on:
        log.warning("gateway_is_open", why=KEYS_OFF)
    log.info(
        "gateway_ready",
        port=opened.getsockname()[1],
        health_port=health_port or health.port,
        queues=gateway.models.queues,
        models=[route.model for route in settings.routes] or "as the workers say",
        keys=settings.gateway_keys,
    )
    collect_rarely()
    gateway.authenticator.start()
    gateway.budget.start()
    gateway.batching.start()
    gateway.responses.start()
    if shared.part(PER_HOST):  # else other processes have all of it
        gateway.webhooks.start()
    health.start()
    shared.add(Count.HEALTH_PORT, health.port)
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


def _config(gateway: Gateway, settings: GatewaySettings, shared: SharedCounts) -> uvicorn.Config:
    limits = Limits(MOST_HEADERS, MOST_HEADER_BYTES, HEAD_TIMEOUT_S, WRITE_TIMEOUT_S, settings.gateway_max_connections)
    return uvicorn.Config(
        Edge(build(gateway), WRITE_TIMEOUT_S, gateway.answers),
        http=within(limits, shared),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.gateway_keep_alive_s,
        timeout_graceful_shutdown=settings.gateway_drain_ms // 1000 + LAST_S + 1,
    )
