"""A fleet of real workers under a stream of raw entries and garbage, and what must hold when it is over."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Status
from streamfleet.operator.broker.audit import Audit
from tests.broker import Broker
from tests.fuzz import garbage
from tests.fuzz.entries import GOOD_REPLY, LANES, Entries, Entry
from tests.integration.worker_process import WorkerProcess
from tests.waiting import eventually_blocking

KEYS = Keys("default")
CHUNK = 100
MOST_OUTSTANDING = 2_000
GARBAGE_PER_CHUNK = 5
CANCELS_PER_CHUNK = 2
PART = 50_000
"""Entries that are sent before their endings are judged: a reply stream keeps the notifications of all of them."""
WARM = 0.25
"""Share of the entries after which memory is measured for the first time: every kind has been seen by then."""
RSS_GROWTH_MB = 20.0
REDIS_GROWTH_MB = 10.0
DRAIN_S = 120.0
SHOWN = 10
TERMINAL = {status.value.encode() for status in Status}
SETTINGS: dict[str, object] = {
    "log_level": "info",
    "lease_ms": 10_000,
    "speed": 1_000_000,
}


@dataclass
class Findings:
    """Findings of a run.

    Attributes:
        entries: accepted by Redis.
        terminal: of these, how many have one of the five statuses.
        statuses: how many ended how.
        workers, alive: processes that were started, and those that are there still.
        rss_before_mb, rss_after_mb: of the largest worker, when warm (again, if it grew much once) and at the end.
        redis_before_mb, redis_after_mb: the same of Redis, less what expires or is capped.
        audit: the books, on one line.
        problems: what does not hold; empty when all is well.
    """

    entries: int = 0
    terminal: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    workers: int = 0
    alive: int = 0
    rss_before_mb: float = 0.0
    rss_after_mb: float = 0.0
    redis_before_mb: float = 0.0
    redis_after_mb: float = 0.0
    audit: str = ""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The figures."""
        return (
            f"entries={self.entries} terminal={self.terminal} workers_alive={self.alive}/{self.workers} "
            f"rss_mb_before={self.rss_before_mb:.1f} rss_mb_after={self.rss_after_mb:.1f} "
            f"redis_mb_before={self.redis_before_mb:.1f} redis_mb_after={self.redis_after_mb:.1f} "
            f"problems={len(self.problems)}"
        )


