"""Several processes behind one port of the gateway, for a host with many cores.

The parent opens the port and serves no caller. Its children inherit the listening socket: if one dies, the others take
what waits there (with a socket each, by SO_REUSEPORT, it would be reset). The parent starts a child that has ended
again, and serves probes and metrics for all: it asks the health port of each child. SIGTERM goes to all children, and
each drains as a gateway of one process does. If the parent dies, the kernel ends the children.

What a command line says, the parent tells a child through its stdin. Limits hold for all children together by
`shared_counts`; those in Redis do so anyway; batches and webhooks at once are divided by `SharedCounts.part`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import http
import http.client
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pydantic import SecretStr

from streamfleet.common.health import Health, HealthServer
from streamfleet.common.settings import LogSettings, QueueSettings, load, load_for_gateway
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.common.settings_queue import Group
from streamfleet.gateway.gateway import Gateway
from streamfleet.gateway.shared_counts import Count, SharedCounts, size_bytes

log = structlog.get_logger(__name__)
STOPS = signal.SIGUSR1
"""Begins the drain of a child. It is not SIGTERM, which a service manager may send to the children too: they would take
the parent's for the second one."""
RESTART_S = 5.0
"""Shortest time between two starts of a child, so that one that dies at once does not take a core."""
HANGS_S = 10.0
"""Time that a child has to end after its drain."""
PROBE_S = 4.0
"""A child that does not answer a probe for so long has failed it."""
_PR_SET_PDEATHSIG = 1
_CHILD = "from streamfleet.gateway.server import run_child; run_child()"
LOCAL, OK, TIMED_OUT = "127.0.0.1", http.HTTPStatus.OK, http.HTTPStatus.GATEWAY_TIMEOUT


class Start(NamedTuple):
    """What a child gets from its parent, as a line of JSON.

    Attributes:
        given: settings that its environment does not say.
    """

    given: dict[str, Any]
    socket_fd: int
    memory_fd: int
    place: int
    health_port: int
    parent: int


class Page(NamedTuple):
    """A page of a child's health port."""

    place: int
    status: int
    text: str


class Child(NamedTuple):
    """What a child works with."""

    queue: QueueSettings
    settings: GatewaySettings
    log_settings: LogSettings
    opened: socket.socket
    shared: SharedCounts
    health_port: int


def part_of(settings: GatewaySettings, shared: SharedCounts) -> GatewaySettings:
    """The settings of one process: its part of batches at once, and a health port for the parent alone."""
    return settings.model_copy(
        update={
            "gateway_host": LOCAL,
            "gateway_health_port": 0,
            "gateway_batches_at_once": shared.part(settings.gateway_batches_at_once),
        }
    )


def given(*groups: Group) -> dict[str, Any]:
    """Returns the settings, for JSON, that the environment does not say. A child has that, and the files of secrets,
    which it reads again when they change.
    """
    found: dict[str, Any] = {}
    for group in groups:
        said = load(type(group))
        changed = {name: value for name, value in group if value != getattr(said, name)}
        found |= {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in changed.items()
        }
    return found


