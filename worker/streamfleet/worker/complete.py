"""The completing loop: writes outcomes to Redis in batches. A request is removed only after its outcome is written.

Outcomes come in through `put`, from the dispatcher. Scripts write a batch in few calls: finished requests are
completed, passing faults are retried later, the rest is handed back. Metrics are counted after Redis has answered.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from streamfleet.common import jsontext, metrics
from streamfleet.common.broker.types import Claim, CompleteCode, Completion, Lease, Retry, RetryCode
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.envelope import CARRIED, unknown_fields
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable, StreamfleetError, openai_error
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import MAX_META_BYTES, Status, digest_of_bytes
from streamfleet.worker.counting import Tally, count_wasted
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from streamfleet.worker.keeping import store
from streamfleet.worker.outcome import Finished, Gone, HandedBack, Outcome, Postponed, broken
from streamfleet.worker.publishing import Publisher

log = structlog.get_logger(__name__)
MOST_AT_ONCE = 128
REFUSED_AGAIN_S = 1.0
RESPONSE_BYTES_AT_ONCE = 4_194_304
ENTRY_BYTES_AT_ONCE = 1_048_576  # handing back copies the entries into Lua, and Redis serves nobody else meanwhile
RETRY_BASE_MS, RETRY_MAX_MS = 500, 30_000
"""First and longest delay before a passing fault is tried again: a full engine has room again within the first, and a
server that restarts is asked soon after it is up."""
_CARRIED = tuple((name.encode(), name) for name in CARRIED)
_usage = jsontext.encoder(ascii_only=True, sort_keys=False, allow_nan=True)
T = TypeVar("T")


class Completer:
    """Writes outcomes until it is closed and nothing is left.

    Args:
        broker: a broker that waits for Redis instead of giving up: an outcome is never dropped.
        worker: this worker's name.
        in_flight: completed requests are removed from here.
        publisher: holds the chunks of streamed answers.
        limits: how often a request is tried.
        clock: for timings.
    """

    def __init__(
        self,
        broker: WorkerBroker,
        worker: str,
        in_flight: InFlight,
        publisher: Publisher,
        limits: QueueLimits,
        clock: Clock,
    ) -> None:
        self._broker, self._worker, self._in_flight = broker, worker, in_flight
        self._publisher, self._clock = publisher, clock
        self.configure(limits)
        self._waiting: deque[tuple[InFlightRequest, Outcome]] = deque()
        self._some = asyncio.Event()
        self._closed = False

    def configure(self, limits: QueueLimits) -> None:
        """Retry by these limits from now on."""
        self._max_deliveries = limits.max_deliveries

    def put(self, request: InFlightRequest, outcome: Outcome) -> None:
        """Add a request's outcome, to be written soon."""
        self._waiting.append((request, outcome))
        self._some.set()

    def close(self) -> None:
        """Accept no more outcomes."""
        self._closed = True
        self._some.set()

    async def run(self) -> None:
        while self._waiting or not self._closed:
            if not self._waiting:
                self._some.clear()
                await self._some.wait()
            batch = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
            if batch:
                await self._write(batch)

    async def _write(self, batch: Sequence[tuple[InFlightRequest, Outcome]]) -> None:
        hit(Point.BEFORE_COMPLETE)
        finished = [(request, outcome) for request, outcome in batch if isinstance(outcome, Finished)]
        others = [(request, outcome) for request, outcome in batch if not isinstance(outcome, Finished)]
        read_along = [request for request, _ in batch if request.tokens is not None]
        if read_along:
            # Tokens first, then the result and their end.
            await self._publisher.flush(request for request, _ in finished)
            self._publisher.leave(read_along)
        for part in _parts(finished, lambda item: len(item[1].response), RESPONSE_BYTES_AT_ONCE):
            await self._each_or_all(self._finish, part)
        if others:
            await self._hand_back(others)
        hit(Point.AFTER_COMPLETE)
        metrics.LEASES_LOST.inc(sum(isinstance(outcome, Gone) for _, outcome in batch))
        for request, _ in batch:
            if request.trace is not None:
                request.trace.left(self._clock.monotonic())
            request.asked = request.tokens = request.trace = None  # they hold the request, in cycles
        self._in_flight.remove([request for request, _ in batch])

    async def _hand_back(self, batch: Sequence[tuple[InFlightRequest, Outcome]]) -> None:
        postponed = [(request, outcome) for request, outcome in batch if isinstance(outcome, Postponed)]
        back = [(request, outcome) for request, outcome in batch if isinstance(outcome, HandedBack)]
        for late in _parts(postponed, lambda item: _entry_bytes(item[0]), ENTRY_BYTES_AT_ONCE):
            await self._each_or_all(self._postpone, late)
        kept = await store(self._broker, [(request, outcome.partial) for request, outcome in back])
        for how in sorted({(outcome.in_turn, outcome.gave_way) for _, outcome in back}):
            some = [request for request, outcome in back if (outcome.in_turn, outcome.gave_way) == how]
            await self._release(some, *how, kept=kept)
        for request, outcome in back:
            lost = outcome.partial.tokens if outcome.partial is not None and request.lease not in kept else 0
            metrics.of(metrics.TOKENS_WASTED, "handed_back").inc(outcome.lost_tokens + lost)

    async def _release(
        self, back: Sequence[InFlightRequest], in_turn: bool, gave_way: bool, kept: Mapping[Lease, tuple[str, int]]
    ) -> None:
        counter = metrics.INTERRUPTED if gave_way else metrics.RELEASED
        for requests in _parts(back, _entry_bytes, ENTRY_BYTES_AT_ONCE):
            hit(Point.BEFORE_RELEASE)
            leases = [request.lease for request in requests]
            some = {lease: kept[lease] for lease in leases if lease in kept}
            generated = {
                request.lease: request.asked.made - request.asked.resumed_tokens
                for request in requests
                if request.asked is not None and request.asked.made > request.asked.resumed_tokens
            }
            await self._broker.release(
                self._worker, leases, in_turn=in_turn, gave_way=gave_way, kept=some, generated=generated
            )
            for lease in leases:
                metrics.of(counter, lease.lane).inc()

    async def _each_or_all(self, write: Callable[[Sequence[T]], Awaitable[None]], items: Sequence[T]) -> None:
        """Write all in one call; if Redis refuses that, one by one, so that one odd outcome harms no other."""
        while True:
            try:
                return await write(items)
            except BrokerOutOfMemory:  # not expected of these scripts, but a good answer must not fail for it
                await self._clock.sleep(REFUSED_AGAIN_S)
            except BrokerUnavailable:
                raise
            except Exception:
                log.exception("outcomes_refused_by_redis", outcomes=len(items))
                break
        for item in items:
            await self._alone(write, item)
        return None

    async def _alone(self, write: Callable[[Sequence[T]], Awaitable[None]], item: T) -> None:
        try:
            await write([item])
        except StreamfleetError:
            raise
        except Exception as error:
            log.exception("outcome_refused_by_redis")
            request = item[0]  # type: ignore[index]
            await self._finish([(request, broken(f"the result could not be stored: {type(error).__name__}"))])

    async def _finish(self, items: Sequence[tuple[InFlightRequest, Finished]]) -> None:
        completions = [self._completion(request, outcome) for request, outcome in items]
        codes = await self._broker.complete(self._worker, completions)
        tally = Tally(self._clock.monotonic())
        for (request, outcome), code in zip(items, codes, strict=True):
            if code is CompleteCode.LOST:
                metrics.LEASES_LOST.inc()
                count_wasted(outcome, "lease_lost")
                log.warning("lease_lost_before_completion", request_id=request.lease.request_id)
            elif code is not CompleteCode.ENDED_BEFORE or outcome.status is Status.CANCELLED:
                tally.finished(request, outcome)
            else:  # the first worker to end it has counted it
                count_wasted(outcome, "ended_before")
        tally.close()

    def _completion(self, request: InFlightRequest, outcome: Finished) -> Completion:
        """The outcome as the script needs it. The script itself adds lane, entry, worker and attempt."""
        enqueued_ms = request.enqueued_ms
        queued_ms = max(0, request.claimed_ms - enqueued_ms)
        held_ms = (self._clock.monotonic() - request.claimed_at) * 1000
        values: dict[str, bytes | str | int] = {
            "http_status": int(outcome.http_status),
            "enqueued_ms": enqueued_ms,
            "finished_ms": request.claimed_ms + round(held_ms),
            "queued_ms": queued_ms,
            "total_ms": f"{queued_ms + held_ms:.1f}",
        }
        if request.started_at is not None:
            values["waited_ms"] = f"{(request.started_at - request.claimed_at) * 1000:.1f}"
        if outcome.first_token_ms is not None:
            values["first_token_ms"] = f"{outcome.first_token_ms:.1f}"
        if outcome.response:
            values["response"] = outcome.response
            values["finish_reason"] = outcome.finish_reason
        if outcome.response or outcome.usage:
            values["usage"] = _usage(outcome.usage)
        if outcome.error:
            values["error"] = outcome.error
        fields = request.claim.fields
        if fields.get(b"stream") == b"1":
            values["streamed"] = 0 if request.tokens is None else request.tokens.total
        if outcome.resumed_tokens:
            values["resumed_tokens"] = outcome.resumed_tokens
        values |= _told_of(request.claim)
        lease, digest = request.claim.lease, digest_of_bytes(fields) if b"id" in fields else ""
        return Completion(lease, outcome.status, values, request.claim.reply, outcome.error, outcome.held, digest)

    async def _postpone(self, items: Sequence[tuple[InFlightRequest, Postponed]]) -> None:
        retries = [
            Retry(
                request.lease,
                self._delay(request, outcome),
                openai_error(outcome.whole, "server_error", None, outcome.code),
                worker_lost=outcome.engine_died,
                held=outcome.held,
            )
            for request, outcome in items
        ]
        if kept := await store(self._broker, [(request, outcome.partial) for request, outcome in items]):
            await self._broker.renew(self._worker, list(kept), kept)
        codes = await self._broker.retry_later(self._worker, retries, self._max_deliveries)
        tally = Tally(self._clock.monotonic())
        for (request, outcome), code in zip(items, codes, strict=True):
            lane = request.lease.lane
            log.warning(
                "request_postponed",
                request_id=request.lease.request_id,
                reason=outcome.reason,
                became=code.name.lower(),
            )
            if code is RetryCode.DELAYED:
                metrics.RETRIED.labels(lane).inc()
            elif code is RetryCode.LOST:
                metrics.LEASES_LOST.inc()
            elif code is not RetryCode.ANSWERED:  # an answered one was ended, and counted, by another worker
                tally.given_up(request, code)
        tally.close()

    def _delay(self, request: InFlightRequest, outcome: Postponed) -> int:
        if outcome.engine_died:
            return 0
        spread = random.random()  # noqa: S311 - spreads retries, guards nothing
        usual = backoff_ms(request.lease.attempt, RETRY_BASE_MS, RETRY_MAX_MS, spread)
        # The server may ask for a retry at once, which would use up all attempts in a moment, or far too late.
        return max(usual, min(outcome.retry_after_ms or 0, RETRY_MAX_MS))


