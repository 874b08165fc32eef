"""A batch as OpenAI shows it. Pure.

A record goes in; the JSON object of the Batch API comes out.
"""

from __future__ import annotations

from typing import Any

from streamfleet.common.batch_records import BatchRecord, BatchStatus


def shown(batch: BatchRecord) -> dict[str, Any]:
    """Returns the batch object."""
    tokens = {"input_tokens": batch.prompt_tokens, "output_tokens": batch.completion_tokens}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id if batch.status.ended and batch.output_bytes else None,
        "error_file_id": batch.error_file_id if batch.status.ended and batch.error_bytes else None,
        "created_at": batch.created_ms // 1000,
        "in_progress_at": _seconds(batch, BatchStatus.IN_PROGRESS),
        "expires_at": batch.deadline_ms // 1000,
        "finalizing_at": _seconds(batch, BatchStatus.FINALIZING),
        "completed_at": _seconds(batch, BatchStatus.COMPLETED),
        "failed_at": _seconds(batch, BatchStatus.FAILED),
        "expired_at": _seconds(batch, BatchStatus.EXPIRED),
        "cancelling_at": _seconds(batch, BatchStatus.CANCELLING),
        "cancelled_at": _seconds(batch, BatchStatus.CANCELLED),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {**tokens, **details, "total_tokens": sum(tokens.values())},
        "metadata": batch.metadata,
    }


def _seconds(batch: BatchRecord, status: BatchStatus) -> int | None:
    moment_ms = batch.times.get(status)
    return None if moment_ms is None else moment_ms // 1000
