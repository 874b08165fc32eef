"""Takes one request through named steps to one outcome: decode, admit, run, judge.

A claimed request goes in, an Outcome comes out. Chunks of a streamed answer go to the publisher on the way. This module
calls the engine but does not write to Redis.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from dataclasses import replace
from typing import Any
from uuid import uuid4

import structlog

from streamfleet.common.clock import Clock
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.limits import QueueLimits
from streamfleet.common.logs import bind_log_context
from streamfleet.common.protocol import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    SCORE,
    Lane,
    Request,
)
from streamfleet.common.results import tokens_used
from streamfleet.worker.admission import Admission
from streamfleet.worker.engine.base import (
    STREAMED,
    Engine,
    EngineAborted,
    EngineDied,
    EngineError,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
    no_snapshot,
)
from streamfleet.worker.failpoints import Point, hit
from streamfleet.worker.in_flight import InFlightRequest, StopReason
from streamfleet.worker.messages import ask
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
from streamfleet.worker.publishing import Publisher
from streamfleet.worker.tracing import Traces

log = structlog.get_logger(__name__)
_PROBES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    EMBEDDINGS: {"input": "a"},
    CLASSIFY: {"input": "a"},
    SCORE: {"text_1": "a", "text_2": "a"},
    POOLING: {"input": "a"},
}


class Executor:
    """Runs requests on the engine; every request ends in exactly one outcome.

    Args:
        engine: runs the requests.
        admission: decodes a request and checks whether it fits; learns from its outcome.
        publisher: gets the chunks of streamed answers.
        clock: monotonic time for deadlines.
        limits: limits of the queue: the largest body.
        traces: makes spans of each request; None if tracing is off.
        model: model of bodies that name none; empty to leave it to the engine.
    """

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        publisher: Publisher,
        clock: Clock,
        limits: QueueLimits,
        traces: Traces | None = None,
        model: str = "",
    ) -> None:
        self._engine, self._admission, self._publisher = engine, admission, publisher
        self._clock, self._traces, self._model = clock, traces, model
        self._answered = ""
        self.configure(limits)

    def configure(self, limits: QueueLimits) -> None:
        """Accept bodies by these limits from now on."""
        self._max_body_bytes = limits.max_body_bytes

    @property
    def unready(self) -> str:
        """Reason why the engine answers no request; empty if there is none."""
        return getattr(self._engine, "unready", "")

    @property
    def allowance(self) -> int | None:
        """Most requests to hold now, by the engine itself; None for no limit."""
        return getattr(self._engine, "allowance", None)

    def suspects(self, request: InFlightRequest) -> bool:
        """True if the engine was away after an earlier run of this request, which may be the cause."""
        return request.lease.request_id in getattr(self._engine, "suspects", ())

    async def execute(self, request: InFlightRequest) -> Outcome:
        """Run a request to its outcome. Raises nothing but CancelledError."""
        bind_log_context(request.lease)
        if self._traces is not None:
            request.trace = self._traces.begin(request)
        try:
            decoded = self._admission.admit(request, self._clock.monotonic(), self._max_body_bytes)
            outcome = HandedBack(in_turn=True) if decoded is None else await self._run(request, decoded)
        except InvalidRequest as error:
            log.info("request_refused", param=error.param, code=error.code)  # the message may quote the request
            outcome = refused(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must end this request, not the worker
            # Logged without its message, which may quote the body.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.critical("request_broke_the_worker", error=type(error).__name__, traceback=frames)
            outcome = broken(f"the worker could not handle the request: {type(error).__name__}")
        if isinstance(outcome, Finished) and outcome.engine_ok and request.asked is not None:
            self._answered = request.asked.endpoint
        self._admission.learn(request, outcome, self._clock.monotonic())
        log.debug("request_done", outcome=type(outcome).__name__)
        return outcome

    async def probe(self) -> bool | None:
        """Ask the engine for as little as it can do: one token, or one input where the model embeds.

        Begins at the endpoint of the last success, because not every engine tells which it serves.

        Returns:
            True if it answers, False if it fails. None if it refuses, which says nothing about the engine behind, or is
            too busy, or away.
        """
        served = self._engine.endpoints or tuple(_PROBES)
        for endpoint in sorted(_PROBES, key=lambda each: each != self._answered):
            if endpoint not in served:
                continue
            body = {**_PROBES[endpoint], **({"model": self._model} if self._model else {})}
            asked = EngineRequest(f"probe-{uuid4().hex}", endpoint, body, Lane.CRITICAL)
            try:
                outcome = judge(await self._engine.run(asked))
            except Exception as error:  # noqa: BLE001 - whatever it is, the engine does not answer
                log.info("probe_failed", endpoint=endpoint, error=type(error).__name__)
                says_nothing = isinstance(error, EngineUnavailable) and (error.busy or not error.counted)
                return None if says_nothing else False
            if not isinstance(outcome, Finished) or outcome.engine_ok is not None:
                return isinstance(outcome, Finished) and outcome.engine_ok
        return None

    async def _run(self, request: InFlightRequest, decoded: Request) -> Outcome:
        remaining_s = self._remaining_s(request)
        if remaining_s <= 0:
            return expired("before it could start")
        if request.stop_reason is not None:
            return _stopped(request.stop_reason)
        body = self._admission.for_engine(decoded)
        if self._model and body.get("model") is None:
            body["model"] = self._model
        hit(Point.BEFORE_ENGINE)
        request.started_at = self._clock.monotonic()
        asked = EngineRequest(request.lease.request_id, decoded.endpoint, body, decoded.lane, decoded.deadline_ms)
        request.asked, asked.resume = asked, request.resume
        if request.trace is not None:
            request.trace.starts(request.started_at)
            asked.traceparent = request.trace.traceparent
        if decoded.stream and decoded.endpoint in STREAMED:
            request.tokens = self._publisher.open(request)
            asked.on_chunk, asked.chunk_every_s = request.tokens.add, self._publisher.interval_s
            asked.tells_usage, asked.counts_along = _wanted_usage(decoded)
        too_late = None
        if remaining_s < math.inf:
            too_late = asyncio.get_running_loop().call_later(remaining_s, request.stop, StopReason.LATE)
        try:
            return await self._in_the_engine(request, asked)
        finally:
            if too_late is not None:
                too_late.cancel()
            # It holds the request: a cycle, whose body would wait for a garbage collection thousands of requests later.
            asked.snapshot = no_snapshot

    async def _in_the_engine(self, request: InFlightRequest, asked: EngineRequest) -> Outcome:
        """Returns the engine's answer, or the outcome for the request's stop reason; the engine has dropped it by then.

        Runs in the calling task, because a task for each request would cost as much as everything else here. So a stop
        cancels this task, and this method ends the cancellation.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("requests run in tasks")
        cancels_before = task.cancelling()
        request.abort = task.cancel
        answer: EngineReply | EngineError | None = None
        try:
            answer = await (ask(self._engine, asked) if asked.endpoint == MESSAGES else self._engine.run(asked))
            hit(Point.RESULT_COMPUTED)
        except asyncio.CancelledError:
            if task.cancelling() > cancels_before and request.stop_reason is None:
                raise  # the task is to end, not the request
        except EngineError as error:
            answer = error.with_traceback(None)  # which would hold this frame, and so the request, in a cycle
        except Exception as error:
            if request.stop_reason is None:
                raise
            log.debug("engine_error_after_abort", error=str(error))
        finally:
            request.abort = None
        if task.cancelling() > cancels_before:
            await _take_back_cancel(task, cancels_before)
        if request.stop_reason is None or isinstance(answer, EngineReply):
            return _with_output(_outcome_of(answer, asked), asked)
        return _ended_early(request.stop_reason, asked)

    def _remaining_s(self, request: InFlightRequest) -> float:
        """Seconds until the deadline; infinite for none."""
        return request.late_at - self._clock.monotonic()


