"""The asynchronous client: enqueues requests, and waits for results and tokens.

It connects the sender (requests out), the mailbox (results in) and the feeds (tokens in) to one broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar, Unpack, overload

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.types import Expected, Submission
from streamfleet.common.connection import ANSWER_TIMEOUT_S
from streamfleet.common.errors import (
    ClientClosed,
    InvalidRequest,
    NotPermitted,
    RequestLost,
    ResultTimeout,
    UnknownRequest,
)
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result
from streamfleet.common.settings_queue import QueueSettings, load
from streamfleet.producer.ask import DOWNGRADE, Ask, Draft, Options, as_ask
from streamfleet.producer.events import Chunk, Event, Restarts
from streamfleet.producer.feeds import Feeds
from streamfleet.producer.handle import Arrivals, Handle
from streamfleet.producer.mailbox import Mailbox
from streamfleet.producer.sender import Outcome, Sender
from streamfleet.producer.status import StatusView, look_up
from streamfleet.producer.streaming import Reading, Streams, check_restarts, stream
from streamfleet.producer.window import Asks, AsyncAsks, Run

T = TypeVar("T")
CANCEL_PATIENCE_S = 5.0


class _Parts(NamedTuple):
    """Parts of an open client."""

    broker: ProducerBroker
    mailbox: Mailbox
    feeds: Feeds
    sender: Sender


class Client:
    """Enqueues requests and waits for their results. An asynchronous context manager.

    After it is closed, and in a process that was forked while it was open, every method raises ClientClosed. A server
    that forks its workers must open a client in each of them, after the fork. An open client belongs to its event loop:
    in another `asyncio.run`, and in another thread's loop, every method raises WrongEventLoop.

    Args:
        url: Redis URL; default: REDIS_URL, then redis://localhost:6379/0.
        queue: name of the queue; default: STREAMFLEET_QUEUE, then ``default``.
        settings: all settings of the queue, in place of the environment; `url` and `queue` take precedence.
        patience_s: time for which an operation is retried while Redis cannot be reached, in seconds; None for ever.
        answer_timeout_s: longest wait of one try for Redis's answer, in seconds. If that is shorter than the patience,
            an operation ends within the patience also if Redis hangs.
        notify: True to get notifications of results. False polls for results, up to a second late; use it in clients
            that enqueue and leave, which would not read notifications.

    Raises:
        SettingsError: a setting is wrong (at once).
        BrokerUnavailable: no server answers at the address (on entering).
        UnknownProtocol: this version does not know the queue's protocol (on entering, and when enqueueing).
    """

    def __init__(
        self,
        url: str | None = None,
        queue: str | None = None,
        *,
        settings: QueueSettings | None = None,
        patience_s: float | None = 5.0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        notify: bool = True,
    ) -> None:
        given = {} if settings is None else settings.model_dump()
        given |= {name: value for name, value in (("redis_url", url), ("queue", queue)) if value is not None}
        self.settings = load(QueueSettings, **given)
        self._patience_s, self._answer_timeout_s = patience_s, answer_timeout_s
        self._notify = notify
        self._asks_to_cancel = False
        self._parts: _Parts | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._parts is not None and not self._parts.broker.connection.abandoned:
            self._parts.broker.connection.check()
        broker = ProducerBroker.open(self.settings, self._patience_s, self._answer_timeout_s)
        try:
            await broker.connection.ping()
            await broker.refresh_configuration()
        except BaseException:
            await broker.close()
            raise
        mailbox = Mailbox(broker, _reply_name())
        feeds = Feeds(lambda: ProducerBroker.open(self.settings, 0))
        sender = Sender(broker, mailbox, self, self.settings, self._notify)
        self._parts, self._closed = _Parts(broker, mailbox, feeds, sender), False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client; enqueued requests continue.

        Calls in progress in other tasks end with ClientClosed at once; its docstring tells about requests that were
        just being enqueued. Only `async with` opens the client again. In a forked process this does nothing.

        Raises:
            WrongEventLoop: the event loop that opened it still runs, and is another one.
        """
        if self._parts is not None and self._parts.broker.connection.inherited:
            return
        if self._parts is not None and not self._parts.broker.connection.abandoned:
            self._parts.broker.connection.check_loop()
        parts, self._parts, self._closed = self._parts, None, True
        if parts is not None and not parts.broker.connection.abandoned:
            parts.broker.connection.shut()
            try:
                await asyncio.gather(parts.feeds.close(), parts.mailbox.close())
            finally:
                await parts.broker.close()

    def another(self) -> Client:
        """A client with the same arguments, not open."""
        return Client(
            settings=self.settings,
            patience_s=self._patience_s,
            answer_timeout_s=self._answer_timeout_s,
            notify=self._notify,
        )

    @property
    def broker(self) -> ProducerBroker:
        """The queue's operations, for uses that this client has no method for."""
        return self._open.broker

    @property
    def mailbox(self) -> Mailbox:
        """The part that waits for results."""
        return self._open.mailbox

    @property
    def _open(self) -> _Parts:
        if self._closed:
            raise ClientClosed("the client was closed: `async with` opens it again")
        if self._parts is None:
            raise RuntimeError("the client is not open: use it as `async with Client(...) as fleet:`")
        return self._parts

    # -- putting in ----------------------------------------------------------------------------------------

    async def enqueue(self, body: Mapping[str, Any], **options: Unpack[Options]) -> Handle:
        """Enqueue one request: an OpenAI body, and `Options`.

        Raises:
            InvalidRequest: a field is wrong; nothing was sent.
            Conflict: the id belongs to a request with another body or endpoint.
            QueueFull: the lane holds as many requests, or bytes, as its limits allow.
            LikelyLate: it would likely be late, and asks to be refused then; nothing was enqueued.
            ClientClosed: the client was closed, before or meanwhile. In the second case Redis may or may not have
                accepted the request: if the caller chose the id, `status` tells.
            NotReplicated: Redis took it, but too few replicas had it in time (STREAMFLEET_ENQUEUE_REPLICAS).
            BrokerUnavailable, BrokerOutOfMemory: Redis did not accept it; with an `id`, trying again is safe.
        """
        return await self._open.sender.enqueue(as_ask({**options, "body": body}))

    async def enqueue_many(self, asks: Iterable[Ask | Mapping[str, Any]]) -> list[Handle]:
        """Enqueue Asks, or dicts with the names of its fields, in order; all are checked before one is sent.

        They are sent in calls of up to 200 requests or a megabyte. A refused request stops the calls after its own;
        later requests of the same call may be accepted. The error's `accepted` holds the handles of all accepted
        requests, in order. If the caller chose no ids, send only the others again, or the accepted ones run twice.

        Raises:
            InvalidRequest: a field is wrong; nothing was sent.
            Conflict: an id belongs to a request with another body or endpoint; also if a lane was full as well, because
                waiting does not help.
            QueueFull: a lane was full.
            LikelyLate: one would likely be late, and asks to be refused then; none was enqueued.
            NotReplicated: Redis took the requests of the last call, its `unconfirmed`, but too few replicas had them.
            BrokerUnavailable, BrokerOutOfMemory: Redis did not accept all; if an answer was lost, it may have accepted
                some that are not in `accepted`. With ids chosen by the caller, sending all again is safe.
        """
        return await self._open.sender.enqueue_many(asks)

    def run_many(self, asks: Asks | AsyncAsks, concurrency: int = 100) -> AsyncGenerator[Result, None]:
        """Enqueue requests as earlier ones end, and yield their results as they arrive.

        At most `concurrency` requests are outstanding, and only about as many are in memory: a million prompts may come
        from a generator. It waits while a lane is full. If the caller leaves early (contextlib.aclosing), enqueued
        requests continue.

        Args:
            asks: as for `enqueue_many`; read as there is room. An asynchronous iterable may be slow.
            concurrency: largest number of outstanding requests.

        Raises:
            InvalidRequest, Conflict, or an error of `asks`: nothing more is read from `asks`; raised after the results
                of all earlier requests.
            RequestLost: Redis lost the requests in its `ids`; raised after all other results.
            BrokerUnavailable, BrokerOutOfMemory, NotReplicated: as `enqueue_many`.
        """
        return _each(self.run(asks, concurrency))

    def stream_many(
        self, asks: Asks | AsyncAsks, concurrency: int = 100
    ) -> AsyncGenerator[tuple[str, Event | Result], None]:
        """As `run_many`, with streamed tokens: yields pairs of a request id and an event or result.

        All requests are enqueued with `stream=True`. Each yields its chunks, `Restarted` or `Missed` where
        `Handle.stream` would raise StreamBroken, and last its result, also if it failed. The others continue.

        Args:
            asks, concurrency: as of `run_many`.

        Raises:
            InvalidRequest, Conflict, RequestLost and the others: as of `run_many`.
        """
        return _each(self.streaming_run(asks, concurrency))

    def run(self, asks: Asks | AsyncAsks, concurrency: int) -> Run[Result]:
        """The steps of `run_many`, for a caller with a loop of its own."""
        return Run(self.submit, self.arrivals(), asks, concurrency, lambda ask: self.prepare(as_ask(ask)))

    def streaming_run(self, asks: Asks | AsyncAsks, concurrency: int) -> Run[tuple[str, Event | Result]]:
        """The steps of `stream_many`."""
        self._open  # noqa: B018 - raises
        streams = Streams(lambda handle: self.reading(handle, None, fresh=not handle.existing))
        return Run(self.submit, streams, asks, concurrency, lambda ask: self.prepare(replace(as_ask(ask), stream=True)))

    def draft(self, ask: Ask) -> Draft:
        """Check and encode a request for `enqueue_draft`. Large requests are slow; any thread may call this.

        Raises:
            InvalidRequest: a field is wrong.
        """
        return self._open.sender.draft(ask, secrets.token_hex(16))

    async def judge_draft(self, draft: Draft) -> tuple[Draft, Expected]:
        """Place and time that a draft would have now; one round trip.

        Returns:
            The draft as its `if_late` asks, to be enqueued without another look; and what is expected of it as it was.

        Raises:
            LikelyLate: it would likely be late, and asks to be refused then.
        """
        return await self._open.sender.judge_draft(draft)

    async def enqueue_draft(self, draft: Draft) -> Handle:
        """Enqueue a draft. Raises as `enqueue`."""
        return await self._open.sender.enqueue_draft(draft)

    def prepare(self, ask: Ask) -> Submission:
        """Check and encode a request for `submit`. Raises InvalidRequest.

        What it asks for in `if_late`, is judged when a worker stages it.
        """
        if ask.if_late == DOWNGRADE:
            raise InvalidRequest("must be refuse: only `enqueue` and `enqueue_many` choose another lane", "if_late")
        return self.draft(ask).submission()

    async def submit(self, chunk: Sequence[Submission]) -> list[Outcome]:
        """Enqueue up to `chunks.MAX_COUNT` requests in one script call. Returns each outcome; no handle if refused.

        Raises:
            NotReplicated: too few replicas have them; its `unconfirmed` holds the handles of all that were not refused.
        """
        return await self._open.sender.submit(chunk)

    # -- getting out ---------------------------------------------------------------------------------------

    def handle(self, request_id: str) -> Handle:
        """A handle for the id of an enqueued request; sends nothing yet."""
        return Handle(request_id, True, "", self.mailbox, None, self)

    async def result(self, request_id: str, timeout: float | None = None) -> Result:
        """A request's result, by its id.

        Args:
            request_id: its id, or ``<lane>:<stream id>`` of a request without one.
            timeout: seconds; 0 checks once, None waits for ever.

        Raises:
            ResultTimeout: the result did not arrive in time.
            RequestLost: Redis had the request during this wait, and lost it. An unknown request may still be enqueued.
        """
        if timeout is not None and timeout <= 0:
            result = await self.broker.result(request_id)
            if result is None:
                raise ResultTimeout(f"request {request_id} has no result yet")
            return result
        return await self.mailbox.wait(self.mailbox.slot(request_id), timeout)

    @overload
    def stream(
        self, request_id: str, after: str | None = None, restarts: Literal["raise"] = "raise"
    ) -> AsyncGenerator[Chunk, None]: ...

    @overload
    def stream(
        self, request_id: str, after: str | None = None, *, restarts: Literal["tell"]
    ) -> AsyncGenerator[Event, None]: ...

    @overload
    def stream(
        self, request_id: str, after: str | None = None, restarts: Restarts = "raise"
    ) -> AsyncGenerator[Event, None]: ...

    def stream(
        self, request_id: str, after: str | None = None, restarts: Restarts = "raise"
    ) -> AsyncGenerator[Event, None]:
        """Chunks of a request as they are generated, by its id; as `Handle.stream`."""
        return self.follow(self.handle(request_id), after, restarts)

    def follow(self, handle: Handle, after: str | None, restarts: Restarts) -> AsyncGenerator[Event, None]:
        """Implementation of `Handle.stream`."""
        check_restarts(restarts)
        return stream(self.reading(handle, after), handle.id, restarts)

    def reading(self, handle: Handle, after: str | int | None, *, fresh: bool = False) -> Reading:
        """A reader of a request's tokens, in groups. Raises InvalidRequest if `after` is not a chunk's id.

        Args:
            handle: the request.
            after: id of the last chunk that the reader has, or its number of chunks of the first run; None to start at
                the beginning.
            fresh: the request was just enqueued, so no earlier tokens need to be read.
        """
        parts = self._open
        return Reading(parts.broker, parts.feeds, parts.mailbox, handle, after, fresh=fresh)

    async def as_completed(self, handles: Iterable[Handle], timeout: float | None = None) -> AsyncIterator[Result]:
        """Yield the results as they arrive.

        Raises:
            ResultTimeout: `timeout` seconds passed before all had arrived.
            RequestLost: Redis lost the requests in its `ids`; raised after all other results.
        """
        async with contextlib.aclosing(self._groups(handles, timeout)) as groups:
            async for results in groups:
                for result in results:
                    yield result

    async def _groups(self, handles: Iterable[Handle], timeout: float | None) -> AsyncGenerator[list[Result], None]:
        """As `as_completed`, in groups of results that arrived together."""
        arrivals = self.arrivals()
        arrivals.add(handles)
        give_up = None if timeout is None else _loop_time() + timeout
        lost: list[str] = []
        try:
            while len(arrivals):
                came = await arrivals.take(None if give_up is None else max(0.0, give_up - _loop_time()))
                if not came:
                    also = f"; {RequestLost(*lost)}" if lost else ""
                    left = len(arrivals)
                    raise ResultTimeout(f"{left} requests have no result after {timeout:g} s; they go on{also}")
                lost += [each.id for each in came if isinstance(each, RequestLost)]
                if results := [each for each in came if isinstance(each, Result)]:
                    yield results
        finally:
            arrivals.close()
        if lost:
            raise RequestLost(*dict.fromkeys(lost))

    def arrivals(self) -> Arrivals:
        """An empty, growing set of requests to wait for."""
        return Arrivals(self.mailbox)

    async def cancel(self, request_id: str, before_it_comes: timedelta | None = None) -> bool:
        """Cancel a request, queued or running. False if it had already ended in another way.

        A Redis user with a producer's role may not write results. Then this asks a worker, and waits about a second for
        it.

        Args:
            request_id: its id, or ``<lane>:<stream id>`` of one without.
            before_it_comes: time for which a request that the queue has not seen yet is cancelled when it comes.

        Raises:
            UnknownRequest: the queue has never seen it; nothing was changed. Not with `before_it_comes`. A producer may
                not read what became of its ask, so it learns this only when no result has come for 5 s.
            ResultTimeout: no worker has done it within 5 s. The cancel request stays queued for the next worker.
        """
        before_ms = None if before_it_comes is None else max(1, round(before_it_comes / timedelta(milliseconds=1)))
        if not self._asks_to_cancel:
            try:
                return await self.broker.cancel(request_id, before_ms=before_ms)
            except NotPermitted:
                self._asks_to_cancel = True
        return await ask_to_cancel(self.broker, self.mailbox, request_id, before_ms=before_ms)

    async def status(self, request_id: str, tenant: str | None = None, rank_ms: int | None = None) -> StatusView:
        """Current state of a request.

        Args:
            request_id: its id.
            tenant, rank_ms: its tenant, empty for none, and its rank, as its handle knows them. Without them the place
                of a request with a tenant is not known, unless the Redis user may read entries.
        """
        return await look_up(self.broker, request_id, tenant, rank_ms)


