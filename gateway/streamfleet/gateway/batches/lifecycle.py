"""Runs a batch from its stored status to its end: validate, work, finish, announce.

`run_batch` takes a `ClaimedBatch` and calls `validation`, `submitter` and `unfinished`. Each step can be repeated
after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from streamfleet.gateway.batch_records import JOB, BatchRecord, BatchStatus
from streamfleet.gateway.batches.claimed_batch import ClaimedBatch, InvalidBatch
from streamfleet.gateway.batches.ledger import BatchLost
from streamfleet.gateway.batches.submitter import Submitter
from streamfleet.gateway.batches.unfinished import end_unfinished_lines
from streamfleet.gateway.batches.validation import validate
from streamfleet.gateway.broker.batches import Ending

log = structlog.get_logger(__name__)
OUTPUT = "batch_output"
MOST_STUMBLES = 10
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
            _check_stumbles(claimed)
            await _process(claimed)
        except InvalidBatch as invalid:
            await _end(claimed, invalid)
        else:
            await _end(claimed)
    await _announce_and_close(claimed, announce)


def _check_stumbles(claimed: ClaimedBatch) -> None:
    if claimed.batch.stumbles >= MOST_STUMBLES:
        raise InvalidBatch("internal_error", "gateways gave up on this batch too often; their logs say why")


async def _process(claimed: ClaimedBatch) -> None:
    if claimed.status is BatchStatus.VALIDATING:
        await validate(claimed, expired=_late_ms(claimed) >= 0)
    if claimed.status is BatchStatus.IN_PROGRESS:
        await Submitter(claimed).run()
        if not claimed.cancelling and _late_ms(claimed) >= 0:
            await end_unfinished_lines(claimed)
        await claimed.save(move=(BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING))
    if claimed.cancelling:
        await end_unfinished_lines(claimed)


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
        if batch.id.startswith(JOB):
            await _delete_input(claimed, batch)
    await claimed.dependencies.broker.close_batch(claimed.batch.id, claimed.epoch)


async def _delete_input(claimed: ClaimedBatch, batch: BatchRecord) -> None:
    record = await claimed.dependencies.broker.file(batch.input_file_id)
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
