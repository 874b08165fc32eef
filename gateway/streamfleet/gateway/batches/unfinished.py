"""Ends every unfinished line of a batch that was cancelled, or whose time is over.

`end_unfinished_lines` reads the input again, cancels requests that may have been enqueued, and writes a line for each
into one of the two files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from streamfleet.common.errors import ResultTimeout
from streamfleet.common.protocol import Status
from streamfleet.gateway.aside import Breath, aside
from streamfleet.gateway.batches.claimed_batch import ClaimedBatch
from streamfleet.gateway.batches.ledger import CANCELLED, MOST_LINES
from streamfleet.gateway.batches.lines import Line
from streamfleet.gateway.batches.submitter import line_request_id
from streamfleet.gateway.batches.validation import too_many_errors
from streamfleet.producer.batchfile import BadLine, BatchLine
from streamfleet.producer.client import Client

AT_ONCE, CALLS_AT_ONCE = 500, 100
_OVER = frozenset({Status.CANCELLED, Status.EXPIRED})


async def end_unfinished_lines(claimed: ClaimedBatch) -> None:
    """Finish every line. Answers that arrived before are kept.

    Raises:
        InvalidBatch: the input is gone, or too many of its lines are invalid.
        BatchLost, LedgerConflict, StoreUnavailable, StreamfleetError: begin again with the recorded state.
    """
    # If nothing was enqueued yet, not all lines may have been checked.
    checker, checked, total = claimed.checker(), claimed.mark > 0, 0
    check, breath = checker.read if checked else checker.check, Breath()
    chunk: list[BatchLine] = []
    async for group in claimed.lines():
        for number, text in group:
            total += 1
            await breath.take()
            if checked and number in claimed.bits:
                continue
            line = await _line_in_queue(claimed, check, (number, text))
            if line is not None:
                chunk.append(line)
            if checker.refused > MOST_LINES:
                raise too_many_errors(number, ())
            if len(chunk) >= AT_ONCE:
                await _end_requests(claimed, chunk)
                chunk = []
            if claimed.ledger.full:
                await claimed.save({} if checked else {"total": str(total)})
    await _end_requests(claimed, chunk)
    await claimed.save({"total": str(total)})


async def _line_in_queue(
    claimed: ClaimedBatch, check: Callable[[int, bytes], BatchLine], numbered: Line
) -> BatchLine | None:
    """Returns a line whose request may be in a queue; finishes any other line, and returns None."""
    number, text = numbered
    try:
        line = await aside(len(text), check, number, text)
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
                claimed.ledger.add_answer(line.number, line.custom_id, result, cancelling=claimed.cancelling)


async def _cancel(client: Client, each: str) -> None:
    with contextlib.suppress(ResultTimeout):  # no worker confirms it now: the request to cancel stays
        await client.cancel(each)


def _finish_without_answer(claimed: ClaimedBatch, line: BatchLine) -> None:
    if claimed.cancelling:
        claimed.ledger.add_refusal(BadLine(line.number, line.custom_id, CANCELLED, None, "batch_cancelled"))
    else:
        claimed.ledger.add_expired(line.number, line.custom_id)