class FuzzedFleet:
    """Workers, and the stream of entries that they have to survive.

    Args:
        url: an empty Redis of its own.
        folder: where the workers' logs go.
        seed: of everything that is sent.
        workers: how many processes.
        settings: of the workers, in place of SETTINGS.
    """

    def __init__(self, url: str, folder: Path, seed: int, workers: int, **settings: object) -> None:
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=60)
        self._url = url
        self._chance = random.Random(seed)
        self._supply = Entries(self._chance, str(seed), lambda: time.time_ns() // 1_000_000)
        given = {**SETTINGS, **settings}
        self._workers = [
            WorkerProcess(url, folder, f"w{number}", (), None, **given) for number in range(1, workers + 1)
        ]
        self._unjudged: list[tuple[bytes, bool]] = []
        self._stuck = False
        self.findings = Findings(workers=workers)

    def __enter__(self) -> FuzzedFleet:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.destroy()
        self._redis.close()

    def run(self, entries: int, progress: Callable[[int], None] = lambda _: None) -> Findings:
        """Send so many entries, wait for their endings, look at everything. `progress` hears how many were accepted."""
        found = self.findings
        for worker in self._workers:
            worker.ready_blocking()
        self._send_and_judge(int(entries * WARM), progress)
        found.rss_before_mb, found.redis_before_mb = self._rss_mb(), self._redis_mb()
        self._send_and_judge(entries, progress)
        if self._rss_mb() > found.rss_before_mb + RSS_GROWTH_MB:
            # Memory that the allocator keeps grows once; a leak grows by as much with the next entries.
            found.rss_before_mb = self._rss_mb()
            self._send_and_judge(found.entries + entries, progress)
        self._judge_books()
        self._send_last()
        self._judge_entries()
        self._judge_workers()
        return found

    # -- in ------------------------------------------------------------------------------------------------

    def _send_and_judge(self, until: int, progress: Callable[[int], None]) -> None:
        while self.findings.entries < until and not self._stuck:
            self._send(min(until, self.findings.entries + PART), progress)
            self._judge_entries()

    def _send(self, until: int, progress: Callable[[int], None]) -> None:
        while self.findings.entries < until and not self._stuck:
            self._send_chunk(min(CHUNK, until - self.findings.entries))
            progress(self.findings.entries)

    def _send_chunk(self, count: int) -> None:
        if self._outstanding() > MOST_OUTSTANDING:
            self._wait(lambda: self._outstanding() < MOST_OUTSTANDING // 2, "there is room for more")
        sent = [self._supply.next() for _ in range(count)]
        pipe = self._redis.pipeline(transaction=False)
        for entry in sent:
            pipe.execute_command("XADD", KEYS.lane(entry.lane), entry.stream_id, *entry.fields)
        for entry, reply in zip(sent, pipe.execute(raise_on_error=False), strict=True):
            self._remember(entry, reply)
        hostile = [name for name, good in self._unjudged[-200:] if not good]
        for _ in range(GARBAGE_PER_CHUNK):
            pipe.execute_command(*garbage.command(self._chance, hostile))
        for name in self._chance.sample(hostile, min(CANCELS_PER_CHUNK, len(hostile))):
            _cancel_by_hand(pipe, name)
        pipe.execute(raise_on_error=False)

    def _send_last(self) -> None:
        """One with the largest stream id that there is: after it, its lane takes no more."""
        last = Entry("low", (b"body", b'{"prompt":"x","max_tokens":1}'), b"18446744073709551615-18446744073709551615")
        reply = self._redis.execute_command("XADD", KEYS.lane(last.lane), last.stream_id, *last.fields)
        self._remember(last, reply)

    def _remember(self, entry: Entry, reply: object) -> None:
        if isinstance(reply, bytes):
            self._unjudged.append((entry.effective_id(reply), entry.good))
            self.findings.entries += 1
        elif entry.stream_id == b"*":
            self.findings.problems.append(f"Redis refused an entry: {reply}")

    def _outstanding(self) -> int:
        return sum(self._redis.xlen(KEYS.lane(lane)) for lane in LANES)

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        try:
            eventually_blocking(lambda: until() or self._all_dead(), DRAIN_S, what)
        except AssertionError as error:
            self.findings.problems.append(str(error))
        self._stuck = not until()

    def _all_dead(self) -> bool:
        return not any(worker.alive for worker in self._workers)

    # -- out -----------------------------------------------------------------------------------------------

    def _judge_entries(self) -> None:
        """Wait for what was sent to end, and see how it did; then forget what expires or is capped, with results."""
        self._wait(lambda: self._outstanding() == 0, "nothing is outstanding")
        found, problems = self.findings, self.findings.problems
        ends = list(self._statuses())
        found.statuses.update("none" if status is None else status.decode(errors="replace") for _, _, status in ends)
        found.terminal += sum(status in TERMINAL for _, _, status in ends)
        problems += [f"{name!r} ended as {status!r}" for name, _, status in ends if status not in TERMINAL][:SHOWN]
        good = [(name, status) for name, wanted, status in ends if wanted]
        harmed = [f"{name!r}, a good one, ended as {status!r}" for name, status in good if status != b"succeeded"]
        problems += harmed[:SHOWN] + self._misinformed([name for name, _ in good])
        self._unjudged.clear()
        for kind in ("result", "request", "reply", "tokens"):
            for keys in _batches(self._redis.scan_iter(f"{KEYS.base}{kind}:*", count=1_000)):
                self._redis.unlink(*keys)
        self._redis.unlink(KEYS.dead, KEYS.cancels, KEYS.cancel_requests)

    def _statuses(self) -> Iterator[tuple[bytes, bool, bytes | None]]:
        for part in _batches(self._unjudged):
            pipe = self._redis.pipeline(transaction=False)
            for name, _ in part:
                pipe.hget(_result(name), "status")
            for (name, good), status in zip(part, pipe.execute(raise_on_error=False), strict=True):
                yield name, good, status

    def _misinformed(self, good: Sequence[bytes]) -> list[str]:
        told = Counter(fields.get(b"id") for _, fields in self._redis.xrange(KEYS.reply(GOOD_REPLY)))
        return [f"{name!r} was told {told[name]} times" for name in good if told[name] != 1][:SHOWN]

    def _judge_books(self) -> None:
        audit = asyncio.run(_audit(self._url))
        self.findings.audit = audit.line()
        self.findings.problems += audit.problems()
        if audit.tries or audit.delayed:
            self.findings.problems.append(f"{audit.tries} tries and {audit.delayed} delayed are left")

    def _judge_workers(self) -> None:
        found = self.findings
        found.alive = sum(worker.alive for worker in self._workers)
        if found.alive < found.workers:
            found.problems.append(f"{found.workers - found.alive} workers died")
        found.problems += [
            f"{worker.name} logged {line}" for worker in self._workers for line in complaints(worker)[:5]
        ]
        found.rss_after_mb, found.redis_after_mb = self._rss_mb(), self._redis_mb()
        if found.rss_after_mb > found.rss_before_mb + RSS_GROWTH_MB:
            found.problems.append(f"a worker grew by more than {RSS_GROWTH_MB:.0f} MB")
        if found.redis_after_mb > found.redis_before_mb + REDIS_GROWTH_MB:
            found.problems.append(f"Redis grew by more than {REDIS_GROWTH_MB:.0f} MB beside what expires")

    def _rss_mb(self) -> float:
        pages = [Path(f"/proc/{each.pid}/statm").read_text().split()[1] for each in self._workers if each.alive]
        return max(map(int, pages), default=0) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def _redis_mb(self) -> float:
        return float(self._redis.info("memory")["used_memory"]) / (1 << 20)


def complaints(worker: WorkerProcess) -> list[str]:
    """Returns the worker's errors in its log, and its output outside the log."""
    lines = worker.printed().splitlines()
    return [line[:2_000] for line in lines if not line.startswith("{") or _severe(line)]


def _severe(line: str) -> bool:
    return json.loads(line).get("level") in {"error", "critical"}


def _batches(items: Any, size: int = 1_000) -> Iterator[list[Any]]:
    part: list[Any] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def _result(name: bytes) -> bytes:
    return KEYS.base.encode() + b"result:" + name


async def _audit(url: str) -> Audit:
    broker = Broker(Connection(url), KEYS)
    try:
        return await broker.audit()
    finally:
        await broker.close()


def _cancel_by_hand(pipe: Any, name: bytes) -> None:
    """As docs/protocol.md tells producers that have no script."""
    pipe.hsetnx(_result(name), "status", "cancelled")
    pipe.pexpire(_result(name), 86_400_000)
    pipe.xadd(KEYS.cancels, {"id": name}, maxlen=10_000)
