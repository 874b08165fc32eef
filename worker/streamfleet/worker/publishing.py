"""The publishing loop: writes chunks of running answers to Redis in small groups, for clients that stream.

Streaming comes second: nothing here ever delays a request. Chunks that Redis refuses are dropped, and readers are told
that chunks are missing; the result has them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

import structlog

from streamfleet.common import metrics
from streamfleet.common.broker.types import TokenGroup
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.worker.engine.base import Text
from streamfleet.worker.in_flight import InFlightRequest

log = structlog.get_logger(__name__)
GROUP_BYTES = 65_536
BYTES_AT_ONCE = 1_048_576
TEXT_CHARACTERS = 4_096  # of one chunk, to which others are added: each addition copies it
MOST_HELD_BYTES = 33_554_432
"""Of all requests together, while Redis does not take them."""
GROUPS_AT_ONCE = 2  # the first may hold only the role: the first token must not wait for an interval
INTERVAL_S, MOST_INTERVAL_S = 0.05, 0.3
"""Time between two groups of one request, except its first groups and full ones: a reader sees 20 steps a second
as fluent, and each one costs Redis a write. Beyond `STREAMS` it grows with their number, up to the second figure: one
gateway process forwards some 14,000 groups a second, and keeps up with half of that."""
STREAMS = 300
MOST_OF_IT = 0.75
"""A chunk that comes when so much of that time is over is written at once. Where an engine makes a chunk of several
tokens about as often, the oldest would wait twice as long otherwise."""
GROUPS_KEPT = 10_000
"""Approximate number of groups that Redis keeps of one request: more than eight minutes of a stream at that pace."""
TOGETHER_S = 0.005
LONGEST_LASTING_S = 600.0


class Tokens:
    """Chunks of one execution of one request that are not published yet.

    Args:
        request: the execution.
        publisher: writes them.

    Attributes:
        total: number of chunks so far, published or not.
    """

    def __init__(self, request: InFlightRequest, publisher: Publisher) -> None:
        self.total = 0
        self.request = request
        self._publisher = publisher
        self._run = secrets.token_hex(8)
        self._waiting: list[bytes | Text] = []
        self._bytes = 0
        self._groups = 0
        self.plan = 0
        self.soon_at = self.due_at = 0.0
        self.lasting_at = 0.0

    def add(self, chunk: bytes | Text) -> None:
        """Add a chunk that the engine has made, as JSON on one line, or text; texts in a row become one chunk."""
        if self.request.stop_reason is not None:  # the request is stopped: its chunks are not wanted any more
            self.total += 1
            self.drop()
            return
        if not (isinstance(chunk, Text) and self._waiting and _join(self._waiting[-1], chunk)):
            self.total += 1
            self._waiting.append(chunk)
        size = len(chunk.text.encode("utf-8", "replace") if isinstance(chunk, Text) else chunk) + 1
        self._bytes += size
        self._publisher.holds(self, size)

    @property
    def overflows(self) -> bool:
        """True if the waiting chunks fill one group."""
        return self._bytes >= GROUP_BYTES

    @property
    def hurries(self) -> bool:
        """True if the next group goes at once."""
        return self._groups < GROUPS_AT_ONCE

    def take(self, lasting: bool) -> list[TokenGroup]:
        """Returns all waiting chunks, as groups in order; the first renews the stream's expiry if `lasting`."""
        seq, groups = self.total - len(self._waiting), []
        lease, asked = self.request.lease, self.request.asked
        resumed = 0 if asked is None else asked.resumed_tokens
        for part in _parts([bytes(chunk) for chunk in self._waiting]):
            chunks = b"\n".join(part)
            groups.append(TokenGroup(lease.request_id, lease.attempt, self._run, seq, chunks, lasting, resumed))
            seq, lasting = seq + len(part), False
        self._groups += len(groups)
        self._clear()
        return groups

    def drop(self) -> None:
        """Drop the waiting chunks: readers will see that they are missing."""
        if self._waiting:
            metrics.STREAM_CHUNKS_DROPPED.inc(len(self._waiting))
            self._clear()

    def _clear(self) -> None:
        self._publisher.held_bytes -= self._bytes
        self._waiting, self._bytes = [], 0


