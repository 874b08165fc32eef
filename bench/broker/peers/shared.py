"""Common part of all adapters: the command line, the clock, and access to Redis without a client library.

An adapter runs in the virtual environment of its peer, where streamfleet is not installed. So this file uses only the
standard library, and is found because it lies beside the adapters.

    python on_huey.py REDIS_URL enqueue 10000          put jobs in, in bulk
    python on_huey.py REDIS_URL drain 2000             put jobs in, then start one worker and time it
    python on_huey.py REDIS_URL roundtrip 300 --tuned  one job at a time, there and back

Each prints one line of JSON, or ends with an error: a figure is printed only after all jobs were found in Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

Part: TypeAlias = str | bytes | int
Mode: TypeAlias = Literal["drain", "defaults", "tuned"]

PAYLOAD = "x" * 500
RESULT = "y" * 500
LOOK_EVERY_S = 0.005
WARM_UP_JOBS = 500
WARM_UP_CALLS = 50
WARM_UP_S = 1.0
DRAIN_TIMEOUT_S = 120.0
CALLS_TIMEOUT_S = 60.0
STOP_S = 5.0


class Wire:
    """A connection to Redis that implements RESP2, to look at a queue."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def ask(self, *parts: Part) -> Any:
        """Send one command and return its reply; RuntimeError if Redis refuses it."""
        self.socket.sendall(encode(*parts))
        return self.read()

    def read(self) -> Any:
        """Return the next reply: bytes, int, None or a list."""
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RuntimeError(f"Redis says: {rest.decode()}")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        raise ConnectionError("Redis closed the connection")

    def keys(self, pattern: str) -> set[bytes]:
        """The keys that match a glob pattern."""
        cursor: Part = 0
        found: set[bytes] = set()
        while True:
            cursor, some = self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 10_000)
            found.update(some)
            if cursor == b"0":
                return found

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def encode(*parts: Part) -> bytes:
    """A command in the wire format of Redis."""
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        chunks.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(chunks)


class Peer:
    """One queue under measurement; an adapter fills in the methods.

    Args:
        url: its Redis, empty at the start.

    Attributes:
        uvloop: true if its event loop is uvloop's.
        jobs: number of jobs to drain.
    """

    uvloop = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.jobs = 0

    async def open(self) -> None:
        """Connect the producer."""

    async def close(self) -> None:
        """Disconnect the producer."""

    async def enqueue(self, count: int) -> None:
        """Enqueue jobs with PAYLOAD, as many at once as the peer can; return when Redis has acknowledged all."""
        raise NotImplementedError

    async def call(self, *, tuned: bool) -> Any:
        """Enqueue one job, wait for its result, and return that."""
        raise NotImplementedError

    def queued(self, wire: Wire) -> int:
        """Number of jobs that wait."""
        raise NotImplementedError

    def finished(self, wire: Wire) -> int:
        """Number of finished jobs, by one cheap command."""
        raise NotImplementedError

    def stored(self, wire: Wire) -> int:
        """Number of stored results; asked once, after the end."""
        raise NotImplementedError

    def picked(self, wire: Wire) -> bool:  # noqa: ARG002 - most cannot tell
        """True if the worker has taken a job; adapters define it if that shows before a job is finished."""
        return False

    def work(self, mode: Mode) -> None:
        """Run the only worker, until SIGTERM."""
        raise NotImplementedError

    @contextlib.contextmanager
    def worker(self, mode: Mode) -> Iterator[Callable[[], bool]]:
        """Start the worker in a process of its own; gives a function that tells if it still runs."""
        command = [sys.executable, os.path.abspath(sys.argv[0]), self.url, "work", mode]  # noqa: PTH100
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            yield lambda: process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Watcher:
    """Counts the finished jobs every 5 ms, in a thread, until all are finished.

    The clock starts with the worker's first pick. If only finished jobs can be counted, it starts with the first look
    that sees some, and those are not counted.
    """

    def __init__(self, peer: Peer, jobs: int) -> None:
        self._peer, self._jobs = peer, jobs
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping = threading.Event()
        self.first: tuple[float, int] | None = None
        self.last: tuple[float, int] = (0.0, 0)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait(self, running: Callable[[], bool]) -> tuple[int, float]:
        """Jobs and the seconds they took; RuntimeError if they do not finish, or the worker ends."""
        give_up = time.monotonic() + DRAIN_TIMEOUT_S
        while self._thread.is_alive() and running() and time.monotonic() < give_up:
            self._thread.join(0.5)
        if not running():
            raise RuntimeError("the worker has ended")
        if self.last[1] != self._jobs or self.first is None:
            raise RuntimeError(f"{self.last[1]} of {self._jobs} jobs finished within {DRAIN_TIMEOUT_S:g} s")
        if self.first[1] > self._jobs // 2:
            raise RuntimeError(f"{self._jobs} jobs are too few: {self.first[1]} were finished at the first look")
        return self._jobs - self.first[1], self.last[0] - self.first[0]

    def _run(self) -> None:
        wire = Wire(self._peer.url)
        while not self._stopping.is_set() and self.last[1] < self._jobs:
            finished = self._peer.finished(wire)
            self.last = (time.perf_counter(), finished)
            if self.first is None and (finished or self._peer.picked(wire)):
                self.first = self.last
            time.sleep(LOOK_EVERY_S)
        wire.close()


