"""One request through named steps to one outcome: decode, admit, run, judge."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import structlog

from streamfleet.common import metrics
from streamfleet.common.clock import Clock
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Request, decode
from streamfleet.worker.admission import CostLimits, check_cost, for_engine
from streamfleet.worker.credit import Typical, estimate, output_tokens
from streamfleet.worker.engine.base import (
    Engine,
    EngineAborted,
    EngineDied,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
)
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.flights import Fate, Flight, Flights
from streamfleet.worker.outcome import (
    Finished,
    Gone,
    HandedBack,
    Outcome,
    Postponed,
    broken,
    cancelled,
    expired,
    judge,
    refused,
)

log = structlog.get_logger(__name__)


class Executor:
    """Runs flights on the engine; every flight ends in exactly one outcome, whatever happens.

    Args:
        engine: where requests run.
        clock: monotonic time for deadlines.
        flights: told what a request asks for, once it is decoded.
        typical: told as well.
        limits: what one request may cost.
        max_body_bytes: largest body accepted.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        flights: Flights,
        typical: Typical,
        limits: CostLimits,
        max_body_bytes: int,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._flights = flights
        self._typical = typical
        self._limits = limits
        self._max_body_bytes = max_body_bytes

    async def execute(self, flight: Flight) -> Outcome:
        """Take a flight to its outcome. Raises nothing but CancelledError."""
        lease = flight.lease
        with structlog.contextvars.bound_contextvars(
            request_id=lease.request_id, entry=lease.entry, attempt=lease.attempt
        ):
            try:
                request = self._admit(flight)
                outcome = await self._run(flight, request)
            except InvalidRequest as error:
                log.info("request_refused", param=error.param, code=error.code)  # the message may quote the request
                outcome = refused(error)
            except Exception as error:  # noqa: BLE001 - a bug of ours must end this request, not the worker
                # Without its message, which may hold anything that stands in the body.
                frames = "".join(traceback.format_tb(error.__traceback__))
                log.critical("request_broke_the_worker", error=type(error).__name__, traceback=frames)
                outcome = broken(f"the worker could not handle the request: {type(error).__name__}")
            log.debug("request_done", outcome=type(outcome).__name__)
            return outcome

    def _admit(self, flight: Flight) -> Request:
        claim = flight.claim
        request = decode(claim.fields, claim.lease.lane, claim.lease.stream_id, self._max_body_bytes)
        longest = self._engine.capacity().max_model_len
        check_cost(request.body, self._limits, longest, request.endpoint)
        # Only what may run counts: one absurd wish must not make the next hundred requests look large.
        demand = estimate(request.body, len(claim.fields[b"body"]), longest)
        self._flights.revise(flight, demand)
        self._typical.saw(demand)
        return request

    async def _run(self, flight: Flight, request: Request) -> Outcome:
        remaining_s = self._remaining_s(flight, request)
        if remaining_s is not None and remaining_s <= 0:
            return expired("before it could start")
        if flight.fate.done():
            return self._stopped(flight)
        body = for_engine(request.body, request.endpoint, self._limits, self._engine.capacity().max_model_len)
        hit(Point.BEFORE_ENGINE)
        flight.started_at = self._clock.monotonic()
        work = asyncio.ensure_future(
            self._engine.run(
                EngineRequest(flight.lease.request_id, request.endpoint, body, request.lane, request.deadline_ms)
            )
        )
        try:
            either: set[asyncio.Future[Any]] = {work, flight.fate}
            await asyncio.wait(either, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                hit(Point.RESULT_COMPUTED)
                return await self._landed(work)
            outcome = self._stopped(flight)
            if isinstance(outcome, Finished):  # nobody else will generate them either
                asked = output_tokens(request.body, 0) * flight.demand.sequences
                metrics.TOKENS_SAVED.inc(min(asked, flight.demand.tokens))
            return outcome
        finally:
            await _abort(work)

    def _remaining_s(self, flight: Flight, request: Request) -> float | None:
        """Seconds until the deadline: by Redis's clock at the claim, by our own since then; None for no deadline."""
        if request.deadline_ms is None:
            return None
        return (request.deadline_ms - flight.claimed_ms) / 1000 - (self._clock.monotonic() - flight.claimed_at)

    async def _landed(self, work: asyncio.Future[EngineReply]) -> Outcome:
        if work.cancelled():  # by the engine itself: awaiting it would end this flight's task without an outcome
            return Postponed("the engine dropped the request")
        try:
            return judge(await work)
        except EngineUnavailable as error:
            return Postponed(str(error), error.retry_after_ms, engine_hangs=error.hangs, said=error.said)
        except EngineAborted as error:
            return Postponed(f"the engine aborted the request: {error}")
        except EngineDied as error:
            return Postponed(f"the engine died while it ran the request: {error}", engine_died=True)

    @staticmethod
    def _stopped(flight: Flight) -> Outcome:
        if not flight.fate.done():
            return expired("while it was running")
        match flight.fate.result():
            case Fate.CANCELLED:
                return cancelled()
            case Fate.LOST:
                return Gone()
            case Fate.RELEASED:
                return HandedBack()
            case Fate.WORKER_FAILED:
                return Postponed("the worker or its engine failed while it ran the request", engine_died=True)


async def _abort(work: asyncio.Future[EngineReply]) -> None:
    """Have the engine forget the request before its outcome is written."""
    if work.done():
        return
    work.cancel()
    await asyncio.wait({work})
    if not work.cancelled() and work.exception() is not None:
        log.debug("engine_error_after_abort", error=str(work.exception()))