async def _each(run: Run[T]) -> AsyncGenerator[T, None]:
    came: list[T] = []
    try:
        while True:
            while chunk := run.chunk():
                await run.submit(chunk)
            for each in came:  # the next requests are already enqueued, so a slow caller holds up nothing
                yield each
            if run.over:
                return
            came = await run.take()
    finally:
        await run.close()


def _reply_name() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def ask_to_cancel(
    broker: ProducerBroker,
    mailbox: Mailbox,
    request_id: str,
    patience_s: float = CANCEL_PATIENCE_S,
    before_ms: int | None = None,
) -> bool:
    """Ask workers to cancel a request, and wait for its result. True if it ended as cancelled; False also if it was
    lost.

    Raises:
        UnknownRequest: no worker has found it within `patience_s` seconds, and no client has enqueued it.
        ResultTimeout: no worker has done it within `patience_s` seconds; the cancel request stays queued.
    """
    result = await broker.result(request_id)
    if result is None:
        await broker.ask_to_cancel(request_id, before_ms)
        try:
            result = await mailbox.wait(mailbox.slot(request_id), patience_s)
        except RequestLost:
            return False
        except ResultTimeout:
            if before_ms is None and await broker.record(request_id) is None:
                raise UnknownRequest(request_id) from None
            raise ResultTimeout(
                f"request {request_id}: no worker has cancelled it within {patience_s:g} s; the next one that runs will"
            ) from None
    return result.status is Status.CANCELLED