def backoff_ms(attempt: int, base_ms: int, longest_ms: int, random: float) -> int:
    """Delay before a request is tried again: exponential backoff with full jitter on its upper half.

    Args:
        attempt: the attempt that failed, from 1.
        base_ms: delay after the first attempt, before jitter.
        longest_ms: cap before jitter.
        random: a number in [0, 1).

    Source: "equal jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    whole = min(longest_ms, base_ms * 2 ** min(attempt - 1, 30))
    return int(whole / 2 + random * whole / 2)


def _parts(items: Sequence[T], size_of: Callable[[T], int], most: int) -> list[list[T]]:
    """Items in order, split where the sum of their sizes exceeds `most`; a larger item goes alone."""
    parts: list[list[T]] = []
    size = 0
    for item in items:
        size += size_of(item)
        if not parts or size > most:
            parts.append([])
            size = size_of(item)
        parts[-1].append(item)
    return parts


def _entry_bytes(request: InFlightRequest) -> int:
    return sum(map(len, request.claim.fields.values()))


def _told_of(claim: Claim) -> dict[str, bytes | str | int]:
    """Fields of the result that say what was known at the claim."""
    told: dict[str, bytes | str | int] = {} if claim.passed_ms is None else {"passed_ms": claim.passed_ms}
    for field, name in _CARRIED:
        if field in claim.fields and (value := claim.fields[field]):
            told[name] = value[:MAX_META_BYTES]
    if unknown := unknown_fields(claim.fields):
        told["warnings"] = json.dumps([warning for _, warning in unknown])
    return told
