"""First pass over a batch's input: count the lines, and refuse invalid ones.

`validate` reads the input from the store, adds refused lines to the ledger, and moves the batch to in_progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.batches.claimed_batch import ClaimedBatch, InvalidBatch
from streamfleet.gateway.batches.ledger import MOST_BYTES, MOST_LINES
from streamfleet.gateway.batches.lines import Line, LineChecker, error_object
from streamfleet.gateway.offload import TimeSlice, offload
from streamfleet.producer.batch_lines import BadLine

MOST_ERRORS = 100
"""Most refused lines in the batch object; the error file has all of them."""


async def validate(claimed: ClaimedBatch, expired: bool) -> None:
    """Check all lines and set the batch in progress; return early if a caller cancels it.

    Lines that a former gateway recorded stay recorded; the check itself begins again.

    Args:
        claimed: the batch.
        expired: True if its time is over: no line will be run, so models are not checked.

    Raises:
        InvalidBatch: the input has no line, too many lines, or too many invalid ones.
        BatchDeferred: no worker has said yet which models it serves.
    """
    checker, time_slice = claimed.checker(), TimeSlice()
    total = 0
    errors: list[dict[str, object]] = []
    async for group in claimed.lines():
        for number, text in group:
            total += 1
            error = await _check_line(claimed, checker, (number, text), expired)
            if error is not None and len(errors) < MOST_ERRORS:
                errors.append(error_object(error))
            if claimed.ledger.full:
                raise too_many_errors(number, errors)
            await time_slice.yield_if_over()
        if claimed.cancelling:
            return
    if not total:
        raise InvalidBatch("empty_file", "the input has no requests: one JSON object on each line is expected")
    fields = {"total": str(total), "models": json.dumps(claimed.models)}
    if errors:
        fields["errors"] = json.dumps(errors)
    await claimed.save(fields, (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))


def too_many_errors(number: int, errors: Sequence[Mapping[str, object]]) -> InvalidBatch:
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
