"""Enqueues requests: checks them, splits them into script calls, and sends one call after the other.

Script calls are small enough not to stall the server.

Requests that ask for it are judged before: one that will likely be late is refused, or goes into the least urgent lane,
as it asks. The time is what the pace of the queue lets expect; where nobody can tell, it is enqueued as it is.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.broker.types import TOO_MANY_BYTES, Accepted, EnqueueCode, Expected, Submission
from streamfleet.common.envelope import traceparent_of
from streamfleet.common.errors import Conflict, InvalidRequest, LikelyLate, NotReplicated, QueueFull, StreamfleetError
from streamfleet.common.protocol import LANES, Lane, stream_ms
from streamfleet.common.settings_queue import QueueSettings
from streamfleet.producer.ask import DOWNGRADE, Ask, Draft, as_ask, check_id, draft
from streamfleet.producer.handle import Handle, Owner
from streamfleet.producer.mailbox import Mailbox

REFUSED = frozenset({EnqueueCode.CONFLICT, EnqueueCode.FULL, EnqueueCode.SHARE_USED})
IDS_AT_ONCE = 100
BREATH, BREATH_A_REQUEST = 500_000, 5_000
"""Bytes of bodies to check, about a millisecond, before yielding to the event loop; and extra bytes that each request
counts."""

Outcome: TypeAlias = tuple[Handle | None, EnqueueCode]
Row: TypeAlias = tuple[Lane, None, int | None, int | None, str, int]
MOST_AT_ONCE = 50
"""Requests that one call of the script judges: with many tenants, each takes about 0.1 ms of the server."""
MAX_COUNT = 200
MAX_BYTES = 1_000_000


class _Answered(NamedTuple):
    """An answered call, with `Mailbox.generation` from before it."""

    chunk: Sequence[Submission]
    answers: Sequence[Accepted]
    generation: int


class Sender:
    """The part of an open client that enqueues requests; its methods raise as those of `Client`.

    Args:
        broker: the queue.
        mailbox: receiver of the results.
        owner: client that the handles call.
        settings: settings of the queue.
        notify: True to have workers notify the mailbox.
    """

    def __init__(
        self, broker: ProducerBroker, mailbox: Mailbox, owner: Owner, settings: QueueSettings, notify: bool
    ) -> None:
        self._broker = broker
        self._mailbox = mailbox
        self._owner = owner
        self._notify = notify
        self._reply = mailbox.name if notify else None
        self._max_body_bytes = settings.max_body_bytes
        self._queue = settings.queue

    async def enqueue(self, ask: Ask) -> Handle:
        """Enqueue one request."""
        return await self.enqueue_draft(self.draft(ask, secrets.token_hex(16)))

    async def enqueue_draft(self, drafted: Draft) -> Handle:
        """Enqueue one request that was checked and encoded."""
        if drafted.if_late:
            (drafted,) = await judge(self._broker, [drafted])
        with _enqueue_span(self._queue, 1) as traceparent:
            chunk = [(drafted.within(traceparent) if traceparent else drafted).submission()]
            generation = self._mailbox.generation
            answered = _Answered(chunk, await self._send(chunk), generation)
        for handle in self._handles(answered):
            return handle
        raise self._refusal(answered)

    async def judge_draft(self, drafted: Draft) -> tuple[Draft, Expected]:
        """Returns what is expected of a request, which asks for nothing in `if_late` any more."""
        (expected,) = await self._broker.expected([_row(drafted, 0)])
        return (await _judged(self._broker, drafted, expected) if drafted.if_late else drafted), expected

    async def enqueue_many(self, asks: Iterable[Ask | Mapping[str, Any]]) -> list[Handle]:
        """All of them, each call after the one before it was answered."""
        drafts = await judge(self._broker, await self._drafts(asks))
        with _enqueue_span(self._queue, len(drafts)) as traceparent:
            return await self._send_all([item.within(traceparent) for item in drafts] if traceparent else drafts)

    async def _send_all(self, drafts: Sequence[Draft]) -> list[Handle]:
        chunks = chunked(drafts)
        chunk = _submissions(next(chunks, []))
        answered = _Answered((), (), 0)
        handles: list[Handle] = []
        try:
            while chunk:
                generation = self._mailbox.generation
                sending = asyncio.ensure_future(self._send(chunk))
                try:
                    await asyncio.sleep(0)  # lets the sending start
                    # While the server works: what became of the call before, and the next one.
                    handles += self._handles(answered)
                    following = _submissions(next(chunks, []))
                    answers = await sending
                finally:
                    sending.cancel()
                answered, chunk = _Answered(chunk, answers, generation), following
                if not REFUSED.isdisjoint([answer.code for answer in answers]):
                    handles += self._handles(answered)
                    raise self._refusal(answered)
            handles += self._handles(answered)
        except StreamfleetError as error:
            error.accepted = list(handles)
            raise
        return handles

    def draft(self, ask: Ask, new_id: str) -> Draft:
        """Check and encode a request; it gets `new_id` if it has no id."""
        request_id = new_id if ask.id is None else check_id(ask.id)
        return draft(ask, request_id, self._reply, self._max_body_bytes)

    async def submit(self, chunk: Sequence[Submission]) -> list[Outcome]:
        """Enqueue requests in one script call."""
        generation = self._mailbox.generation
        answers = await self._send(chunk)
        return [
            (self._handle(item, answer, generation), answer.code) for item, answer in zip(chunk, answers, strict=True)
        ]

    async def _send(self, chunk: Sequence[Submission]) -> list[Accepted]:
        # Taken before sending: a notification may be faster than the answer to the call.
        generation = self._mailbox.generation
        try:
            await self._broker.refresh_configuration()
            return await self._broker.enqueue(chunk)
        except NotReplicated as error:
            error.unconfirmed = self._handles(_Answered(chunk, error.unconfirmed, generation))
            raise

    def _handles(self, answered: _Answered) -> list[Handle]:
        pairs = zip(answered.chunk, answered.answers, strict=True)
        handles = [self._handle(item, answer, answered.generation) for item, answer in pairs]
        return [handle for handle in handles if handle is not None]

    def _handle(self, item: Submission, answer: Accepted, generation: int) -> Handle | None:
        """Handle of a request that the queue has or had; None if it was refused."""
        code, tenant = answer.code, item.fields.get("tenant", b"").decode()
        if code in REFUSED:
            return None
        accepted = code is EnqueueCode.ACCEPTED
        told = generation if accepted and self._notify else None
        rank_ms = self._rank_ms(item, answer.entry) if tenant and answer.entry else None
        return Handle(item.id, not accepted, answer.entry, self._mailbox, told, self._owner, tenant, rank_ms)

    def _rank_ms(self, item: Submission, entry: str) -> int:
        """Rank of a request, epoch ms: its deadline, or what stands for one."""
        if deadline := item.fields.get("deadline"):
            return int(deadline)
        came_ms, ttl = stream_ms(entry.partition(":")[2]), item.fields.get("ttl")
        return came_ms + (int(ttl) if ttl else self._broker.limits.patience_ms)

    def _refusal(self, answered: _Answered) -> StreamfleetError:
        refused = [pair for pair in zip(answered.chunk, answered.answers, strict=True) if pair[1].code in REFUSED]
        # A conflict comes before a full lane, because waiting for the lane would not solve it.
        for submission, answer in refused:
            if answer.code is EnqueueCode.CONFLICT:
                return conflict(submission.id)
        submission, answer = refused[0]
        limits = self._broker.limits
        name, reached = "LIMIT", f"holds {limits.lane_limit} requests, its limit"
        if answer.entry == TOO_MANY_BYTES:
            name, reached = (
                "BYTES",
                f"has no room for {size(submission)} bytes more within its {limits.lane_bytes} bytes",
            )
        lane = submission.lane
        if answer.code is EnqueueCode.SHARE_USED:
            return share_used(lane, limits.lane_tenant_percent)
        advice = f"try again later, or raise STREAMFLEET_LANE_{name} (`streamfleet queue set` does for all clients)"
        return QueueFull(f"lane {lane} {reached}: {advice}", lane)

    async def _drafts(self, asks: Iterable[Ask | Mapping[str, Any]]) -> list[Draft]:
        drafts: list[Draft] = []
        ids, held = _new_ids(), 0
        try:
            for ask in asks:
                drafts.append(self.draft(as_ask(ask), next(ids)))
                held += BREATH_A_REQUEST + len(drafts[-1].fields["body"])
                if held > BREATH:
                    held = 0
                    await asyncio.sleep(0)
        except InvalidRequest as error:
            if not drafts:
                raise
            raise InvalidRequest(f"{error.message} (request {len(drafts) + 1})", error.param, error.code) from None
        return drafts


def _submissions(drafts: Iterable[Draft]) -> list[Submission]:
    return [item.submission() for item in drafts]


def _new_ids() -> Iterator[str]:
    """Random ids for one call; a shared store of ids would be used twice after a fork."""
    while True:
        text = os.urandom(16 * IDS_AT_ONCE).hex()
        for at in range(0, len(text), 32):
            yield text[at : at + 32]


def conflict(request_id: str) -> Conflict:
    """Error for an id that belongs to another request."""
    return Conflict(
        f"id: {request_id} belongs to a request with another body or endpoint; use another id, or send the same again"
    )


def share_used(lane: str, percent: int) -> QueueFull:
    """Error for a tenant that has its share of a lane waiting."""
    return QueueFull(
        f"this tenant has {percent} % of what lane {lane} may hold waiting, the most while other tenants use it: "
        "try again when some of it was taken, or raise STREAMFLEET_LANE_TENANT_PERCENT (`streamfleet queue set` does "
        "for all clients)",
        lane,
        tenant_percent=percent,
    )


@contextmanager
def _enqueue_span(queue: str, requests: int) -> Iterator[str | None]:
    """A span around an enqueue, and its W3C traceparent for the requests to carry.

    None if this process has not set up OpenTelemetry.
    """
    api = sys.modules.get("opentelemetry.trace")  # whoever sets it up imports it; so does redis-py
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        yield None
        return
    attributes = {
        "messaging.system": "redis",
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
        "messaging.batch.message_count": requests,
    }
    tracer = api.get_tracer("streamfleet")
    with tracer.start_as_current_span("streamfleet.enqueue", kind=api.SpanKind.PRODUCER, attributes=attributes) as span:
        context = span.get_span_context()
        set_up = context.is_valid  # without a set-up, spans are invalid
        yield traceparent_of(context.trace_id, context.span_id, context.trace_flags) if set_up else None


async def judge(broker: ProducerBroker, drafts: Sequence[Draft]) -> list[Draft]:
    """Returns the drafts, those that will likely be late in another lane.

    Raises:
        LikelyLate: one of them is to be refused.
    """
    if not any(each.if_late for each in drafts):
        return [*drafts]
    judged: list[Draft] = []
    before = Counter[tuple[Lane, str]]()
    for first in range(0, len(drafts), MOST_AT_ONCE):
        judged += await _judge_some(broker, drafts[first : first + MOST_AT_ONCE], before)
    return judged


async def _judge_some(
    broker: ProducerBroker, drafts: Sequence[Draft], before: Counter[tuple[Lane, str]]
) -> list[Draft]:
    """Judges drafts. `before`: number of each lane and tenant that go first; these are added."""
    rows: list[Row] = []
    for each in drafts:
        if each.if_late:
            rows.append(_row(each, before[each.lane, _tenant(each)]))
        else:
            before[each.lane, _tenant(each)] += 1
    found = iter(await broker.expected(rows))
    judged = [await _judged(broker, each, next(found)) if each.if_late else each for each in drafts]
    asked = Counter((each.lane, _tenant(each)) for draft, each in zip(drafts, judged, strict=True) if draft.if_late)
    before.update(asked)
    return judged


async def _judged(broker: ProducerBroker, draft: Draft, likely: Expected) -> Draft:
    if likely.left_ms is None or likely.left_ms >= 0:
        return draft.judged(draft.lane)
    if draft.if_late == DOWNGRADE:
        return draft.judged(LANES[-1])
    if await broker.record(draft.id) is not None:  # it is in the queue already
        return draft.judged(draft.lane)
    raise LikelyLate(draft.lane, (likely.wait_ms or 0) / 1000, (likely.run_ms or 0) / 1000, -likely.left_ms / 1000)


def _row(draft: Draft, more: int) -> Row:
    """A draft as `expected` asks for it. `more`: number of its lane and tenant that go first in the same call."""
    return draft.lane, None, _number(draft, "deadline"), _number(draft, "ttl"), _tenant(draft), more


def _tenant(draft: Draft) -> str:
    return draft.fields.get("tenant", b"").decode()


def _number(draft: Draft, name: str) -> int | None:
    value = draft.fields.get(name)
    return None if value is None else int(value)


class Fielded(Protocol):
    """An item to send: a draft or a submission."""

    @property
    def fields(self) -> Mapping[str, bytes]: ...


T = TypeVar("T", bound=Fielded)


def size(item: Fielded) -> int:
    """Bytes of an item's fields."""
    fields = item.fields
    return len("".join(fields)) + sum(map(len, fields.values()))


def chunked(items: Iterable[T], max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> Iterator[list[T]]:
    """The items in order, in chunks within both bounds; an oversized item is a chunk of its own."""
    chunk: list[T] = []
    filled = 0
    for item in items:
        weight = size(item)
        if chunk and (len(chunk) == max_count or filled + weight > max_bytes):
            yield chunk
            chunk, filled = [], 0
        chunk.append(item)
        filled += weight
    if chunk:
        yield chunk
