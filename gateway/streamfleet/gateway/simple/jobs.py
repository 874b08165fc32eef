"""Jobs: prompts that are answered later, as a batch whose input the gateway writes and whose files it reads.

`accept` stores the input through `Files` and creates the batch; `job_object` returns the job's JSON object.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streamfleet.common.protocol import Lane
from streamfleet.gateway.auth_context import AuthContext
from streamfleet.gateway.batch_records import BatchRecord, BatchStatus
from streamfleet.gateway.batches.batch_parameters import BatchParameters, read_window
from streamfleet.gateway.batches.service import INPUT, INPUT_KEPT_MS
from streamfleet.gateway.broker.batches import Naming
from streamfleet.gateway.offload import TimeSlice, offload
from streamfleet.gateway.simple.prompts import PromptParameters, input_line, totals

PENDING, PROCESSING, COMPLETED, FAILED = "pending", "processing", "completed", "failed"
_STATUSES = {
    BatchStatus.VALIDATING: PENDING,
    BatchStatus.IN_PROGRESS: PROCESSING,
    BatchStatus.FINALIZING: PROCESSING,
    BatchStatus.CANCELLING: PROCESSING,
    BatchStatus.COMPLETED: COMPLETED,
    BatchStatus.FAILED: FAILED,
    BatchStatus.EXPIRED: FAILED,
    BatchStatus.CANCELLED: FAILED,
}


async def accept(context: AuthContext, prompts: PromptParameters, lane: Lane, naming: Naming | None) -> BatchRecord:
    """Create a job that any gateway may take.

    Raises:
        InvalidRequest: its window or callback URL is refused.
        StoreUnavailable, StreamfleetError: the job was not created.
    """
    files, window_ms = context.files, read_window(prompts.window)
    await context.batching.check_callback(prompts.callback_url, context.tenant)
    before = None if naming is None else await context.batching.find_named(naming)
    if before is not None:
        return before
    upload, time_slice = await files.begin_upload(context.tenant), TimeSlice()
    try:
        for number, body in enumerate(prompts.bodies):
            line = await offload(prompts.size_bytes // len(prompts.bodies), input_line, number, prompts.endpoint, body)
            await upload.write(line)
            await time_slice.yield_if_over()
        await upload.close()
        record = await files.add(upload, context.tenant, "prompts.jsonl", INPUT, INPUT_KEPT_MS)
    except BaseException:
        await asyncio.shield(upload.abort())
        raise
    parameters = BatchParameters(
        record.id, prompts.endpoint, prompts.window, window_ms, prompts.metadata, prompts.callback_url
    )
    return await context.batching.accept_written(
        record, parameters, context.caller, lane, naming, job=True, total=len(prompts.bodies)
    )


def status_of(job: BatchRecord) -> str:
    """Returns pending, processing, completed or failed: failed if no prompt succeeded, or not all were run."""
    if job.status is BatchStatus.COMPLETED and job.failed and not job.completed:
        return FAILED
    return simple_status(job.status)


def simple_status(status: BatchStatus) -> str:
    """Returns the simple service's word for a status of OpenAI's API."""
    return _STATUSES[status]


def job_object(job: BatchRecord, now_ms: int) -> dict[str, Any]:
    """Returns a job without its results."""
    ended_ms = job.times.get(job.status) if job.status.ended else None
    done = job.completed + job.failed
    return {
        "batch_id": job.id,
        "id": job.id,
        "object": "batch.job",
        "status": status_of(job),
        "reason": job.status.value if status_of(job) == FAILED else None,
        "progress": done / job.total if job.total else 0.0,
        "request_counts": {"total": job.total, "completed": job.completed, "failed": job.failed},
        "outputs": None,
        "created_at": job.created_ms // 1000,
        "ended_at": None if ended_ms is None else ended_ms // 1000,
        "expires_at": job.deadline_ms // 1000,
        "metadata": job.metadata,
        "errors": [dict(error) for error in job.errors] or None,
        **totals(
            job.prompt_tokens,
            job.completion_tokens,
            done,
            max(0, (now_ms if ended_ms is None else ended_ms) - job.created_ms),
        ),
    }
