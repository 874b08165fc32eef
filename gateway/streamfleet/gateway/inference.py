"""Inference, the endpoints that models answer: check, enqueue, wait for the result or stream its tokens.

An HTTP request goes in, and the answer that a worker gave comes out, unchanged but for `service_tier`. Requests reach
the queue through its client. A caller that leaves has its request cancelled, unless it is to go on, or the caller's SDK
tries again and takes it over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from streamfleet.common.broker.types import Expected
from streamfleet.common.errors import (
    InvalidRequest,
    LikelyLate,
    QueueFull,
    RequestLost,
    StreamfleetError,
    UnknownRequest,
)
from streamfleet.common.protocol import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    parse_body,
)
from streamfleet.common.results import Result
from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.broker.api_keys import Held
from streamfleet.gateway.broker.responses import ResponseRecord
from streamfleet.gateway.disconnect import CallerLeft
from streamfleet.gateway.document import (
    AFTER,
    EVENT_IDS,
    EXPECTED,
    IDEMPOTENCY,
    JSON,
    RESTARTS,
    SSE,
    WAITING,
    answers,
    body,
    operation,
)
from streamfleet.gateway.errors import ApiError, result_to_api_error
from streamfleet.gateway.framing import Framing, tier_field
from streamfleet.gateway.messages.translation import to_engine
from streamfleet.gateway.offload import offload
from streamfleet.gateway.request_parameters import (
    SDK_TRIES,
    RequestParameters,
    body_to_enqueue,
    check_fields,
    leave_out_tools,
    request_id,
)
from streamfleet.gateway.responses.service import Asked
from streamfleet.gateway.streaming import Reading, open_stream
from streamfleet.gateway.token_budget import Reservation, used_tokens
from streamfleet.producer.client import Client
from streamfleet.producer.handle import Handle
from streamfleet.producer.mailbox import late
from streamfleet.producer.status import RUNNING

GRACE_S = 1.5
"""Time that a request's ending may take to come after its deadline: who ends it looks once a second."""
LOOK_S, LOOKS = 10.0, 5
"""Seconds between early white space, and after how many of them it begins: proxies cut what is silent for 60 s."""


class DirectRoute(APIRoute):
    """A route that calls its endpoint directly; the OpenAPI document shows it like any other.

    FastAPI's own handler would look for parameters and serialize the return value. Such an endpoint has neither, and
    the search takes 0.1 ms.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the endpoint itself: ``async def endpoint(request) -> Response``."""
        return self.endpoint


