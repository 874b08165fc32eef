"""Engine in this process: calls vLLM's own OpenAI server without a socket.

A plain chat or completion is a call of its serving objects (`direct.py`), any other request an ASGI call of its
application (`asgi.py`); the response becomes an `EngineReply`. `vllm_host.py` has the names of vLLM, `engine_thread.py`
the thread that builds it, `watchdog.py` finds hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import Any

import structlog

from streamfleet.common import metrics
from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.protocol import EMBEDDINGS, MESSAGES, RESPONSES
from streamfleet.worker.cost.amounts import without_budget
from streamfleet.worker.engine import asgi, direct, vllm_host
from streamfleet.worker.engine.base import (
    Capacity,
    EngineAborted,
    EngineDied,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
)
from streamfleet.worker.engine.engine_thread import EngineThread
from streamfleet.worker.engine.replies import (
    encode_body,
    error_reply,
    openai_shaped,
    refuse_endpoint,
    was_aborted,
)
from streamfleet.worker.engine.sse_parser import SseParser, streamed_body
from streamfleet.worker.engine.temp_folder import TempFolder
from streamfleet.worker.engine.vllm_setup import (
    EngineArgs,
    arguments,
    check_libraries,
    check_model,
    is_cpu_build,
    log_levels_kept,
    prepare_environment,
)
from streamfleet.worker.engine.watchdog import StepLogger, Watchdog

log = structlog.get_logger(__name__)

_CHECK_S = 0.25
_ABORT_S = 0.25  # vLLM answers an abort within milliseconds, unless its core hangs


class VllmEngine:
    """Continuous batching by vLLM, with full parity to `vllm serve`.

    Args:
        model: folder or Hugging Face name of the model.
        engine_args: vLLM's own arguments; see `vllm_setup.arguments`.
        watchdog_s: seconds without a step, with requests inside, after which the engine counts as hung.
        cpu: true for vLLM's CPU build; None finds out.
        max_sequences: largest ``n`` that vLLM accepts.
        reserve_percent: see `vllm_setup.arguments`.
        clock: source of time.
    """

    kind: str = "vllm"
    loads_models: bool = False  # others when requests ask for them

    def __init__(
        self,
        model: str,
        engine_args: EngineArgs = (),
        *,
        watchdog_s: float = 60.0,
        cpu: bool | None = None,
        max_sequences: int = 16,
        reserve_percent: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.models: tuple[str, ...] = ()
        self.endpoints: tuple[str, ...] = ()
        self.fields: dict[str, list[str]] = {}
        self._model = model
        self._cpu = is_cpu_build() if cpu is None else cpu
        self._max_sequences = max_sequences
        self._reserve_percent = reserve_percent
        self._argv = arguments(engine_args, cpu=self._cpu, reserve_percent=reserve_percent)
        self._clock = clock or SystemClock()
        self._watchdog = Watchdog(watchdog_s, self._clock.monotonic)
        self._steps = StepLogger(self._watchdog)
        self._engine_thread = EngineThread(self._build, vllm_host.shutdown)
        self._folder: TempFolder | None = None
        self._hosted: vllm_host.Hosted | None = None
        self._capacity: Capacity | None = None
        self._app: asgi.Application | None = None
        self._direct: direct.Direct | None = None
        self._stack = AsyncExitStack()
        self._failure: asyncio.Future[str] | None = None
        self._monitor: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[asgi.Response]] = set()

    @property
    def inside(self) -> int:
        """Number of requests that vLLM has taken in and not yet let out."""
        return self._watchdog.inside

    @property
    def kv_use(self) -> float | None:
        """Part of the KV cache that requests use, by vLLM's last step; an idle engine makes none."""
        return self._steps.kv_use if self.inside else 0.0

    async def start(self) -> None:
        """Load the model and accept requests. Takes 10 seconds or more.

        Raises:
            ImportError: vLLM is missing, or its release is unknown.
            FileNotFoundError: the model is a path, and not there.
            ValueError: vLLM does not take the engine arguments, or cannot start with them.
            Exception: any other error of vLLM at its start.
        """
        try:
            with log_levels_kept():
                hosted = await self._engine_thread.start()
                vllm_host.tap(hosted, self._watchdog, self._steps)
                self._app = await vllm_host.open_application(hosted, self._stack)
                self.endpoints, self.fields = vllm_host.endpoints_of(self._app), vllm_host.fields_of(self._app)
                self._direct, reason = direct.opened(hosted, self._app)
        except BaseException:
            await self.stop()
            raise
        way = "direct" if self._direct is not None else "by application"
        self.kind = f"vllm {way}"
        log.info("requests_reach_vllm", way=way, **({"because": reason} if reason else {}))
        self._hosted = hosted
        self.models, self.loads_models = hosted.models, vllm_host.loads_adapters()
        self._failure = asyncio.get_running_loop().create_future()
        self._monitor = asyncio.create_task(self._watch(hosted, self._failure))

    async def run(self, request: EngineRequest) -> EngineReply:
        """Answer one request. Cancelling the task removes it from the engine.

        Raises:
            EngineDied: the engine core is gone or hangs.
            EngineAborted: the engine dropped the request by itself.
            EngineUnavailable: the engine's own queue is full.
        """
        refusal = refuse_endpoint(request.endpoint)
        if refusal is not None:
            return refusal
        hosted, _, failure = self._running()
        parser = SseParser(request, self._clock.monotonic) if request.streams else None
        asked = request.body if parser is None else streamed_body(request, request.body)
        if hosted.by_priority:  # in the body: vLLM reads a header only for endpoints that generate
            asked = {**asked, "priority": request.priority}
        if request.endpoint == RESPONSES:
            asked = {**asked, "request_id": f"resp_{request.id}"}  # the id of the response
        if request.endpoint == MESSAGES and not hosted.reasons:
            asked = without_budget(asked)
        body = encode_body(asked)
        if isinstance(body, EngineReply):
            return body
        if failure.done():
            raise EngineDied(failure.result())
        progress = vllm_host.Progress(request)
        request.snapshot = lambda: vllm_host.kept(hosted, progress)
        token = vllm_host.current_progress.set(progress)
        try:
            call = asyncio.create_task(self._answer(request, body, parser, progress))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        finally:
            vllm_host.current_progress.reset(token)
        try:
            either: set[asyncio.Future[Any]] = {call, failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _end_early(hosted, call, progress)
            if progress.prompt_tokens:
                request.used(progress.prompt_tokens, request.made)
            request.partial = request.snapshot()
            raise
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=2 * asgi.DISCONNECT_GRACE_S)
        reply = self._judge(hosted, failure, call, progress, parser)
        return reply if reply.status < 400 else openai_shaped(reply, request.endpoint)

    def capacity(self) -> Capacity:
        """Slots and KV-cache tokens as the engine reports them; known after `start`."""
        if self._capacity is None:
            self._capacity = self._running()[0].capacity()
        return self._capacity

    async def failed(self) -> str:
        """Return the reason once the engine is dead (within 0.5 s) or hung (within ``watchdog_s``)."""
        return await asyncio.shield(self._running()[2])

    async def stop(self) -> None:
        """End the engine with all that runs in it, and all its processes."""
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.wait({self._monitor})
        if self._failure is not None and not self._failure.done():
            self._failure.set_result("the engine was stopped")
        if self._calls:  # the application must keep its state until they end
            await asyncio.wait(self._calls, timeout=2 * asgi.DISCONNECT_GRACE_S)
        if self._hosted is not None:
            vllm_host.close_front(self._hosted)
        try:
            await self._stack.aclose()
        finally:
            await self._engine_thread.stop()
            if self._folder is not None:
                self._folder.remove()

    def _build(self) -> vllm_host.Hosted:
        check_model(self._model)
        prepare_environment(self._model, cpu=self._cpu, max_sequences=self._max_sequences)
        if self._cpu:
            check_libraries()
        self._folder = TempFolder.make()
        with contextlib.nullcontext() if self._folder is None else self._folder.in_use():
            return vllm_host.build(self._model, self._argv, self._steps, self._reserve_percent)

    def _running(self) -> tuple[vllm_host.Hosted, asgi.Application, asyncio.Future[str]]:
        if self._hosted is None or self._app is None or self._failure is None:
            raise EngineDied("the vLLM engine is not started: await start() first")
        return self._hosted, self._app, self._failure

    async def _answer(
        self, request: EngineRequest, body: bytes, parser: SseParser | None, progress: vllm_host.Progress
    ) -> asgi.Response:
        """Ask vLLM, in a task of its own; once a request is in the engine core, it is not asked again."""
        hosted, app, _ = self._running()
        reason = metrics.ByApplication.NO_OTHER_WAY if self._direct is None else direct.not_plain(request)
        if self._direct is not None and reason is None:
            response = await self._direct.answer(request, body, parser, progress)
            if response is not None:
                return response
            reason = metrics.ByApplication.REFUSED
        if request.endpoint == EMBEDDINGS and not getattr(hosted.args, "middleware", None):
            asked = {**request.body, "priority": request.priority} if hosted.by_priority else request.body
            embedded = await direct.embed_tokens(app, asked, self._headers(hosted, request))
            if embedded is not None:
                return embedded
        metrics.of(metrics.BY_APPLICATION, reason).inc()
        on_part = None if parser is None else parser.feed
        try:
            return await asgi.post(app, request.endpoint, self._headers(hosted, request), body, on_part)
        except asgi.NoResponse as error:
            # Once a stream has begun, Starlette raises what the application would have answered as another error.
            told = getattr(error.__cause__, "__cause__", None)
            if not isinstance(told, Exception) or "Caught handled exception" not in str(error.__cause__):
                raise
            return await direct.handled(app, told)

    def _headers(self, hosted: vllm_host.Hosted, request: EngineRequest) -> dict[str, str]:
        headers = {"X-Request-Id": request.id, **hosted.authorization}
        if hosted.by_priority and request.endpoint == MESSAGES:  # whose body has no such field
            headers["X-Vllm-Priority"] = str(request.priority)
        if request.traceparent:
            headers["traceparent"] = request.traceparent
        return headers

    def _judge(
        self,
        hosted: vllm_host.Hosted,
        failure: asyncio.Future[str],
        call: asyncio.Future[asgi.Response],
        progress: vllm_host.Progress,
        parser: SseParser | None,
    ) -> EngineReply:
        if call.cancelled() or not call.done():
            raise EngineDied(failure.result())
        error = call.exception()
        response = asgi.Response(500, b"") if error is not None else _whole(call.result(), parser)
        status = response.status
        if status >= 500 and hosted.dead:
            raise EngineDied("the vLLM engine core died")
        if error is not None:
            return error_reply(500, f"vLLM gave no answer: {error.__cause__ or error}", None, "engine_error")
        if status == 503:  # only with --max-num-queued-reqs and its like
            raise EngineUnavailable("vLLM's own queue is full", busy=True)
        if was_aborted(response.body, progress.request.endpoint):
            if hosted.dead:
                raise EngineDied("the vLLM engine core died")
            raise EngineAborted("vLLM dropped the request before it was finished")
        return EngineReply(status, response.body, progress.first_token_ms)

    async def _watch(self, hosted: vllm_host.Hosted, failure: asyncio.Future[str]) -> None:
        while not failure.done():
            reason = "the vLLM engine core died" if hosted.dead else self._watchdog.check()
            if reason is not None:
                failure.set_result(reason)
                return
            await self._clock.sleep(_CHECK_S)


async def _end_early(
    hosted: vllm_host.Hosted, call: asyncio.Future[asgi.Response], progress: vllm_host.Progress
) -> None:
    """Abort a request such that vLLM still reports its output; a call that is only cancelled loses it."""
    with contextlib.suppress(Exception):  # the call is cancelled next, whether or not this fails
        async with asyncio.timeout(_ABORT_S):
            await hosted.engine.abort(progress.ids)
            await asyncio.wait({call})


def _whole(response: asgi.Response, parser: SseParser | None) -> asgi.Response:
    """Returns the response as it would be without streaming."""
    if parser is None or not response.streamed:
        return response
    outcome = parser.outcome()
    if outcome is None:
        broken = error_reply(500, "vLLM broke off its answer", None, "engine_error")
        return asgi.Response(broken.status, broken.body)
    return asgi.Response(*outcome)