def _wanted_usage(decoded: Request) -> tuple[bool, bool]:
    """True if the caller asked for token counts in a chunk of their own; the same for those so far in each chunk.

    As in vLLM, `stream_options.continuous_usage_stats` counts only with `include_usage`.
    """
    given = decoded.body.get("stream_options")
    options = given if isinstance(given, dict) else {}
    wanted = options.get("include_usage") is True
    return wanted, wanted and options.get("continuous_usage_stats") is True


def _outcome_of(answer: EngineReply | EngineError | None, asked: EngineRequest) -> Outcome:
    match answer:
        case EngineReply():
            return judge(answer, asked)
        case EngineUnavailable(counted=False):
            return HandedBack(in_turn=True, after_ms=answer.retry_after_ms or 0)
        case EngineUnavailable():
            fault = Postponed(str(answer), answer.retry_after_ms, engine_hangs=answer.hangs, said=answer.said)
            return replace(fault, code=answer.code)
        case EngineAborted():
            return Postponed(f"the engine aborted the request: {answer}")
        case EngineDied():
            return Postponed(f"the engine died while it ran the request: {answer}", engine_died=True)
        case EngineError() | None:  # None: cancelled, and not by this worker
            return Postponed(str(answer or "the engine dropped the request"))


def _ended_early(reason: StopReason, asked: EngineRequest) -> Outcome:
    outcome, usage = _stopped(reason), asked.usage or {}
    if isinstance(outcome, HandedBack):
        kept = 0 if asked.partial is None else asked.partial.tokens
        made = tokens_used(usage, "completion_tokens") or 0
        return replace(outcome, partial=asked.partial, lost_tokens=max(0, made - kept))
    if isinstance(outcome, Finished):  # no other worker will generate them either
        outcome.usage = usage
        return outcome
    return _with_output(outcome, asked)


def _with_output(outcome: Outcome, asked: EngineRequest) -> Outcome:
    """The outcome with what it says about the output of unfinished runs."""
    if isinstance(outcome, Postponed):
        return replace(outcome, partial=asked.snapshot())
    if isinstance(outcome, Finished):
        outcome.resumed_tokens = asked.resumed_tokens
    return outcome


def _stopped(reason: StopReason) -> Outcome:
    match reason:
        case StopReason.LATE:
            return expired("while it was running")
        case StopReason.CANCELLED:
            return cancelled()
        case StopReason.LOST:
            return Gone()
        case StopReason.RELEASED:
            return HandedBack()
        case StopReason.GAVE_WAY:
            return HandedBack(gave_way=True)
        case StopReason.WORKER_FAILED:
            return Postponed("the worker or its engine failed while it ran the request", engine_died=True)


async def _take_back_cancel(task: asyncio.Task[Any], before: int) -> None:
    """Undo this worker's cancelling of this task, also if it has not been raised yet because the answer came just then.

    Raises:
        CancelledError: the task was cancelled by another caller too.
    """
    task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if task.cancelling() > before:
            raise
    if task.cancelling() > before:
        raise asyncio.CancelledError
