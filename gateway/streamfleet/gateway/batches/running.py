"""Runs a batch from its stored status to its end: validate, work, finish, announce.

`run_to_the_end` takes a `Run` and calls `validating`, `working` and `sweeping`. Each step can be repeated after a
crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from streamfleet.common.batch_records import JOB, BatchRecord, BatchStatus
from streamfleet.common.broker.gateway_batches import Ending
from streamfleet.gateway.batches.ledger import BatchLost
from streamfleet.gateway.batches.run import Run, Unusable
from streamfleet.gateway.batches.sweeping import sweep
from streamfleet.gateway.batches.validating import validate
from streamfleet.gateway.batches.working import Work

log = structlog.get_logger(__name__)
OUTPUT = "batch_output"
MOST_STUMBLES = 10
Tell = Callable[[BatchRecord], Awaitable[None]]


async def run_to_the_end(run: Run, tell: Tell) -> None:
    """Do every step that is left.

    Args:
        run: the batch.
        tell: announces the end of the batch.

    Raises:
        BatchLost: another gateway has it.
        NotNow: the batch has to wait.
        StreamfleetError: Redis, the store or the queue failed: begin again with the recorded state.
    """
    if not run.status.ended:
        try:
            _check_stumbles(run)
            await _work(run)
        except Unusable as unusable:
            await _end(run, unusable)
        else:
            await _end(run)
    await _leave(run, tell)


def _check_stumbles(run: Run) -> None:
    if run.batch.stumbles >= MOST_STUMBLES:
        raise Unusable("internal_error", "gateways gave up on this batch too often; their logs say why")


async def _work(run: Run) -> None:
    if run.status is BatchStatus.VALIDATING:
        await validate(run, expired=_late_ms(run) >= 0)
    if run.status is BatchStatus.IN_PROGRESS:
        await Work(run).until_through()
        if not run.cancelling and _late_ms(run) >= 0:
            await sweep(run)
        await run.save(move=(BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING))
    if run.cancelling:
        await sweep(run)


async def _end(run: Run, unusable: Unusable | None = None) -> None:
    """End the batch, and publish its two files."""
    batch = await run.tools.broker.batch(run.batch.id)
    if batch is None:
        raise BatchLost(f"batch {run.batch.id} is gone")
    status = BatchStatus.COMPLETED
    if unusable is not None:
        status = BatchStatus.FAILED
    elif run.cancelling:
        status = BatchStatus.CANCELLED
    elif batch.late:
        status = BatchStatus.EXPIRED
    job = batch.id.startswith(JOB)
    ending = Ending(
        status,
        run.tools.settings.gateway_file_ttl_ms,
        OUTPUT,
        _stats(batch, status, run.now_ms(asyncio.get_running_loop().time())) if job else {},
        None if unusable is None else unusable.errors,
    )
    if not await run.tools.broker.finish_batch(run.batch, run.epoch, ending):
        raise BatchLost(f"batch {run.batch.id} was taken by another gateway")
    run.status = status
    log.info("batch_ended", batch=batch.id, status=status.value, completed=batch.completed, failed=batch.failed)


async def _leave(run: Run, tell: Tell) -> None:
    """Announce the end, and close the batch. After a crash this is repeated: an announcement is made only once."""
    batch = await run.tools.broker.batch(run.batch.id)
    if batch is not None:
        await tell(batch)
        if batch.id.startswith(JOB):
            await _delete_input(run, batch)
    await run.tools.broker.close_batch(run.batch.id, run.epoch)


async def _delete_input(run: Run, batch: BatchRecord) -> None:
    record = await run.tools.broker.file(batch.input_file_id)
    if record is not None:
        await run.tools.files.delete(record)


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


def _late_ms(run: Run) -> float:
    return run.now_ms(asyncio.get_running_loop().time()) - run.batch.deadline_ms
