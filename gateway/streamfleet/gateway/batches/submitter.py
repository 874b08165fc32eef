"""Runs the lines of a batch in progress: keeps a window of them in the queue, and records results as they arrive.

`Submitter` reads lines from the `ClaimedBatch`, enqueues those together whose prompts begin alike, and adds answers to
its ledger. `Collector` has the requests in queues:
it enqueues them through the clients of these queues, and returns answers in the order of their end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from streamfleet.common.broker.types import Submission
from streamfleet.common.errors import InvalidRequest, RequestLost, StreamfleetError
from streamfleet.common.results import Result
from streamfleet.gateway.authentication import Caller
from streamfleet.gateway.batches.claimed_batch import OVERDUE_MS, ClaimedBatch
from streamfleet.gateway.batches.ledger import pause_s
from streamfleet.gateway.broker.api_keys import Held, Left
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.offload import TimeSlice, offload
from streamfleet.gateway.queues import Queues
from streamfleet.gateway.request_parameters import body_to_enqueue
from streamfleet.gateway.token_budget import Reservation, used_tokens
from streamfleet.producer.ask import Ask
from streamfleet.producer.batch_lines import BadLine, BatchLine
from streamfleet.producer.cache_order import Block
from streamfleet.producer.handle import Arrivals, Handle
from streamfleet.producer.sender import MAX_BYTES, MAX_COUNT, size

log = structlog.get_logger(__name__)


class PreparedLine(NamedTuple):
    """A line, prepared to be enqueued."""

    line: BatchLine
    queue: str
    submission: Submission


class Refused(NamedTuple):
    """Lines that were not enqueued: their lane was full, or another request has their id."""

    full: list[PreparedLine]
    conflicts: list[PreparedLine]


class Answer(NamedTuple):
    """A line, and the result of its request."""

    number: int
    custom_id: str
    result: Result
    ignored: str = ""


class Collector:
    """Requests that have no result yet. Close it.

    Args:
        queues: clients of all queues.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._lines: dict[str, tuple[int, str, str]] = {}
        self._arrivals: dict[str, Arrivals] = {}
        self._tasks: dict[asyncio.Task[list[Result | RequestLost]], str] = {}

    def __len__(self) -> int:
        """Number of requests without a result."""
        return len(self._lines)

    async def submit(self, chunk: Sequence[PreparedLine]) -> Refused:
        """Enqueue lines of one queue. Raises as `Client.submit`."""
        queue = chunk[0].queue
        client = await self._queues.client(queue)
        outcomes = await client.submit([ready.submission for ready in chunk])
        refused = Refused([], [])
        handles: list[Handle] = []
        for ready, (handle, code) in zip(chunk, outcomes, strict=True):
            if handle is not None:
                self._lines[handle.id] = (ready.line.number, ready.line.custom_id, ready.line.ignored)
                handles.append(handle)
            else:
                (refused.full if code.full else refused.conflicts).append(ready)
        if handles:
            if queue not in self._arrivals:
                self._arrivals[queue] = client.arrivals()
            self._arrivals[queue].add(handles)
            self._start_taking(queue)
        return refused

    async def take(self, timeout_s: float) -> list[Answer]:
        """Returns answers that have arrived; an empty list after `timeout_s` without one.

        Raises:
            RequestLost: Redis lost a request. Enqueue all unfinished lines again, by the same ids.
        """
        if not self._tasks:
            await asyncio.sleep(timeout_s)
            return []
        done, _ = await asyncio.wait(self._tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        answers: list[Answer] = []
        for task in done:
            queue = self._tasks.pop(task)
            for result in task.result():
                if isinstance(result, RequestLost):
                    raise result
                number, custom_id, ignored = self._lines.pop(result.id)
                answers.append(Answer(number, custom_id, result, ignored))
            if len(self._arrivals[queue]):
                self._start_taking(queue)
        return answers

    def close(self) -> None:
        """Stop waiting for results; the requests go on."""
        for task in self._tasks:
            task.cancel()
        for arrivals in self._arrivals.values():
            arrivals.close()
        self._tasks.clear()
        self._lines.clear()

    def _start_taking(self, queue: str) -> None:
        if queue not in self._tasks.values():
            task = asyncio.get_running_loop().create_task(self._arrivals[queue].take())
            self._tasks[task] = queue


TICK_S = 0.5
WINDOW = 1_000
"""Requests of one batch that are in the queue at most: enough for a large fleet, and for prompts with the same start to
be neighbours, and too few to fill a lane."""
CONFLICT = "another request has the id of this line's request: the input was changed after the batch was accepted"


def line_request_id(batch_id: str, number: int) -> str:
    """Id of a line's request. It is always the same, so that no line is enqueued twice."""
    return f"{batch_id}-{number}"


class Charges:
    """Tokens of a batch's lines, where these use up those of the API key that made it.

    Args:
        claimed: the batch.
    """

    def __init__(self, claimed: ClaimedBatch) -> None:
        self._budget, batch = claimed.dependencies.budget, claimed.batch
        self._payer = Caller(batch.payer, tokens=Left(batch.tokens_per_minute, 0, 0))
        self._endpoint = batch.endpoint
        self._reservations: dict[int, Reservation] = {}

    async def reserve(self, ready: PreparedLine) -> bool:
        """Reserve the tokens of a line; False if too few are left for now.

        Raises:
            BadLine: it needs more than the key may use in a minute.
        """
        line, request = ready.line, ready.submission
        held = Held(ready.queue, request.id, named=True)
        try:
            reservation = await self._budget.reserve(
                self._payer, held, self._endpoint, [(line.body, len(request.fields["body"]))]
            )
        except ApiError as error:
            if "x-should-retry" not in error.headers:
                return False
            raise BadLine(line.number, line.custom_id, error.message, None, str(error.code)) from None
        if reservation is not None:
            self._reservations[line.number] = reservation
        return True

    async def release(self, ready: PreparedLine) -> None:
        """Give back the tokens of a line that was not enqueued."""
        if (reservation := self._reservations.pop(ready.line.number, None)) is not None:
            await self._budget.release(reservation)

    async def settle(self, answers: Sequence[Answer]) -> None:
        """Charge what lines used. What cannot be charged now any gateway charges later, by the lines' results."""
        for answer in answers:
            if (reservation := self._reservations.pop(answer.number, None)) is None:
                continue
            try:
                await self._budget.settle(reservation, used_tokens(answer.result, reservation))
            except StreamfleetError as error:
                log.warning("reservation_not_settled", reservation=reservation.held.name, error=str(error))
                return


class Submitter:
    """Unfinished lines of one batch.

    Args:
        claimed: the batch.
    """

    def __init__(self, claimed: ClaimedBatch) -> None:
        self._claimed = claimed
        self._collector, self._charges = Collector(claimed.dependencies.queues), Charges(claimed)
        self._returned: deque[PreparedLine] = deque()
        self._prepared_lines = self._in_cache_order()
        self._exhausted = False
        self._most = MAX_COUNT
        self._started_s = self._saved_s = _now_s()

    async def run(self) -> None:
        """Work until all lines are finished, the batch is cancelled, or its time is over and no more results come.

        Raises:
            BatchLost, LedgerConflict, StoreUnavailable, StreamfleetError: begin again with the recorded state.
        """
        self._claimed.waiting_since_s = self._started_s
        try:
            while not self._is_finished():
                await self._submit_window()
                if self._is_finished():
                    break
                time_slice, answers = TimeSlice(), await self._collector.take(TICK_S)
                for answer in answers:
                    await time_slice.yield_if_over()
                    self._claimed.ledger.add_answer(*answer, cancelling=self._claimed.cancelling)
                    self._claimed.waiting_since_s = _now_s()
                await self._charges.settle(answers)
                await self._save_in_time()
            await self._claimed.save()
        finally:
            self._claimed.waiting_since_s = None
            self._collector.close()
            await self._prepared_lines.aclose()

    def _is_finished(self) -> bool:
        late_ms = self._late_ms()
        if self._claimed.cancelling or late_ms >= OVERDUE_MS:
            return True
        nothing_more = self._exhausted or late_ms >= 0
        return nothing_more and not self._collector and not (self._returned and late_ms < 0)

    def _late_ms(self) -> float:
        return self._claimed.now_ms(_now_s()) - self._claimed.batch.deadline_ms

    async def _save_in_time(self) -> None:
        now_s, ledger = _now_s(), self._claimed.ledger
        due_s = self._saved_s + pause_s(now_s - self._started_s)
        if ledger.full or (ledger.numbers and now_s >= due_s):
            await self._claimed.save()
            self._saved_s = now_s

    async def _submit_window(self) -> None:
        while (room := WINDOW - len(self._collector)) > 0 and not self._claimed.cancelling and self._late_ms() < 0:
            chunk = await self._next_chunk(min(room, self._most))
            paid, enough = await self._paid(chunk)
            if not paid:
                if chunk and enough and not self._claimed.ledger.full:
                    continue  # all of them were refused for good
                return
            if (last := max(ready.line.number for ready in paid)) > self._claimed.mark:
                await self._claimed.reserve(last + WINDOW)
            refused = await self._collector.submit(paid)
            for ready in (*refused.full, *refused.conflicts):
                await self._charges.release(ready)
            if len(refused.full) < len(paid):
                self._claimed.waiting_since_s = _now_s()
            for ready in refused.conflicts:
                line = ready.line
                self._claimed.ledger.add_refusal(BadLine(line.number, line.custom_id, CONFLICT, None, "conflict"))
            if refused.full:
                self._returned.extendleft(reversed(refused.full))
                # A full lane is no error: it will have room again. Until then one line is tried at a time, because the
                # tokens of all that are tried are missing elsewhere until they are given back.
                self._most = 1
                return
            self._most = min(MAX_COUNT, 2 * self._most)

    async def _paid(self, chunk: list[PreparedLine]) -> tuple[list[PreparedLine], bool]:
        """Returns the first lines of a chunk, as many as there are tokens for; puts back the others.

        The second value is True if there were enough for all.
        """
        paid: list[PreparedLine] = []
        for at, ready in enumerate(chunk):
            try:
                if not await self._charges.reserve(ready):
                    self._returned.extendleft(reversed(chunk[at:]))
                    return paid, False
            except BadLine as error:
                self._claimed.ledger.add_refusal(error)
            else:
                paid.append(ready)
        return paid, True

    async def _next_chunk(self, count: int) -> list[PreparedLine]:
        """Returns the next lines for one call, all of the same queue."""
        chunk: list[PreparedLine] = []
        filled = 0
        while len(chunk) < count:
            ready = self._returned.popleft() if self._returned else await anext(self._prepared_lines, None)
            if ready is None:
                self._exhausted = True
                break
            filled += size(ready.submission)
            if chunk and (filled > MAX_BYTES or ready.queue != chunk[0].queue):
                self._returned.appendleft(ready)
                break
            chunk.append(ready)
        return chunk

    async def _in_cache_order(self) -> AsyncGenerator[PreparedLine, None]:
        block: Block[PreparedLine] = Block(WINDOW, lambda ready: ready.line.body)
        async with aclosing(self._prepare_lines()) as lines:
            async for ready in lines:
                if block.add(ready, size(ready.submission)):
                    for each in await offload(block.bytes, block.take):
                        yield each
        for each in await offload(block.bytes, block.take):
            yield each

    async def _prepare_lines(self) -> AsyncGenerator[PreparedLine, None]:
        checker, time_slice = self._claimed.checker(), TimeSlice()
        async for group in self._claimed.lines():
            for number, text in group:
                await time_slice.yield_if_over()
                if number in self._claimed.bits:
                    continue
                try:
                    ready = await self._prepare(await offload(len(text), checker.read, number, text), len(text))
                except BadLine as error:
                    self._claimed.ledger.add_refusal(error)
                else:
                    yield ready

    async def _prepare(self, line: BatchLine, size_bytes: int) -> PreparedLine:
        batch = self._claimed.batch
        queue, served = await self._claimed.route(line)
        ask = Ask(
            body=body_to_enqueue(line.body, served or None, batch.endpoint),
            id=line_request_id(batch.id, line.number),
            lane=batch.lane,
            deadline=batch.deadline_ms,
            endpoint=batch.endpoint,
            tenant=batch.tenant or None,
            bounded=True,
        )
        client = await self._claimed.dependencies.queues.client(queue)
        try:
            return PreparedLine(line, queue, await offload(size_bytes, client.prepare, ask))
        except InvalidRequest as error:
            raise BadLine(line.number, line.custom_id, error.message, error.param, error.code) from None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