class Publisher:
    """Writes the chunks of all requests that this worker runs, those of many requests in one call.

    Args:
        broker: the queue.
        clock: source of time.
        streams: the open streams of all queues of this process.

    Attributes:
        held_bytes: bytes of chunks that wait here.
    """

    def __init__(self, broker: WorkerBroker, clock: Clock, streams: set[Tokens]) -> None:
        self.held_bytes = 0
        self._broker, self._clock, self._streams = broker, clock, streams
        self._plans: list[tuple[float, int, Tokens]] = []
        self._serial = count(1)
        self._some = asyncio.Event()
        self._writing = asyncio.Lock()
        self._said: set[str] = set()

    @property
    def interval_s(self) -> float:
        """Time between two groups of one request, by the number of streams now."""
        return min(MOST_INTERVAL_S, INTERVAL_S * max(1.0, len(self._streams) / STREAMS))

    def open(self, request: InFlightRequest) -> Tokens:
        """Returns the buffer for the chunks of a request."""
        tokens = Tokens(request, self)
        self._streams.add(tokens)
        return tokens

    def holds(self, tokens: Tokens, size: int) -> None:
        """Plan the next group, now that a chunk of so many bytes has been added."""
        self.held_bytes += size
        if self.held_bytes > MOST_HELD_BYTES:
            tokens.drop()
        elif tokens.overflows or tokens.hurries:
            self._plan(tokens, 0.0)
        elif not tokens.plan:
            self._plan(tokens, 0.0 if self._clock.monotonic() >= tokens.soon_at else tokens.due_at)

    async def run(self) -> None:
        """Write groups as they become due, for ever."""
        while True:
            self._some.clear()
            due = self._take_due()
            if due:
                await self._write(due)
                continue
            pause_s = None if not self._plans else max(0.0, self._plans[0][0] - self._clock.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._some.wait()

    async def flush(self, requests: Iterable[InFlightRequest]) -> None:
        """Write the rest of these requests' chunks; returns when Redis has taken or refused them."""
        tokens = [request.tokens for request in requests if request.tokens is not None]
        if tokens:
            await self._write(tokens)

    def leave(self, requests: Iterable[InFlightRequest]) -> None:
        """Drop the chunks of these requests."""
        for request in requests:
            if request.tokens is not None:
                request.tokens.drop()
                request.tokens.plan = 0
                self._streams.discard(request.tokens)

    def _plan(self, tokens: Tokens, due_at: float) -> None:
        if tokens.plan and tokens.due_at <= due_at:
            return
        tokens.plan, tokens.due_at = next(self._serial), due_at
        heappush(self._plans, (due_at, tokens.plan, tokens))
        self._some.set()

    def _take_due(self) -> list[Tokens]:
        """Returns the buffers that are due, and those that are due soon, to go in the same call."""
        now = self._clock.monotonic()
        due: list[Tokens] = []
        while self._plans:
            due_at, plan, tokens = self._plans[0]
            if tokens.plan == plan and due_at > now + (TOGETHER_S if due else 0.0):
                break
            heappop(self._plans)
            if tokens.plan == plan:
                tokens.plan = 0
                due.append(tokens)
        return due

    async def _write(self, due: Sequence[Tokens]) -> None:
        # One call at a time, or a later group could overtake an earlier one on another connection.
        async with self._writing:
            now, interval_s, groups = self._clock.monotonic(), self.interval_s, []
            metrics.STREAM_INTERVAL.set(interval_s)
            for tokens in due:
                tokens.soon_at, tokens.due_at = now + MOST_OF_IT * interval_s, now + interval_s
                if tokens.request.stop_reason is not None:
                    tokens.drop()
                    continue
                lasting = now >= tokens.lasting_at
                taken = tokens.take(lasting)
                if taken and lasting:
                    lasting_s = min(LONGEST_LASTING_S, self._broker.limits.result_ttl_ms / 4000)
                    tokens.lasting_at = now + lasting_s
                groups += taken
            for part in _in_calls(groups):
                if not await self._publish(part):
                    for tokens in due:  # the renewed expiry may have been refused too
                        tokens.lasting_at = 0.0

    async def _publish(self, groups: Sequence[TokenGroup]) -> bool:
        """Returns True if Redis took all of them."""
        try:
            await self._broker.publish_tokens(groups, GROUPS_KEPT)
        except StreamfleetError as error:
            return self._lose(groups, error)
        except Exception as error:  # noqa: BLE001 - one key of a wrong type must not cost other requests their tokens
            if len(groups) == 1:
                return self._lose(groups, error)
            return all([await self._publish([group]) for group in groups])
        return True

    def _lose(self, groups: Sequence[TokenGroup], error: Exception) -> bool:
        metrics.STREAM_CHUNKS_DROPPED.inc(sum(map(_chunks, groups)))
        kind = type(error).__name__
        if kind not in self._said:  # logged once: every group may fail from now on
            log.warning("tokens_not_published", error=kind, reason=str(error))
        self._said.add(kind)
        return False


def _join(before: bytes | Text, text: Text) -> bool:
    """Add a text to the one before it. Returns false if it has to be a chunk of its own."""
    if isinstance(before, bytes) or before.make != text.make or len(before.text) >= TEXT_CHARACTERS:
        return False
    before.text += text.text
    return True


def _chunks(group: TokenGroup) -> int:
    return group.chunks.count(b"\n") + 1


def _parts(chunks: Sequence[bytes]) -> list[list[bytes]]:
    """Chunks in groups of bounded size; a larger chunk goes alone."""
    parts: list[list[bytes]] = []
    size = 0
    for chunk in chunks:
        size += len(chunk) + 1
        if not parts or size > GROUP_BYTES:
            parts.append([])
            size = len(chunk) + 1
        parts[-1].append(chunk)
    return parts


def _in_calls(groups: Sequence[TokenGroup]) -> list[list[TokenGroup]]:
    """Groups in calls of bounded size."""
    calls: list[list[TokenGroup]] = []
    size = 0
    for group in groups:
        size += len(group.chunks)
        if not calls or size > BYTES_AT_ONCE:
            calls.append([])
            size = len(group.chunks)
        calls[-1].append(group)
    return calls
