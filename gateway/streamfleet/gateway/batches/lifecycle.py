"""Runs a batch from its stored status to its end: validate, work, finish, announce.

`run_batch` takes a `ClaimedBatch`, checks its lines, and calls `submitter`; it ends the lines that are left of a batch
that was cancelled, or whose time is over. Each step can be repeated after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from streamfleet.common.errors import ResultTimeout, UnknownRequest
from streamfleet.common.protocol import Status
from streamfleet.gateway.batch_records import JOB, BatchRecord, BatchStatus
from streamfleet.gateway.batches.claimed_batch import ClaimedBatch, InvalidBatch
from streamfleet.gateway.batches.ledger import MOST_BYTES, MOST_LINES, BatchLost
from streamfleet.gateway.batches.lines import Line, LineChecker, error_object
from streamfleet.gateway.batches.submitter import Submitter, line_request_id
from streamfleet.gateway.broker.batches import Ending
from streamfleet.gateway.offload import TimeSlice, offload
from streamfleet.producer.batch_lines import BadLine, BatchLine
from streamfleet.producer.client import Client

log = structlog.get_logger(__name__)
OUTPUT = "batch_output"
MOST_STUMBLES = 10
MAY_STILL_COME = timedelta(hours=1)
"""Time in which a gateway that lost the batch may still enqueue a line."""
MOST_ERRORS, MOST_ERRORS_BYTES = 100, 16_384
"""Most refused lines in the batch object, and most bytes of them; the error file has all of them."""
AT_ONCE, CALLS_AT_ONCE = 500, 100
_OVER = frozenset({Status.CANCELLED, Status.EXPIRED})
Announce = Callable[[BatchRecord], Awaitable[None]]


async def run_batch(claimed: ClaimedBatch, announce: Announce) -> None:
    """Do every step that is left.

    Args:
        claimed: the batch.
        announce: announces the end of the batch.

    Raises:
        BatchLost: another gateway has it.
        BatchDeferred: the batch has to wait.
        StreamfleetError: Redis, the store or the queue failed: begin again with the recorded state.
    """
    if not claimed.status.ended:
        try:
            await _process(claimed)
        except InvalidBatch as invalid:
            await _end(claimed, invalid)
        else:
            await _end(claimed)
    await _announce_and_close(claimed, announce)


async def _process(claimed: ClaimedBatch) -> None:
    if claimed.batch.stumbles >= MOST_STUMBLES:
        raise InvalidBatch("internal_error", "gateways gave up on this batch too often; their logs say why")
    if claimed.status is BatchStatus.VALIDATING:
        await _validate(claimed, expired=_late_ms(claimed) >= 0)
    if claimed.status is BatchStatus.IN_PROGRESS:
        await Submitter(claimed).run()
        if not claimed.cancelling and _late_ms(claimed) >= 0:
            await _end_unfinished_lines(claimed)
        await claimed.save(move=(BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING))
    if claimed.cancelling:
        await _end_unfinished_lines(claimed)


async def _validate(claimed: ClaimedBatch, expired: bool) -> None:
    """First pass: check all lines and set the batch in progress; return early if a caller cancels it.

    Lines that a former gateway recorded stay recorded; the check itself begins again.

    Args:
        claimed: the batch.
        expired: True if its time is over: no line will be run, so models are not checked.

    Raises:
        InvalidBatch: the input has no line that is a request, too many lines, or too many invalid ones.
        BatchDeferred: no worker has said yet which models it serves.
    """
    checker, time_slice = claimed.checker(), TimeSlice()
    total, refused, room = 0, 0, MOST_ERRORS_BYTES
    errors: list[dict[str, object]] = []
    async for group in claimed.lines():
        for number, text in group:
            total += 1
            error = await _check_line(claimed, checker, (number, text), expired)
            refused += error is not None
            if error is not None and len(errors) < MOST_ERRORS:
                told = error_object(error)
                room -= len(json.dumps(told))
                errors += [told] if room >= 0 else []
            if claimed.ledger.full:
                if not claimed.batch.written_here:
                    raise _too_many_errors(number, errors)
                await claimed.save()
            await time_slice.yield_if_over()
        if claimed.cancelling:
            return
    if not total:
        raise InvalidBatch("empty_file", "the input has no requests: one JSON object on each line is expected")
    if refused == total and not claimed.batch.written_here:
        raise InvalidBatch.of_lines(errors)
    fields = {"total": str(total), "models": json.dumps(claimed.models)}
    if errors:
        fields["errors"] = json.dumps(errors)
    await claimed.save(fields, (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))


def _too_many_errors(number: int, errors: Sequence[Mapping[str, object]]) -> InvalidBatch:
    """Returns the error for an input with more refused lines than one recording may have."""
    said = f"line {number} is one of too many that are no requests (about {MOST_LINES}, or {MOST_BYTES} bytes of them)"
    return InvalidBatch("too_many_errors", said, number, errors[: MOST_ERRORS - 1])


async def _check_line(claimed: ClaimedBatch, checker: LineChecker, numbered: Line, expired: bool) -> BadLine | None:
    """Returns the reason why a line will not be run; None if it will."""
    number, text = numbered
    try:
        line = await offload(len(text), checker.check, number, text)
        if not expired:
            await claimed.route(line)
    except BadLine as error:
        if number not in claimed.bits:
            claimed.ledger.add_refusal(error)
        return error
    return None


async def _end(claimed: ClaimedBatch, invalid: InvalidBatch | None = None) -> None:
    """End the batch, and publish its two files."""
    batch = await claimed.dependencies.broker.batch(claimed.batch.id)
    if batch is None:
        raise BatchLost(f"batch {claimed.batch.id} is gone")
    status = BatchStatus.COMPLETED
    if invalid is not None:
        status = BatchStatus.FAILED
    elif claimed.cancelling:
        status = BatchStatus.CANCELLED
    elif batch.late:
        status = BatchStatus.EXPIRED
    job = batch.id.startswith(JOB)
    ending = Ending(
        status,
        claimed.dependencies.settings.gateway_file_ttl_ms,
        OUTPUT,
        _stats(batch, status, claimed.now_ms(asyncio.get_running_loop().time())) if job else {},
        None if invalid is None else invalid.errors,
    )
    if not await claimed.dependencies.broker.finish_batch(claimed.batch, claimed.epoch, ending):
        raise BatchLost(f"batch {claimed.batch.id} was taken by another gateway")
    claimed.status = status
    log.info("batch_ended", batch=batch.id, status=status.value, completed=batch.completed, failed=batch.failed)


async def _announce_and_close(claimed: ClaimedBatch, announce: Announce) -> None:
    """Announce the end, and close the batch. After a crash this is repeated: an announcement is made only once."""
    batch = await claimed.dependencies.broker.batch(claimed.batch.id)
    if batch is not None:
        await announce(batch)
        if batch.written_here:
            await _delete_input(claimed, batch)
    await claimed.dependencies.broker.close_batch(claimed.batch.id, claimed.epoch)


async def _delete_input(claimed: ClaimedBatch, batch: BatchRecord) -> None:
    record = await claimed.dependencies.files.broker.file(batch.input_file_id)
    if record is not None:
        await claimed.dependencies.files.delete(record)


def _stats(batch: BatchRecord, status: BatchStatus, now_ms: float) -> dict[str, int]:
    return {
        "jobs": 1,
        "failed_batches": int(status is not BatchStatus.COMPLETED or not batch.completed),
        "prompts": batch.total,
        "succeeded": batch.completed,
        "failed": batch.failed,
        "prompt_tokens": batch.prompt_tokens,
        "completion_tokens": batch.completion_tokens,
        "busy_ms": max(0, round(now_ms) - batch.created_ms),
    }


def _late_ms(claimed: ClaimedBatch) -> float:
    return claimed.now_ms(asyncio.get_running_loop().time()) - claimed.batch.deadline_ms


async def _end_unfinished_lines(claimed: ClaimedBatch) -> None:
    """Finish every line: read the input again, and cancel requests that may be in a queue. Answers that came are kept.

    Raises:
        InvalidBatch: the input is gone, or too many of its lines are invalid.
        BatchLost, LedgerConflict, StoreUnavailable, StreamfleetError: begin again with the recorded state.
    """
    # If nothing was enqueued yet, not all lines may have been checked.
    checker, checked, total = claimed.checker(), claimed.mark > 0, 0
    check, time_slice = checker.read if checked else checker.check, TimeSlice()
    chunk: list[BatchLine] = []
    async for group in claimed.lines():
        for number, text in group:
            total += 1
            await time_slice.yield_if_over()
            if checked and number in claimed.bits:
                continue
            line = await _line_in_queue(claimed, check, (number, text))
            if line is not None:
                chunk.append(line)
            if checker.refused > MOST_LINES and not claimed.batch.written_here:
                raise _too_many_errors(number, ())
            if len(chunk) >= AT_ONCE:
                await _end_requests(claimed, chunk)
                chunk = []
            if claimed.ledger.full:
                await claimed.save({} if checked or claimed.batch.written_here else {"total": str(total)})
    await _end_requests(claimed, chunk)
    await claimed.save({"total": str(total)})


async def _line_in_queue(
    claimed: ClaimedBatch, check: Callable[[int, bytes], BatchLine], numbered: Line
) -> BatchLine | None:
    """Returns a line whose request may be in a queue; finishes any other line, and returns None."""
    number, text = numbered
    try:
        line = await offload(len(text), check, number, text)
    except BadLine as error:
        if number not in claimed.bits:
            claimed.ledger.add_refusal(error)
        return None
    if number in claimed.bits:
        return None
    if number <= claimed.mark:
        return line
    _finish_without_answer(claimed, line)
    return None


async def _end_requests(claimed: ClaimedBatch, lines: list[BatchLine]) -> None:
    """End the requests of lines that may have been enqueued."""
    by_queue: dict[str, list[BatchLine]] = {}
    for line in lines:
        queue, _ = await claimed.route(line)
        by_queue.setdefault(queue, []).append(line)
    for queue, some in by_queue.items():
        client = await claimed.dependencies.queues.client(queue)
        ids = [line_request_id(claimed.batch.id, line.number) for line in some]
        for first in range(0, len(ids), CALLS_AT_ONCE):
            await asyncio.gather(*(_cancel(client, each) for each in ids[first : first + CALLS_AT_ONCE]))
        for line, result in zip(some, await client.broker.results(ids), strict=True):
            if result is None or (result.status in _OVER and not claimed.cancelling):
                _finish_without_answer(claimed, line)
            else:
                told = (line.number, line.custom_id, result, line.ignored)
                claimed.ledger.add_answer(*told, cancelling=claimed.cancelling)


async def _cancel(client: Client, each: str) -> None:
    with contextlib.suppress(ResultTimeout):  # no worker confirms it now: the request to cancel stays
        try:
            await client.cancel(each)
        except UnknownRequest:
            await client.cancel(each, MAY_STILL_COME)


def _finish_without_answer(claimed: ClaimedBatch, line: BatchLine) -> None:
    if claimed.cancelling:
        claimed.ledger.add_cancelled(line.number, line.custom_id)
    else:
        claimed.ledger.add_expired(line.number, line.custom_id)
