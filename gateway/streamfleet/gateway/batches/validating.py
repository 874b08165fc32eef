"""A batch's first pass over its input: count the lines, and refuse those that are no requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from streamfleet.common.batch_records import BatchStatus
from streamfleet.gateway.aside import Breath, aside
from streamfleet.gateway.batches.checking import Checker, shown_error
from streamfleet.gateway.batches.ledger import MOST_BYTES, MOST_LINES
from streamfleet.gateway.batches.lines import Line
from streamfleet.gateway.batches.run import Run, Unusable
from streamfleet.producer.batchfile import BadLine

MOST_ERRORS = 100
"""So many refused lines are shown with the batch itself; all of them are in its error file."""


async def validate(run: Run, expired: bool) -> None:
    """Check all lines, and have the batch be in progress; or return when somebody cancels it.

    What a gateway that died wrote down of it stays; the check itself begins anew.

    Args:
        run: the batch.
        expired: its time is over: none of its lines will be run, whatever its model.

    Raises:
        Unusable: there is no line, or there are too many, or too many that are no requests.
        NotNow: nobody can say yet which models there are.
    """
    checker, breath = run.checker(), Breath()
    total = 0
    errors: list[dict[str, object]] = []
    async for group in run.lines():
        for number, text in group:
            total += 1
            error = await _refusal(run, checker, (number, text), expired)
            if error is not None and len(errors) < MOST_ERRORS:
                errors.append(shown_error(error))
            if run.ledger.full:
                raise too_many_errors(number, errors)
            await breath.take()
        if run.cancelling:
            return
    if not total:
        raise Unusable("empty_file", "the input has no requests: one JSON object on each line is expected")
    fields = {"total": str(total), "models": json.dumps(run.models)}
    if errors:
        fields["errors"] = json.dumps(errors)
    await run.save(fields, (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))


def too_many_errors(number: int, errors: Sequence[Mapping[str, object]]) -> Unusable:
    """So many lines are no requests that the input as a whole is none: they fill what is written down at once."""
    said = f"line {number} is one of too many that are no requests (about {MOST_LINES}, or {MOST_BYTES} bytes of them)"
    return Unusable("too_many_errors", said, number, errors[: MOST_ERRORS - 1])


async def _refusal(run: Run, checker: Checker, numbered: Line, expired: bool) -> BadLine | None:
    """Why a line will not be run; None when it will."""
    number, text = numbered
    try:
        line = await aside(len(text), checker.check, number, text)
        if not expired:
            await run.route(line)
    except BadLine as error:
        if number not in run.bits:
            run.ledger.refuse(error)
        return error
    return None
