"""Endpoints of Anthropic's message batches, which are batches of `/v1/messages` in another form."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import MESSAGES, Lane
from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.batch_records import BATCH, BatchRecord, BatchStatus
from streamfleet.gateway.batches.batch_parameters import BatchParameters, batch_not_kept, choose_lane, read_window
from streamfleet.gateway.batches.lines import LineChecker, most_line_bytes, number_lines
from streamfleet.gateway.batches.routes import ENDING, cancel_batch
from streamfleet.gateway.batches.service import INPUT, INPUT_KEPT_MS
from streamfleet.gateway.body import Holding
from streamfleet.gateway.broker.batches import Naming
from streamfleet.gateway.disconnect import Streamed
from streamfleet.gateway.document import IDEMPOTENCY, LANE, TEXT, answers, body, operation, paging, query
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.files import Files, Upload
from streamfleet.gateway.files.paging import read_page
from streamfleet.gateway.files.routes import MOST_HELD_BYTES, chain
from streamfleet.gateway.files.store import ContentGone
from streamfleet.gateway.files.upload import Described, check_head, read, receive
from streamfleet.gateway.messages.batch_form import (
    BATCHES,
    PREFIX,
    RequestSplitter,
    batch_object,
    input_line,
    own_id,
    result_line,
)
from streamfleet.gateway.messages.translation import page
from streamfleet.gateway.offload import PIECE_BYTES, TimeSlice, offload
from streamfleet.gateway.request_parameters import request_id
from streamfleet.producer.batch_lines import MAX_LINE_BYTES

MOST_REQUESTS, MOST_BYTES = 100_000, 268_435_456
"""Anthropic's limits of a batch; the largest file of the gateway may be less."""
WINDOW = "24h"
USUAL_LISTED, MOST_LISTED, MOST_ON_PAGE = 20, 1_000, 100
"""A page has fewer items than a caller may ask for, and says that there are more."""
router = APIRouter(tags=["messages"])
_BATCH = answers("MessageBatch")
_ERROR = "MessageError"
_LINES = answers({"type": "string"}, "application/x-jsonl", about="a result on each line")
_PAGES = (
    query("before_id", TEXT, "the first id that you have"),
    query("after_id", TEXT, "the last id that you have"),
    paging(MOST_LISTED, USUAL_LISTED)[1],
)


class _Requests:
    """The requests of a new batch, as they come.

    Args:
        most_body_bytes: largest body of a request.
        lane: of the batch.
        room: counts the bytes of them that are held.

    Attributes:
        count: number of requests.
        digest: of the batch, for its name.
    """

    def __init__(self, most_body_bytes: int, lane: Lane, room: Holding) -> None:
        self.count, self.digest, self._room = 0, hashlib.sha256(lane.encode()), room
        self._most_body_bytes = most_body_bytes
        self._splitter = RequestSplitter(most_line_bytes(most_body_bytes))
        self._checker = LineChecker(MESSAGES, most_body_bytes)

    async def take(self, data: bytes, upload: Upload | None = None) -> None:
        """Check and write the requests that are complete with this piece of the body.

        Raises InvalidRequest, ApiError if there is no room for its bytes, and as `Upload`.
        """
        time_slice = TimeSlice()
        self._room.resize(len(self._splitter.held) + len(data))
        for text in await offload(len(data), self._splitter.feed, data):
            if self.count == MOST_REQUESTS:
                said = f"may have {MOST_REQUESTS} requests: make several batches"
                raise InvalidRequest(said, "requests", "request_too_large")
            line = await offload(len(text), input_line, text, self.count, self._checker, self._most_body_bytes)
            self.digest.update(line)
            if upload is not None:
                await upload.write(line)
            self.count += 1
            await time_slice.yield_if_over()
        self._room.resize(len(self._splitter.held))

    def end(self, _: Upload | None = None) -> Described:
        """Check that all came, and describe the file of them. Raises InvalidRequest."""
        self._splitter.end()
        return "requests.jsonl", INPUT, INPUT_KEPT_MS


@router.post(
    BATCHES,
    **operation({200: _BATCH}, (400, 403, 409, 413), body("MessageBatchRequest"), (LANE, IDEMPOTENCY), error=_ERROR),
)
async def create(request: Request) -> JSONResponse:
    """Run messages within a day, as a batch."""
    context = await authenticate(request, requests=1)
    batching, settings = context.batching, context.settings
    lane = choose_lane(request.headers, {}, context.caller.lanes)
    context.show_lane(lane, Lane.LOW)
    room = context.gateway.bodies.hold(context.caller.tenant)
    context.call.release = room.release
    requests = _Requests(batching.most_body_bytes, lane, room)
    most_bytes = min(MOST_BYTES, settings.gateway_file_max_bytes)
    key = request.headers.get("idempotency-key")
    name = f"{PREFIX}{BATCH}{request_id(context.caller.owner, key)}" if key else ""
    try:
        with context.files.place(context.tenant):
            if name and await batching.broker.named(name) is not None:  # no quota may refuse what exists
                check_head(request, most_bytes)
                await read(request, requests.take, most_bytes)
                requests.end()
                batch = await batching.find_named(Naming(name, requests.digest.hexdigest()))
            else:
                file = await receive(request, context.files, context.tenant, most_bytes, requests.take, requests.end)
                parameters = BatchParameters(file.id, MESSAGES, WINDOW, read_window(WINDOW), None, None)
                naming = Naming(name, requests.digest.hexdigest()) if name else None
                batch = await batching.accept_written(
                    file, parameters, context.caller, lane, naming, total=requests.count
                )
        if batch is None:  # it was deleted meanwhile
            raise batch_not_kept()
    except ApiError as error:  # the caller has named no file
        raise replace(error, param="requests" if error.param in ("file", "input_file_id") else error.param) from None
    context.call.facts |= {"batch": batch.id, "lane": lane.value}
    return JSONResponse(batch_object(batch))