router = APIRouter(route_class=DirectRoute)
ERRORS = (400, 403, 404, 409, 413, 499, 504, "4XX", "5XX")
ANSWER, STREAMED = answers("EngineAnswer"), answers("EngineAnswer", JSON, SSE)
NAMED = (*WAITING, IDEMPOTENCY, EXPECTED)
STREAMING = (*NAMED, RESTARTS, AFTER, EVENT_IDS)
ENDPOINTS = {
    CHAT: ("chat", "ChatRequest", "A chat's next message."),
    COMPLETIONS: ("completions", "CompletionRequest", "A text's continuation."),
    EMBEDDINGS: ("embeddings", "EmbeddingRequest", "Vectors of texts."),
    RESPONSES: ("responses", "ResponseRequest", "An answer of the Responses API."),
    SCORE: ("score", "PoolingRequest", "Similarity of pairs of texts."),
    RERANK: ("rerank", "RerankRequest", "Documents by how well they fit a query."),
    CLASSIFY: ("classify", "PoolingRequest", "Classes of texts."),
    POOLING: ("pooling", "PoolingRequest", "Pooled output of a model for texts."),
    TOKENIZE: ("tokenize", "PoolingRequest", "Tokens of a prompt or of a conversation."),
    DETOKENIZE: ("detokenize", "DetokenizeRequest", "Text of tokens."),
    MESSAGES: ("messages", "MessageRequest", "A conversation's next message, in Anthropic's form."),
    COUNT_TOKENS: (
        "count_tokens",
        "MessageRequest",
        "Number of tokens of such a conversation. It counts towards no limit of tokens.",
    ),
}
"""All of them: name, schema of the body, description."""
ALIASES = {SCORE: ("/score",), RERANK: ("/v2/rerank", "/rerank")}
STREAMED_ENDPOINTS, ANTHROPICS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES), (MESSAGES, COUNT_TOKENS)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A request in the queue, and all that answering it needs.

    Attributes:
        context, parameters, client, handle: its parts.
        reservation: of the caller's tokens; None where it has no limit.
        model: the workers' name of its model; empty if it names none.
        fingerprint: equal for equal tries; empty if no other try may take the request over.
        said: fields of the answer that the gateway says, such as `service_tier`.
        record: of a response that is stored; None for none.
        stored: True if that is the answer, in place of a result.
    """

    context: AuthContext
    parameters: RequestParameters
    client: Client
    handle: Handle
    reservation: Reservation | None
    model: str
    fingerprint: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    record: ResponseRecord | None = None
    stored: bool = False

    @property
    def settles(self) -> bool:
        """True if its result is to be told to `settle`."""
        return self.reservation is not None or self.record is not None

    @property
    def wait_s(self) -> float:
        """Longest wait for the answer, in seconds."""
        return self.parameters.ttl_ms / 1000 + GRACE_S

    def abandon(self) -> None:
        """Nobody waits for it any more: cancel it, unless it is to go on."""
        self.context.gateway.run_in_background(self._cancel(), "cancel what nobody waits for")

    def leave(self) -> None:
        """The caller has no answer: let its next try take the request over, else `abandon` it."""
        gateway, tenant = self.context.gateway, self.context.caller.tenant
        if self.fingerprint and self.parameters.tries > 1:
            waiting = gateway.left_tries.keep(tenant, self.fingerprint, self.handle.id, self._cancel)
            gateway.run_in_background(waiting, "cancel what no other try takes over")
        else:
            self.abandon()

    async def settle(self, result: Result | None) -> None:
        """Charge the caller what the request used, and finish a stored response.

        Args:
            result: None where Redis lost the request.
        """
        if self.reservation is not None:
            used = 0 if result is None else used_tokens(result, self.reservation)
            await self.context.gateway.budget.settle(self.reservation, used)
        if self.record is not None and not self.record.ended and result is not None:
            await self.context.gateway.responses.finish(self.record, result)

    async def _cancel(self) -> None:
        if not self.parameters.continue_on_disconnect:
            await self.cancel()

    async def cancel(self) -> None:
        """Cancel the request, and have its tokens settled."""
        with contextlib.suppress(UnknownRequest):  # Redis lost it: nothing is left to cancel
            await self.handle.cancel()
        if self.reservation is not None:
            await self.context.gateway.budget.check_soon(self.reservation)


async def answer(request: Request, endpoint: str) -> Response:
    """From the request's body to its answer.

    Raises:
        ApiError, StreamfleetError: whatever the answer is instead.
        CallerLeft: there is nobody to answer.
    """
    enqueued = await enqueue(request, endpoint)
    if enqueued.parameters.stream:
        try:
            return await open_stream(_reading(enqueued, endpoint))
        except CallerLeft:  # before the headers: after them, SDKs do not try again
            enqueued.leave()
            raise
    if enqueued.record is not None and enqueued.stored:
        context = enqueued.context
        return JSONResponse(await context.gateway.responses.shown(enqueued.record, context.hold_answer))
    if enqueued.context.settings.gateway_early_space == "on":
        return EarlySpace(enqueued)
    return await whole_answer(enqueued)


async def whole_answer(enqueued: Enqueued, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Response:
    """The answer of a request that is not streamed. `meanwhile` is that of `wait_for`. Raises as `answer`."""
    try:
        result = await wait_for(enqueued, meanwhile)
    except RequestLost:
        enqueued.context.gateway.run_in_background(enqueued.settle(None), "put back tokens")
        raise
    if enqueued.settles:
        enqueued.context.gateway.run_in_background(enqueued.settle(result), "settle a request")
    if not result.ok:
        raise result_to_api_error(result)
    said = result.fields.get("response", "{}")
    if enqueued.said:
        said = json.dumps({**(result.response or {}), **enqueued.said}, separators=(",", ":"))
    return Response(said, media_type="application/json")


async def enqueue(request: Request, endpoint: str) -> Enqueued:
    """Check a request and put it into its queue. Raises as `answer`."""
    context = await authenticate(request, requests=1)
    gateway, call, caller = context.gateway, context.call, context.caller
    raw = await context.read_body(gateway.queue_settings.max_body_bytes, "STREAMFLEET_MAX_BODY_BYTES")
    name = request.headers.get("idempotency-key")
    digest = ""
    named_id = request_id(caller.owner, name) if name else ""
    asked, left_out = await _read(context, endpoint, raw, named_id)
    body, size = asked.body, len(raw) + asked.added
    parameters = context.read_parameters(body, background=asked.background)
    if parameters.tries and not name:
        digest = (await offload(len(raw), hashlib.blake2b, raw, digest_size=16)).hexdigest()
    del raw  # beside what was read from it, and what is sent of that
    chosen = await gateway.models.choose(body.get("model"), endpoint)
    context.show_ignored([*left_out, *gateway.models.ignored(chosen, endpoint, body)])
    fingerprint = digest and f"{caller.owner}/{chosen.queue}{endpoint}/{parameters.lane}/{digest}"
    left_id = await gateway.left_tries.take(fingerprint) if fingerprint and parameters.tries < SDK_TRIES else None
    own_id = left_id or named_id or request_id(caller.owner, None)
    call.set_request_id(own_id)
    parameters = _in_chain(parameters, asked, own_id)
    call.facts |= {"lane": parameters.lane.value, "queue": chosen.queue, "stream": parameters.stream}
    if asked.known is not None:
        return await _again(context, parameters, asked, asked.known)
    held = Held(chosen.queue, own_id, named=bool(name))
    reservation = await _reserve(context, held, endpoint, (body, size), taken_over=left_id is not None)
    try:
        client = await gateway.queues.client(chosen.queue)
        sent = body_to_enqueue(body, chosen.served, endpoint)
        ask = parameters.ask(
            sent, own_id, endpoint, caller.tenant, stream=parameters.stream, refuse_late=parameters.refuses_late
        )
        draft, expected = await offload(size, client.draft, ask), Expected()
        if parameters.tells_expected or draft.if_late:
            draft, expected = await client.judge_draft(draft)
        handle = await client.enqueue_draft(draft)
        if not handle.existing:
            context.show_expected(expected.place, expected.wait_ms)
        elif parameters.tells_expected:
            await context.show_status(handle)
    except (InvalidRequest, QueueFull, LikelyLate):
        if reservation is not None:
            gateway.run_in_background(gateway.budget.release(reservation), "put back tokens")
        raise  # after any other error the request may be in its queue: a gateway finds out
    said = {**asked.said, **tier_field(parameters.tier)}
    enqueued = Enqueued(context, parameters, client, handle, reservation, sent.get("model") or "", fingerprint, said)
    if asked.store:
        return await _store(enqueued, asked, chosen.queue)
    call.release()
    return enqueued


async def _reserve(
    context: AuthContext, held: Held, endpoint: str, asked: tuple[dict[str, Any], int], *, taken_over: bool
) -> Reservation | None:
    """Reserve the caller's tokens for a body of so many bytes, unless its first try did. Raises as `answer`."""
    if endpoint == COUNT_TOKENS:
        return None
    if taken_over:
        return context.gateway.budget.reserved_before(context.caller, held)
    reservation = await context.gateway.budget.reserve(context.caller, held, endpoint, [asked])
    context.show_limits()
    return reservation