def receive_child() -> Child:
    """Returns what the parent says over stdin, and ties this process to it."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)  # the parent has it too, and says when to stop
    start = Start(*json.load(sys.stdin.buffer))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != start.parent:  # it died before that
        sys.exit(1)
    queue, settings, logs = load_for_gateway(**start.given)
    shared = SharedCounts(mmap.mmap(start.memory_fd, 0), settings.gateway_processes, start.place)
    settings = part_of(settings, shared)
    return Child(queue, settings, logs, socket.socket(fileno=start.socket_fd), shared, start.health_port)


class Parent:
    """The parent of all processes of a gateway.

    Args:
        queue, settings, log_settings: of the gateway.
        opened: the port's socket.
    """

    def __init__(
        self, queue: QueueSettings, settings: GatewaySettings, log_settings: LogSettings, opened: socket.socket
    ) -> None:
        self._queue, self._settings, self._opened = queue, settings, opened
        processes = settings.gateway_processes
        self._memory_fd = os.memfd_create("streamfleet-gateway")
        os.ftruncate(self._memory_fd, size_bytes(processes))
        self._shared = SharedCounts(mmap.mmap(self._memory_fd, 0), processes)
        self._given = given(queue, settings, log_settings)  # now: a secret's file may change
        self._children: set[asyncio.subprocess.Process] = set()
        self._served, self._status = False, 0
        self._stopping = asyncio.Event()
        registry = CollectorRegistry()
        registry.register(_Joined(self))
        self._health = HealthServer(
            settings.gateway_host,
            settings.gateway_health_port,
            self._ready,
            registry,
            "STREAMFLEET_GATEWAY_HEALTH_PORT",
            live=self._live,
        )

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT, as a single process does. Returns the exit status.

        Raises:
            SettingsError: a setting that only the parts of a gateway check is wrong.
        """
        await Gateway(self._queue, self._settings).close()  # raises what each child would raise
        self._opened.setblocking(False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, self._stop)
        self._health.start()
        try:
            await asyncio.gather(*map(self._keep, range(self._shared.processes)))
        finally:
            await asyncio.to_thread(self._health.stop)
        return self._status

    async def _keep(self, place: int) -> None:
        """Run the child of this place, again and again until the end."""
        now_s = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            began_s = now_s()
            try:
                status = await self._run(place)
            except OSError as error:  # no more files or processes may be opened: the others serve on
                log.error("gateway_process_not_started", process=place + 1, error=str(error))  # noqa: TRY400 - it says all
                status = 1
            self._served = self._served or any(self._shared.of_each(Count.HEALTH_PORT))
            self._shared.clear(place)
            if self._stopping.is_set():
                if status not in (0, -STOPS):
                    log.warning("gateway_process_ended", process=place + 1, status=status)
                return
            log.error("gateway_process_ended", process=place + 1, status=status)
            if not self._served:  # no child has come up yet: what ended this one ends each
                self._status = status if status > 0 else 128 - status
                self._stop()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(began_s + RESTART_S):
                    await self._stopping.wait()

    async def _run(self, place: int) -> int:
        """Start a child, and wait for its end. Returns its exit status, negative for a signal."""
        files = self._opened.fileno(), self._memory_fd
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _CHILD),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=files,
            process_group=0,  # Ctrl-C is the parent's
        )
        start = Start(self._given, *files, place, self._health.port, os.getpid())
        self._children.add(child)
        if self._stopping.is_set():  # since a moment ago
            self._tell(child)
        await child.communicate(json.dumps(start).encode())
        self._children.discard(child)
        return child.returncode or 0

    def _stop(self) -> None:
        """Have all children drain; a second signal shortens that. One that hangs is killed in the end."""
        within_s = 0.0 if self._stopping.is_set() else self._settings.gateway_drain_ms / 1000
        self._stopping.set()
        asyncio.get_running_loop().call_later(within_s + HANGS_S, self._kill)
        self._opened.close()
        for child in self._children:
            self._tell(child)

    def _kill(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    def _tell(self, child: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            child.send_signal(STOPS)

    # -- probes and metrics, on threads ------------------------------------------------------------------------

    def _ready(self) -> Health:
        """Ready while one child is: it takes all connections then."""
        reasons: list[str] = []
        for page in self.pages("/readyz"):
            if page.status == OK:
                return Health(live=True, ready=True, reason="")
            # One that does not answer at all says the least.
            reasons.insert(len(reasons) if page.status == TIMED_OUT else 0, page.text.strip())
        return Health(live=True, ready=False, reason=next(iter(reasons), "no process serves"))

    def _live(self) -> Health:
        """Live while no child hangs: one that has ended is started again."""
        reasons = [page.text.strip() for page in self.pages("/livez") if page.status != OK]
        return Health(live=not reasons, ready=False, reason=", ".join(reasons))

    def pages(self, path: str) -> Iterator[Page]:
        """Yields this page of each child that serves, as they come."""
        ports = [(place, port) for place, port in enumerate(self._shared.of_each(Count.HEALTH_PORT)) if port]
        pool = ThreadPoolExecutor(max(1, len(ports)))
        try:
            for asked in as_completed([pool.submit(_ask, *each, path) for each in ports]):
                page = asked.result()
                if page is not None:
                    yield page
        finally:
            pool.shutdown(wait=False)


def _ask(place: int, port: int, path: str) -> Page | None:
    """Returns a page of a child; None if the child has ended just now."""
    connection = http.client.HTTPConnection(LOCAL, port, timeout=PROBE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Page(place, answer.status, answer.read().decode())
    except ConnectionError:
        return None
    except (OSError, http.client.HTTPException):
        return Page(place, TIMED_OUT, f"process {place + 1} does not answer")
    finally:
        connection.close()


class _Joined(Collector):
    """The metrics of all children, each with the label `process`: where a child was started again, its counters begin
    at 0, which is an ordinary reset.

    prometheus_client's own mode for several processes keeps each value in a file: each count costs more, metrics of the
    process and of the build are missing, and files of those that have ended stay.

    Args:
        parent: asks the children.
    """

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    def collect(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for page in sorted(page for page in self._parent.pages("/metrics") if page.status == OK):
            for family in text_string_to_metric_families(page.text):
                joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "process": str(page.place + 1)}
                    joined.samples.append(sample._replace(labels=labels))
        return [*families.values()]
