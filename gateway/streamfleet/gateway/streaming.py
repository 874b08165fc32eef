"""Server-sent events while tokens are generated: OpenAI's chunks or events, with ids to resume from, and an end.

`open_stream` takes a `Reading` and returns the response. Chunks come from the client library and go to the connection,
directly where `edge` allows that. It waits for the first event, so that an early failure is an answer with a status.
GET /v1/streams reads a stream again, from its beginning or from the last chunk that a reader has; so does GET
/v1/responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from streamfleet.common.errors import InvalidRequest, RequestFailed, RequestLost, StreamfleetError
from streamfleet.common.protocol import RESPONSES, Lane
from streamfleet.common.results import Result
from streamfleet.gateway import metrics
from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.broker.responses import PREFIX
from streamfleet.gateway.disconnect import CallerLeft, DisconnectWatcher
from streamfleet.gateway.document import AFTER, EXPECTED, RESTARTS, SSE, answers, operation
from streamfleet.gateway.edge import DirectWriter
from streamfleet.gateway.errors import (
    SERVER,
    ApiError,
    exception_to_api_error,
    request_not_found,
    result_to_api_error,
)
from streamfleet.gateway.framing import DONE, NAMED_EVENTS, Framing, frame
from streamfleet.gateway.gateway import Gateway
from streamfleet.gateway.request_parameters import belongs_to, read_restart_events, read_tells_expected
from streamfleet.producer.client import Client
from streamfleet.producer.follower import ending_of
from streamfleet.producer.handle import Handle
from streamfleet.producer.streaming import Chunk, Event, Missed, Restarted
from streamfleet.producer.streaming import Reading as Tokens

log = structlog.get_logger(__name__)
KEEP_ALIVE_S = 25.0
"""Longest silence of a stream: proxies cut connections after 60 s without a byte, the strictest after 30 s."""
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class Reading:
    """A caller's reading of one request's tokens.

    Attributes:
        context, client, handle: the reader with its HTTP request, the queue's client, and the queued request.
        after: id of the last chunk that the reader has, or its number of the first run's events; None to read from the
            beginning.
        restart_events: True if the reader understands that a stream begins anew.
        wait_s: longest time until the end of the stream.
        on_left: called when the reader leaves after the headers, or its stream is cut.
        on_result: called with the result, or with None if Redis lost the request; None to call nothing.
        framing: the form in which the reader gets the answer.
        lane: lane of a request that this call sent; None for one that it only reads.
        at_once: True to send the headers before the first event: the caller asks for what they say of its wait.
    """

    context: AuthContext
    client: Client
    handle: Handle
    after: str | int | None
    restart_events: bool
    wait_s: float
    on_left: Callable[[], None]
    on_result: Callable[[Result | None], Coroutine[Any, Any, None]] | None = None
    framing: Framing = field(default_factory=lambda: Framing(event_ids=True, endpoint=""))
    lane: Lane | None = None
    at_once: bool = False

    @property
    def reads_again(self) -> bool:
        """True if the call sent no request: it may come from an EventSource, which reconnects after any 200."""
        return self.lane is None

    @property
    def live(self) -> bool:
        """True if the tokens are read while they are generated: only then does their lag measure this gateway."""
        return self.after is None and not self.handle.existing


def _restart_error(event: Restarted) -> ApiError:
    """Returns the error for readers that do not understand restarts."""
    text = (
        "the answer begins anew in another run: what was streamed so far does not count; read it from its beginning, "
        "or send the request again"
    )
    return ApiError(503, text, "stream_restarted", SERVER, param=str(event.attempt))


def _missed_chunks_error(event: Missed) -> ApiError:
    """Returns the error for readers that missed chunks."""
    text = (
        f"{event.chunks} chunks are not there any more; for the whole answer ask again without stream, or, once it has "
        "ended, from the beginning"
    )
    return ApiError(503, text, "stream_incomplete", SERVER)


async def frames(reading: Reading, tokens: Tokens) -> AsyncGenerator[bytes, None]:
    """Yields the events of a stream, up to [DONE] or an error.

    Raises:
        ApiError, StreamfleetError: the request ended without success before the first event.
    """
    shown, told = reading.after is not None, False
    async with contextlib.aclosing(tokens.events()) as groups:
        try:
            async for came in groups:
                if reading.live:
                    _observe_lags(came, reading.context.gateway.clock.now_ms())
                sent, error = encode_events(came, reading.restart_events, reading.framing, shown=shown)
                if error is not None:
                    if not (shown or sent) and await _succeeded(reading):
                        break
                    reading.on_left()  # nobody reads the new attempt
                    begun = told or bool(sent) or (shown and not reading.reads_again)
                    yield sent + _error(reading, error, begun=begun)
                    return
                if sent:
                    shown = told = True
                    yield sent
        except RequestFailed as failure:
            result = await reading.client.result(failure.id, 0)
            _settle(reading, result)
            yield _error(reading, result_to_api_error(result), begun=told or (shown and not reading.reads_again))
            return
        except RequestLost:
            _settle(reading, None)
            raise
    without = not told and not isinstance(reading.after, str)
    if without or reading.on_result is not None:
        result = await reading.client.result(reading.handle.id, 0)
        if without and (rest := reading.framing.whole(result.response or {}, ending_of(result).chunks or 0)):
            yield rest
        _settle(reading, result)
    yield DONE


async def _succeeded(reading: Reading) -> bool:
    """True if there is a whole answer to send in place of chunks that are gone."""
    result = await reading.client.broker.result(reading.handle.id)
    return result is not None and result.ok


def _error(reading: Reading, error: ApiError, *, begun: bool) -> bytes:
    """Returns an error as an event; raises it if the stream has not begun, so that it keeps its status."""
    if not begun:
        raise error from None
    return reading.framing.error(error)


def _settle(reading: Reading, result: Result | None) -> None:
    if reading.on_result is not None:
        reading.context.gateway.run_in_background(reading.on_result(result), "settle tokens")


def _observe_lags(events: Iterable[Event], now_ms: float) -> None:
    for event in events:
        if isinstance(event, Chunk):
            metrics.observe_lag(event.id, now_ms)


def encode_events(
    events: Iterable[Event], restart_events: bool, framing: Framing, *, shown: bool
) -> tuple[bytes, ApiError | None]:
    """Returns events as bytes, and the error that ends the stream after them, or None."""
    parts: list[bytes] = []
    for event in events:
        match event:
            case Chunk():
                if not (shown or parts):
                    framing.learn(event.raw)
                parts.append(framing.chunk(event.id, event.raw))
            case Restarted():
                if not shown:  # the reader has seen nothing of the former attempt
                    parts.clear()
                    continue
                if not restart_events:
                    return b"".join(parts), _restart_error(event)
                parts.append(frame({"attempt": event.attempt}, event="restart"))
            case Missed():
                if not restart_events:
                    return b"".join(parts), _missed_chunks_error(event)
                parts.append(frame({"chunks": event.chunks}, event="missed"))
    return b"".join(parts), None


async def open_stream(reading: Reading) -> Response:
    """Returns the answer after its first event, or after a first wait: an early failure becomes an answer of its own.

    A caller that asks for place and expected time gets it at once. One that reads an ended stream behind its last event
    gets 204: an EventSource comes back after any 200.

    Raises:
        ApiError, StreamfleetError: the request failed before its first event.
        CallerLeft: the caller left before that; the caller of this function decides what becomes of the request.
    """
    tokens = reading.client.reading(reading.handle, reading.after, fresh=reading.live)
    source = frames(reading, tokens)
    watcher = reading.context.watcher(reading.lane)
    first = asyncio.ensure_future(anext(source))
    watcher.__enter__()
    try:
        if not reading.at_once:
            await watcher.wait(first, KEEP_ALIVE_S)
        if first.done() and first.result() == DONE and reading.reads_again:
            await _finish(first, source, watcher)
            return Response(status_code=204)
        return EventStream(reading, tokens, source, first, watcher)
    except BaseException as error:
        if isinstance(error, ApiError) and not first.done():
            reading.on_left()
        await _finish(first, source, watcher)
        raise


class EventStream(Response):
    """Events as they come, until the stream ends or its reader leaves.

    Args:
        reading: the reader and its request.
        tokens: source of the chunks that are written directly.
        source: the events after the first.
        first: the first event, possibly still to come.
        watcher: watches the caller; this response ends it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        reading: Reading,
        tokens: Tokens,
        source: AsyncGenerator[bytes, None],
        first: asyncio.Future[bytes],
        watcher: DisconnectWatcher,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._reading, self._tokens, self._source = reading, tokens, source
        self._first, self._watcher = first, watcher
        self._writer: DirectWriter | None = None
        # Where the first event is still to come, the caller has heard nothing for as long as one may hear nothing.
        self._sent_s = asyncio.get_running_loop().time() if first.done() or reading.at_once else -math.inf
        self._last = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the signature is ASGI's
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._writer = scope.get("state", {}).get("direct_writer")
        metrics.STREAMS.inc()
        ended = metrics.CUT
        pump = asyncio.ensure_future(self._pump(send))
        try:
            await self._wait_until_sent(pump, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            ended = metrics.WHOLE if self._last.endswith(DONE) else metrics.ERROR
        except CallerLeft:
            ended = metrics.LEFT
            self._reading.context.call.facts["left"] = True
            self._reading.on_left()
        except Exception:  # the caller does not read, or sending failed: nobody reads on
            self._reading.on_left()
            raise
        finally:
            metrics.STREAMS.dec()
            metrics.STREAMS_ENDED.labels(ended).inc()
            await _finish(pump, self._source, self._watcher)

    async def _pump(self, send: Send) -> None:
        try:
            await self._send(send, await self._first)
            call = self._reading.context.call
            if self._reading.after is None:
                metrics.FIRST_TOKEN.observe(self._sent_s - call.began_s)
            if self._writer is not None:
                self._tokens.straight(self._writer.ready, self._write_directly)
            async for data in self._source:
                await self._send(send, data)
        except ApiError as error:
            await self._send(send, self._reading.framing.error(error))
        except StreamfleetError as error:
            log.warning("stream_broke", request_id=self._reading.handle.id, error=str(error))
            await self._send(send, self._reading.framing.error(exception_to_api_error(error)))

    def _write_directly(self, stream_id: str, chunks: list[str]) -> None:
        """Write chunks directly: with a thousand streams, waking a task for each group costs a quarter of the time."""
        if self._writer is None:
            return
        self._writer.write(self._reading.framing.group(stream_id, chunks))
        self._sent_s = asyncio.get_running_loop().time()
        if self._reading.live:
            metrics.observe_lag(f"{stream_id}/0", self._reading.context.gateway.clock.now_ms())

    async def _wait_until_sent(self, pump: asyncio.Future[None], send: Send) -> None:
        """Wait until all is sent; break each silence; give up after `wait_s`."""
        loop = asyncio.get_running_loop()
        give_up_s, broken_s = loop.time() + self._reading.wait_s, -math.inf
        try:
            while True:
                due_s = max(self._sent_s, broken_s) + KEEP_ALIVE_S
                if await self._watcher.wait(pump, max(0.0, min(due_s, give_up_s) - loop.time())):
                    break
                if loop.time() >= give_up_s:
                    text = "the request was not answered before its deadline"
                    raise ApiError(504, text, "deadline_exceeded", SERVER)  # noqa: TRY301 - reported like an error of the pump
                if loop.time() - self._sent_s >= KEEP_ALIVE_S:
                    await self._keep_alive(send, give_up_s - loop.time())
                    broken_s = loop.time()
            pump.result()
        except ApiError as error:
            if pump.done():  # it has said how it ended
                return
            pump.cancel()
            await asyncio.wait((pump,))
            self._reading.on_left()
            await self._send(send, self._reading.framing.error(error))

    async def _keep_alive(self, send: Send, wait_s: float) -> None:
        """Break a silence, unless events are on their way: it would stand inside of one that is sent in pieces.

        Then wait for the connection, as long as that: so the reader's pace is measured.
        """
        if self._writer is None or self._writer.ready():
            if not self._reading.context.call.midway:
                gateway, framing = self._reading.context.gateway, self._reading.framing
                now_s = gateway.clock.now_ms() // 1000
                await self._send(send, framing.keep_alive(now_s, gateway.models.default_model))
            return
        nothing = asyncio.ensure_future(send({"type": "http.response.body", "body": b"", "more_body": True}))
        try:
            if await self._watcher.wait(nothing, wait_s):
                nothing.result()
        finally:
            nothing.cancel()
            await asyncio.wait((nothing,))

    async def _send(self, send: Send, data: bytes) -> None:
        if data != DONE or self._reading.framing.endpoint not in NAMED_EVENTS:  # whose last event is the end
            await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_s = asyncio.get_running_loop().time()
        self._last = data


async def _finish(task: asyncio.Future[Any], source: AsyncGenerator[bytes, None], watcher: DisconnectWatcher) -> None:
    task.cancel()
    await asyncio.wait((task,))
    await source.aclose()
    watcher.__exit__()


router = APIRouter(tags=["models"])
_ERRORS = (400, 404, 499, 504, "4XX", "5XX")
ENDED = {"description": "the stream has ended, and nothing is left behind `Last-Event-ID`"}


@router.get(
    "/v1/streams/{request_id}",
    **operation({200: answers("EngineAnswer", SSE), 204: ENDED}, _ERRORS, parameters=(AFTER, RESTARTS, EXPECTED)),
)
async def stream(request: Request, request_id: str) -> Response:
    """The tokens of a request that was sent with `stream`, by the `x-streamfleet-id` of its answer.

    `Last-Event-ID` resumes after that event. Reading changes nothing, and leaving cancels nothing.
    """
    return await _read_again(await authenticate(request, requests=1), request, request_id)


async def response_stream(request: Request, response_id: str) -> Response:
    """The events of a response that was streamed, as long as they are kept. Its `id` has that of its request."""
    context, asked = await authenticate(request, requests=1), request.query_params
    after = asked.get("starting_after", "")
    if not (after.isascii() and after.isdigit() and len(after) < 10) and after:
        raise InvalidRequest("must be the sequence_number of an event", "starting_after")
    had = int(after or -1) + 1
    return await _read_again(context, request, response_id.removeprefix(PREFIX), RESPONSES, had)


async def _read_again(
    context: AuthContext, request: Request, request_id: str, endpoint: str = "", had: int = 0
) -> Response:
    """Answer with a request's events from the beginning, or behind what the reader has.

    Args:
        context, request: the reader.
        request_id: the request, if it is the reader's.
        endpoint: the only one that the request may be of; empty for any.
        had: number of events that the reader has; `Last-Event-ID` counts where it is given.
    """
    client = await _find_client(context.gateway, request_id) if belongs_to(context.caller.owner, request_id) else None
    if client is None:
        raise request_not_found()
    context.call.set_request_id(request_id)
    handle, tells = client.handle(request_id), read_tells_expected(request.headers)
    if tells:
        await context.show_status(handle)
    reading = Reading(
        context=context,
        client=client,
        handle=handle,
        after=request.headers.get("last-event-id") or had or None,
        restart_events=read_restart_events(request.headers),
        wait_s=context.settings.gateway_max_wait_ms / 1000,
        on_left=lambda: None,
        framing=Framing(event_ids=True, endpoint=endpoint, had=had),
        at_once=tells,
    )
    return await open_stream(reading)


async def _find_client(gateway: Gateway, request_id: str) -> Client | None:
    """Returns the client of the queue that knows a request; None if no queue does."""
    for queue in gateway.models.queues:
        client = await gateway.queues.client(queue)
        if await client.broker.record(request_id) or await client.broker.result(request_id):
            return client
    return None
