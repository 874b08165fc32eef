"""/v1/batch: endpoints of the simple service, prompts in and outputs out.

Handlers read the body with `reading` and `prompts`, and run it with `sync`, or later as a job: a batch whose input the
gateway writes and whose files it reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from streamfleet.common.protocol import Lane
from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.batch_records import JOB, BatchRecord, BatchStatus
from streamfleet.gateway.batches.batch_parameters import BatchParameters, choose_lane, read_naming, read_window
from streamfleet.gateway.batches.routes import cancel_batch, find_batch
from streamfleet.gateway.batches.service import INPUT, INPUT_KEPT_MS
from streamfleet.gateway.broker.api_keys import Held
from streamfleet.gateway.broker.batches import Naming
from streamfleet.gateway.disconnect import CallerLeft
from streamfleet.gateway.document import IDEMPOTENCY, LANE, WAITING, answers, body, operation
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.routes import content_gone
from streamfleet.gateway.files.store import ContentGone
from streamfleet.gateway.inference import GRACE_S
from streamfleet.gateway.offload import StreamedJson, TimeSlice, encode, encode_all, offload
from streamfleet.gateway.request_parameters import RequestParameters
from streamfleet.gateway.simple.prompts import (
    PromptParameters,
    has_results,
    input_line,
    outputs_of,
    read_prompts,
    results_of,
    tokens_of,
    totals,
)
from streamfleet.gateway.simple.reading import MOST_SHARED_CHARS, read_call
from streamfleet.gateway.simple.sync import SyncCall

router = APIRouter(tags=["simple service"])
MOST_PROMPTS, MOST_CALL_BYTES = 1_000, 8_388_608
"""Most prompts of one call, and most bytes of its body, or of its requests together: larger jobs come as a file, which
is stored while it arrives."""
PENDING, PROCESSING, COMPLETED, FAILED = "pending", "processing", "completed", "failed"
STATUSES = {
    BatchStatus.VALIDATING: PENDING,
    BatchStatus.IN_PROGRESS: PROCESSING,
    BatchStatus.FINALIZING: PROCESSING,
    BatchStatus.CANCELLING: PROCESSING,
    BatchStatus.COMPLETED: COMPLETED,
    BatchStatus.FAILED: FAILED,
    BatchStatus.EXPIRED: FAILED,
    BatchStatus.CANCELLED: FAILED,
}
_RESULTS, _JOB = answers("Results"), answers("Job")


@router.post(
    "/v1/batch/sync",
    **operation({200: _RESULTS}, (400, 403, 404, 409, 413), body("PromptsRequest"), WAITING),
)
async def sync(request: Request) -> Response:
    """Run all prompts, and answer with their outputs."""
    context = await authenticate(request, requests=1)
    asked, prompts = await _read(context)
    parameters = context.read_parameters(asked)
    chosen = await context.gateway.models.choose(asked.get("model"))
    client = await context.gateway.queues.client(chosen.queue)
    call = SyncCall(context, client, parameters)
    submissions = await call.prepare(prompts, chosen)
    bodies = [(prompts.bodies[0], len(each.fields["body"])) for each in submissions]  # they differ in a text only
    held = Held(chosen.queue, call.id, len(prompts.bodies))
    reservation = await context.gateway.budget.reserve(context.caller, held, prompts.endpoint, bodies)
    context.show_limits()
    began_s = asyncio.get_running_loop().time()
    try:
        await call.enqueue(submissions)
        results = await _wait_for_results(context, call, parameters)
    finally:
        if reservation is not None:
            used = call.used(reservation)
            context.gateway.run_in_background(context.gateway.budget.settle(reservation, used), "settle tokens")
    took_ms = (asyncio.get_running_loop().time() - began_s) * 1000
    answer = _results_object(context, call.id, results, took_ms)
    encoded = await encode_all(results)
    await context.hold_answer_soon(sum(map(len, encoded)))
    return _with_results(answer, encoded)


@router.post(
    "/v1/batch/async",
    status_code=202,
    **operation({202: _JOB}, (400, 403, 404, 409, 413), body("JobRequest"), (LANE, IDEMPOTENCY)),
)
async def later(request: Request) -> JSONResponse:
    """Accept prompts, to be run later."""
    context = await authenticate(request, requests=1)
    asked, prompts = await _read(context)
    lane = choose_lane(request.headers, asked, context.caller.lanes)
    context.show_lane(lane, Lane.LOW)
    await _check_model(context, asked.get("model"))
    naming = await offload(prompts.size_bytes, read_naming, request.headers, JOB, context.caller.owner, asked, lane)
    job = await accept(context, prompts, lane, naming)
    context.call.facts |= {"batch": job.id, "lane": lane.value}
    return JSONResponse(job_object(job, job.created_ms), 202)


# This route has to precede the one that takes any id.
@router.get("/v1/batch/stats", **operation({200: answers("Stats")}))
async def stats(request: Request) -> JSONResponse:
    """Statistics of the tenant's calls and jobs."""
    context = await authenticate(request)
    open_jobs = Counter(STATUSES[each] for each in await context.batching.broker.open_jobs(context.tenant))
    found = await context.batching.broker.stats(context.tenant)
    names = ("sync_calls", "jobs", "prompts", "succeeded", "failed")
    counts = {name: found.get(name, 0) for name in names}
    tokens = found.get("prompt_tokens", 0), found.get("completion_tokens", 0)
    busy_ms, calls = found.get("busy_ms", 0), counts["sync_calls"] + counts["jobs"]
    summary = totals(*tokens, counts["prompts"], busy_ms)
    mean_ms = round(busy_ms / calls, 1) if calls else 0.0
    return JSONResponse(
        {
            "object": "batch.stats",
            "total_batches": calls + open_jobs[PENDING] + open_jobs[PROCESSING],
            "completed": max(0, calls - found.get("failed_batches", 0)),
            "pending": open_jobs[PENDING],
            "processing": open_jobs[PROCESSING],
            **counts,
            "usage": summary["usage"],
            "mean_latency_ms": mean_ms,
            "throughput": summary["throughput"],
            "batches_here": context.batching.scheduler.running_of(context.tenant),
        }
    )