async def measure_enqueue(peer: Peer, jobs: int) -> dict[str, Any]:
    """Seconds for so many jobs, after some to warm up; `total` are in Redis afterwards."""
    await peer.open()
    warm_up = min(jobs, WARM_UP_JOBS)
    await peer.enqueue(warm_up)
    started = time.perf_counter()
    await peer.enqueue(jobs)
    seconds = time.perf_counter() - started
    await peer.close()
    wire = Wire(peer.url)
    if (queued := peer.queued(wire)) != warm_up + jobs:
        raise RuntimeError(f"{queued} jobs are queued, not {warm_up + jobs}")
    return {"jobs": jobs, "seconds": seconds, "total": queued}


async def measure_drain(peer: Peer, jobs: int) -> dict[str, Any]:
    """Seconds from the first pick to the last result."""
    await peer.open()
    await peer.enqueue(jobs)
    await peer.close()
    peer.jobs = jobs
    with Watcher(peer, jobs) as watcher, peer.worker("drain") as running:
        counted, seconds = watcher.wait(running)
        stored = peer.stored(Wire(peer.url))
    if stored != jobs:
        raise RuntimeError(f"{stored} results are stored, not {jobs}")
    return {"jobs": counted, "seconds": seconds, "stored": stored}


async def measure_roundtrip(peer: Peer, calls: int, most_s: float, *, tuned: bool) -> dict[str, Any]:
    """Milliseconds of each call, one after the other, at least five, after some to warm up."""
    await peer.open()
    with peer.worker("tuned" if tuned else "defaults"):
        async with asyncio.timeout(CALLS_TIMEOUT_S + most_s):
            await _checked(peer, tuned=tuned)  # waits for the worker, which may take long to start
            await _calls(peer, 1, WARM_UP_CALLS, WARM_UP_S, tuned=tuned)
            milliseconds = await _calls(peer, 5, calls, most_s, tuned=tuned)
        await peer.close()
    return {"ms": milliseconds}


async def _calls(peer: Peer, least: int, most: int, most_s: float, *, tuned: bool) -> list[float]:
    milliseconds: list[float] = []
    until = time.perf_counter() + most_s
    while len(milliseconds) < least or (len(milliseconds) < most and time.perf_counter() < until):
        started = time.perf_counter()
        await _checked(peer, tuned=tuned)
        milliseconds.append((time.perf_counter() - started) * 1000)
    return milliseconds


async def _checked(peer: Peer, *, tuned: bool) -> None:
    result = await peer.call(tuned=tuned)
    if len(result) != len(RESULT):
        raise RuntimeError(f"the result is {str(result)[:80]!r}, not what the job returns")


async def each(count: int, at_once: int, one: Any) -> None:
    """Await `one()` `count` times, `at_once` of them concurrently."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(some() for _ in range(at_once)))


def main(make: type[Peer]) -> None:
    """Run the command line of an adapter."""
    parser = argparse.ArgumentParser(description="Measure one queue; prints one line of JSON.")
    parser.add_argument("url", help="an empty Redis, redis://host:port/0")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("enqueue", "drain", "roundtrip"):
        command = commands.add_parser(name)
        command.add_argument("count", type=int)
        if name == "roundtrip":
            command.add_argument("--seconds", type=float, default=5.0, help="stop after so long")
            command.add_argument("--tuned", action="store_true", help="settings that shorten the way")
    commands.add_parser("work").add_argument("mode", choices=["drain", "defaults", "tuned"])
    given = parser.parse_args()
    peer = make(given.url)
    if make.uvloop:
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if given.command == "work":
        peer.work(given.mode)
        return
    if given.command == "enqueue":
        measure = measure_enqueue(peer, given.count)
    elif given.command == "drain":
        measure = measure_drain(peer, given.count)
    else:
        measure = measure_roundtrip(peer, given.count, given.seconds, tuned=given.tuned)
    print(json.dumps(asyncio.run(measure)), flush=True)
