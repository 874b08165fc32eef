"""/v1/batches: create, list, retrieve and cancel batches.

Handlers read the request through `batch_parameters` and hand it to the process's `Batching`. A tenant sees only its own
batches.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from streamfleet.common.protocol import Lane, parse_body
from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.batch_records import BATCH, BatchRecord, BatchStatus, is_id
from streamfleet.gateway.batches.batch_parameters import choose_lane, read_batch_parameters, read_naming
from streamfleet.gateway.document import IDEMPOTENCY, LANE, answers, body, operation, paging
from streamfleet.gateway.errors import NOT_AGAIN, ApiError
from streamfleet.gateway.files.paging import read_page
from streamfleet.gateway.files.routes import VISIBLE
from streamfleet.gateway.offload import StreamedJson, encode_all

MOST_BODY_BYTES = 65_536
USUAL_LISTED, MOST_LISTED = 20, 100
ENDING = frozenset({BatchStatus.CANCELLING, BatchStatus.CANCELLED})
router = APIRouter(tags=["batches"])
_BATCH = answers("Batch")


@router.post(
    "/v1/batches",
    **operation({200: _BATCH}, (400, 403, 404, 409, 413), body("BatchRequest"), (LANE, IDEMPOTENCY)),
)
async def create(request: Request) -> JSONResponse:
    """Run a file of requests."""
    context = await authenticate(request, requests=1)
    raw = await context.read_body(MOST_BODY_BYTES)
    asked = parse_body(raw, MOST_BODY_BYTES)
    parameters = read_batch_parameters(asked)
    lane = choose_lane(request.headers, asked, context.caller.lanes)
    context.show_lane(lane, Lane.LOW)
    await context.batching.check_callback(parameters.callback_url, context.tenant)
    naming = read_naming(request.headers, BATCH, context.caller.owner, asked, lane)
    file = await context.files.broker.file(parameters.input_file_id)
    hidden = file is not None and file.purpose not in VISIBLE  # the gateway wrote it, and deletes it after its batch
    batch = None if hidden else await context.batching.accept(parameters, context.caller, lane, naming)
    if batch is None:
        text = f"there is no file {parameters.input_file_id!r}: upload it first, with POST /v1/files"
        raise ApiError(404, text, "file_not_found", param="input_file_id")
    context.call.facts |= {"batch": batch.id, "lane": lane.value}
    return JSONResponse(batch_object(batch))


@router.get(
    "/v1/batches",
    **operation({200: answers("BatchList")}, (400,), parameters=paging(MOST_LISTED, USUAL_LISTED)),
)
async def batches(request: Request) -> Response:
    """The tenant's batches, newest first."""
    context = await authenticate(request)
    page = read_page(request.query_params, BATCH, USUAL_LISTED, MOST_LISTED)
    found = await context.batching.list_batches(context.tenant, page.after, page.limit + 1)
    items = await encode_all(map(batch_object, found[: page.limit]))
    context.hold_answer(sum(map(len, items)))
    return StreamedJson(page.to_json([batch.id for batch in found]), data=items)


@router.get("/v1/batches/{batch_id}", **operation({200: _BATCH}, (404,)))
async def batch(request: Request, batch_id: str) -> JSONResponse:
    """One batch."""
    return JSONResponse(batch_object(await find_batch(await authenticate(request), batch_id, BATCH)))


@router.post("/v1/batches/{batch_id}/cancel", **operation({200: _BATCH}, (404, 409)))
async def cancel(request: Request, batch_id: str) -> JSONResponse:
    """Cancel a batch. Answers up to then are in its files."""
    context = await authenticate(request)
    return JSONResponse(batch_object(await cancel_batch(context, batch_id, BATCH)))


async def find_batch(context: AuthContext, batch_id: str, kind: str) -> BatchRecord:
    """Returns one of the caller's batches or jobs.

    Raises:
        ApiError: the caller has none of this id.
    """
    record = await context.batching.broker.batch(batch_id) if is_id(batch_id, kind) else None
    if record is None or record.tenant != context.tenant:
        raise ApiError(404, f"there is no batch {batch_id[:80]!r}", "batch_not_found", param="batch_id")
    return record


async def cancel_batch(
    context: AuthContext, batch_id: str, kind: str, ending: frozenset[BatchStatus] = ENDING
) -> BatchRecord:
    """Cancel a batch or job, and return it.

    Args:
        context: the caller.
        batch_id, kind: which one.
        ending: statuses after the call that are no error.

    Raises:
        ApiError: the caller has none of this id, or it ended before.
    """
    await find_batch(context, batch_id, kind)
    status = await context.batching.broker.cancel_batch(batch_id, context.tenant)
    if status not in ending:
        text = f"the batch cannot be cancelled: it is {status}"
        raise ApiError(409, text, "batch_ended", param="batch_id", headers=NOT_AGAIN)
    return await find_batch(context, batch_id, kind)


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    """Returns a batch as OpenAI shows it."""
    tokens = {"input_tokens": batch.prompt_tokens, "output_tokens": batch.completion_tokens}
    details = {
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window,
        "output_expires_after": _output_expiry(batch),
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


def _output_expiry(batch: BatchRecord) -> dict[str, Any] | None:
    return {"anchor": "created_at", "seconds": batch.output_kept_ms // 1000} if batch.output_kept_ms else None


def _seconds(batch: BatchRecord, status: BatchStatus) -> int | None:
    moment_ms = batch.times.get(status)
    return None if moment_ms is None else moment_ms // 1000