@router.get("/v1/batch/{batch_id}", **operation({200: _JOB}, (404,)))
async def job(request: Request, batch_id: str) -> Response:
    """A job, with its outputs once it has ended."""
    context = await authenticate(request)
    record = await find_batch(context, batch_id, JOB)
    answer = job_object(record, await context.batching.broker.now_ms())
    if not record.status.ended:
        return StreamedJson(answer)
    answer["output_file_id"] = record.output_file_id if record.output_bytes else None
    answer["error_file_id"] = record.error_file_id if record.error_bytes else None
    if not has_results(record):
        return StreamedJson({**answer, "results": None})
    context.hold_answer(record.output_bytes + record.error_bytes)
    try:
        results = await results_of(context.files, record)
    except ContentGone:
        raise content_gone() from None
    del answer["outputs"]
    return _with_results(answer, results)


@router.post("/v1/batch/{batch_id}/cancel", **operation({200: _JOB}, (404, 409)))
async def cancel(request: Request, batch_id: str) -> JSONResponse:
    """Cancel a job. Answers up to then are in its results."""
    context = await authenticate(request)
    record = await cancel_batch(context, batch_id, JOB)
    return JSONResponse(job_object(record, await context.batching.broker.now_ms()))


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
    return STATUSES[job.status]


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


async def _read(context: AuthContext) -> tuple[Mapping[str, Any], PromptParameters]:
    most_shared = min(MOST_SHARED_CHARS, context.gateway.queue_settings.max_body_bytes)
    raw = await context.read_body(MOST_CALL_BYTES)

    def read() -> tuple[Mapping[str, Any], PromptParameters]:
        asked = read_call(raw, MOST_PROMPTS, most_shared)
        return asked, read_prompts(asked, MOST_CALL_BYTES)

    return await offload(len(raw), read)


async def _check_model(context: AuthContext, model: object) -> None:
    """Refuse an unknown model at once. If no worker has said yet which models it serves, the job waits.

    Raises:
        InvalidRequest, ApiError: the model does not exist.
    """
    try:
        await context.gateway.models.choose(model)
    except ApiError as error:
        if error.status < 500:
            raise


def _results_object(
    context: AuthContext, batch_id: str, results: list[dict[str, Any]], latency_ms: float
) -> dict[str, Any]:
    """Returns the answer without the results, and adds it to the tenant's statistics."""
    succeeded = sum(each["status"] == "succeeded" for each in results)
    prompt_tokens, completion_tokens = tokens_of(results)
    ended = {"succeeded": succeeded, "failed": len(results) - succeeded}
    counts = {
        "sync_calls": 1,
        "failed_batches": int(not succeeded),
        "prompts": len(results),
        **ended,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "busy_ms": round(latency_ms),
    }
    context.gateway.run_in_background(context.batching.broker.count(context.tenant, counts), "count a call")
    return {
        "batch_id": batch_id,
        "object": "batch.result",
        "status": "completed" if succeeded else "failed",
        **ended,
        **totals(prompt_tokens, completion_tokens, len(results), latency_ms),
    }


def _with_results(answer: Mapping[str, Any], results: Sequence[bytes]) -> Response:
    return StreamedJson(answer, outputs=map(encode, outputs_of(results)), results=results)


async def _wait_for_results(
    context: AuthContext, call: SyncCall, parameters: RequestParameters
) -> list[dict[str, Any]]:
    task = asyncio.ensure_future(call.results(parameters.ttl_ms / 1000 + GRACE_S))
    try:
        with context.watcher(parameters.lane) as watcher:
            await watcher.wait(task)
        return task.result()
    except (CallerLeft, ApiError):
        call.abandon()
        raise
    finally:
        task.cancel()