@router.get(BATCHES, **operation({200: answers("MessageBatchList")}, (400,), parameters=_PAGES, error=_ERROR))
async def batches(request: Request) -> JSONResponse:
    """The tenant's message batches, newest first."""
    context = await authenticate(request)
    before, after, most = _read_ends(request.query_params)
    found = await context.batching.list_batches(
        context.tenant, before or after, most + 1, newest_first=not before, endpoint=MESSAGES
    )
    items = [batch_object(batch) for batch in found[:most]][:: -1 if before else 1]
    return JSONResponse(page(items, has_more=len(found) > most))


def _read_ends(given: Mapping[str, str]) -> tuple[str, str, int]:
    """Returns the ids that a page ends before or begins after, empty for none, and its length."""
    ends = []
    for name in ("before_id", "after_id"):
        end = given.get(name, "")
        ends.append(own_id(end) or "")
        if end and not ends[-1]:
            raise InvalidRequest(f"must be the id of a batch, {PREFIX}{BATCH}…, not {end[:40]!r}", name)
    if all(ends):
        raise InvalidRequest("cannot be together with after_id", "before_id")
    limit = {"limit": given["limit"]} if "limit" in given else {}
    return ends[0], ends[1], min(read_page(limit, BATCH, USUAL_LISTED, MOST_LISTED).limit, MOST_ON_PAGE)


@router.get(f"{BATCHES}/{{batch_id}}", **operation({200: _BATCH}, (404,), error=_ERROR))
async def batch(request: Request, batch_id: str) -> JSONResponse:
    """One message batch."""
    return JSONResponse(batch_object(await _find(await authenticate(request), batch_id)))


@router.post(f"{BATCHES}/{{batch_id}}/cancel", **operation({200: _BATCH}, (400, 404), error=_ERROR))
async def cancel(request: Request, batch_id: str) -> JSONResponse:
    """Cancel a message batch. Answers up to then are among its results."""
    context = await authenticate(request)
    record = await _find(context, batch_id)
    ending = ENDING | {BatchStatus.FINALIZING}  # its answers are there: it ends at once
    return JSONResponse(batch_object(await cancel_batch(context, record.id, BATCH, ending)))


@router.delete(f"{BATCHES}/{{batch_id}}", **operation({200: answers("MessageBatchDeleted")}, (400, 404), error=_ERROR))
async def delete(request: Request, batch_id: str) -> JSONResponse:
    """Delete a message batch that has ended, and its results."""
    context = await authenticate(request)
    await context.batching.forget(await _find(context, batch_id, "deleted: cancel it, or wait for its end"))
    return JSONResponse({"id": batch_id, "type": "message_batch_deleted"})


@router.get(f"{BATCHES}/{{batch_id}}/results", **operation({200: _LINES}, (400, 404), error=_ERROR))
async def results(request: Request, batch_id: str) -> Response:
    """The result of each request, in no order."""
    context = await authenticate(request)
    record = await _find(context, batch_id, "read: wait for its end")
    context.hold_answer(min(record.output_bytes + record.error_bytes, MOST_HELD_BYTES))
    lines = _results(context.files, record)
    try:
        first = await anext(lines, b"")  # after the headers, a missing content could not be reported
    except ContentGone:
        text = "the results of the batch are gone: a file of them was deleted, or its content is not in the store"
        raise ApiError(404, text, "content_gone", param="batch_id") from None
    return Streamed(chain(first, lines), "application/x-jsonl")


async def _results(files: Files, record: BatchRecord) -> AsyncGenerator[bytes, None]:
    time_slice, held = TimeSlice(), bytearray()
    parts = [*await files.broker.parts(record.output_file_id), *await files.broker.parts(record.error_file_id)]
    if sum(part.bytes for part in parts) != record.output_bytes + record.error_bytes:
        raise ContentGone("a file of the results was deleted")
    async for group in number_lines(files.read(parts), MAX_LINE_BYTES):
        for _, text in group:
            held += await offload(len(text), result_line, text)
            if len(held) >= PIECE_BYTES:
                yield bytes(held)
                held.clear()
            await time_slice.yield_if_over()
    yield bytes(held)


async def _find(context: AuthContext, batch_id: str, once_ended: str = "") -> BatchRecord:
    """Returns one of the caller's message batches.

    Args:
        context: the caller.
        batch_id: the id that it names.
        once_ended: what can be done only once the batch has ended; empty for nothing.

    Raises:
        ApiError: the caller has none of this id, or it has not ended.
    """
    own = own_id(batch_id)
    record = None if own is None else await context.batching.broker.batch(own)
    if record is None or record.tenant != context.tenant or record.endpoint != MESSAGES:
        raise ApiError(404, f"there is no batch {batch_id[:80]!r}", "batch_not_found", param="batch_id")
    if once_ended and not record.status.ended:
        raise ApiError(400, f"the batch has not ended, and cannot be {once_ended}", "batch_not_ended", param="batch_id")
    return record