async def _again(context: AuthContext, parameters: RequestParameters, asked: Asked, known: ResponseRecord) -> Enqueued:
    """A later try of a response that is stored: its request was enqueued, and charged."""
    client = await context.gateway.queues.client(known.queue)
    handle = client.handle(known.id)
    if parameters.tells_expected:
        await context.show_status(handle)
    context.call.release()
    said, stored = json.loads(known.said), asked.gone or asked.background
    return Enqueued(context, parameters, client, handle, None, "", said=said, record=known, stored=stored)


async def _read(context: AuthContext, endpoint: str, raw: bytes, named_id: str) -> tuple[Asked, list[str]]:
    """Returns what a call asks, and the names of tools that are left out. Raises as `answer`.

    `named_id` is as in `Responses.read`.
    """
    most_bytes = context.gateway.queue_settings.max_body_bytes
    body = await offload(len(raw), parse_body, raw, most_bytes)
    check_fields(endpoint, body)
    if endpoint != RESPONSES:
        body, left_out = to_engine(body) if endpoint in (MESSAGES, COUNT_TOKENS) else (body, [])
        return Asked(body, len(raw), store=False), left_out
    body, left_out = leave_out_tools(body)
    responses, hold = context.gateway.responses, context.hold_body
    return await responses.read(context.caller, body, len(raw), most_bytes, hold, named_id), left_out


def _in_chain(parameters: RequestParameters, asked: Asked, own_id: str) -> RequestParameters:
    """The parameters with the chain of a stored response as session, so that its turns find their cache."""
    if parameters.session is not None or not (asked.store or asked.root):
        return parameters
    return replace(parameters, session=asked.root or own_id)


async def _store(enqueued: Enqueued, asked: Asked, queue: str) -> Enqueued:
    """Store a response whose request was enqueued: its body counts as held until then. Raises as `answer`."""
    tenant = enqueued.context.caller.tenant or ""
    record = ResponseRecord(
        enqueued.handle.id,
        tenant,
        queue,
        asked.previous,
        asked.root or enqueued.handle.id,
        background=asked.background,
        callback_url=asked.callback_url,
        digest=asked.digest,
    )
    try:
        record = await enqueued.context.gateway.responses.open(
            record, asked, enqueued.said, existing=enqueued.handle.existing
        )
    except (ApiError, StreamfleetError):
        if not enqueued.context.request.headers.get("idempotency-key"):  # with one, its next try stores it
            enqueued.context.gateway.run_in_background(enqueued.cancel(), "cancel what cannot be stored")
        raise
    enqueued.context.call.release()
    return replace(enqueued, record=record, stored=asked.background)


async def wait_for(enqueued: Enqueued, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Result:
    """A request's result.

    Args:
        enqueued: the request.
        meanwhile: called every `LOOK_S` seconds.

    Raises:
        CallerLeft: the caller did not wait for it.
        ApiError: the process stops, or the caller's key ends.
        ResultTimeout: nobody ended it, though its deadline has passed.
        RequestLost: Redis lost it.
    """
    # No task of its own: it would be one more step between a result and its answer.
    with (
        enqueued.handle.awaited() as future,
        enqueued.context.watcher(enqueued.parameters.lane) as watcher,
    ):
        try:
            left_s = enqueued.wait_s
            while meanwhile is not None and left_s > LOOK_S and not await watcher.wait(future, LOOK_S):
                left_s -= LOOK_S
                await meanwhile()
            if not await watcher.wait(future, left_s):
                raise late(enqueued.handle.id, enqueued.wait_s)
        except CallerLeft:
            enqueued.leave()
            raise
        except ApiError:
            enqueued.abandon()
            raise
        return future.result()


class EarlySpace(Response):
    """The answer of a request that is not streamed, with white space before its JSON if it takes long.

    White space takes the status 200 with it. So it begins only when a worker has run the request at two looks: what the
    engine refuses has ended by then. What fails all the same, is a cut connection.
    """

    media_type = "application/json"

    def __init__(self, enqueued: Enqueued) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._enqueued = enqueued
        self._looks, self._attempt, self._begun = 0, 0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answered = await whole_answer(self._enqueued, lambda: self._look(send))
        except (CallerLeft, StreamfleetError, ApiError) as error:
            if not self._begun:
                raise
            self._enqueued.context.call.facts["cut"] = not isinstance(error, CallerLeft)
            scope["state"]["abort"]()
            return
        if self._begun:
            await send({"type": "http.response.body", "body": answered.body})
        else:
            await answered(scope, receive, send)

    async def _look(self, send: Send) -> None:
        self._looks += 1
        if self._looks >= LOOKS - 1 and not self._begun:
            before, self._attempt = self._attempt, 0
            with contextlib.suppress(StreamfleetError):  # Redis is away: nobody knows whether it runs
                status = await self._enqueued.handle.status()
                self._attempt = status.attempt if status.state == RUNNING else 0
            if not before or before != self._attempt:
                return
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._begun:
            await send({"type": "http.response.body", "body": b" ", "more_body": True})


def _reading(enqueued: Enqueued, endpoint: str) -> Reading:
    parameters = enqueued.parameters
    return Reading(
        context=enqueued.context,
        client=enqueued.client,
        handle=enqueued.handle,
        after=parameters.after,
        restart_events=parameters.restart_events,
        wait_s=enqueued.wait_s,
        on_left=enqueued.abandon,
        on_result=enqueued.settle if enqueued.settles else None,
        framing=Framing(
            parameters.event_ids,
            parameters.tier,
            endpoint,
            enqueued.handle.id,
            enqueued.model,
            said=enqueued.said,
        ),
        lane=parameters.lane,
        at_once=parameters.tells_expected,
    )


def _answering(endpoint: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def handle(request: Request) -> Response:
        return await answer(request, endpoint)

    return handle


def _add_routes() -> None:
    for endpoint, (name, schema, about) in ENDPOINTS.items():
        good, headers = (STREAMED, STREAMING) if endpoint in STREAMED_ENDPOINTS else (ANSWER, NAMED)
        error, tag = ("MessageError", "messages") if endpoint in ANTHROPICS else ("Error", "models")
        described = operation({200: good}, ERRORS, body(schema), headers, error=error)
        for path in (endpoint, *ALIASES.get(endpoint, ())):
            router.add_api_route(
                path,
                _answering(endpoint),
                methods=["POST"],
                name=name,
                description=about,
                tags=[tag],
                **described,
            )


_add_routes()
