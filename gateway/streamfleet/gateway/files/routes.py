"""/v1/files: upload, list, retrieve, download and delete files.

Handlers move bytes between the caller and `Files`. A tenant sees only its own files.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.batch_records import FILE, FileRecord, is_id
from streamfleet.gateway.broker.files import Deletion
from streamfleet.gateway.disconnect import Streamed
from streamfleet.gateway.document import BYTES, FORM, TEXT, answers, body, enum_of, operation, paging, query
from streamfleet.gateway.errors import NOT_AGAIN, ApiError
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.files.paging import Page, read_page
from streamfleet.gateway.files.store import BLOCK_BYTES, ContentGone
from streamfleet.gateway.files.upload import receive_file
from streamfleet.gateway.offload import StreamedJson, encode_all

VISIBLE = ("batch", "batch_output")
"""Purposes of files that callers see; those of the simple service stay hidden."""
MOST_LISTED = 10_000
LOOK_AT = 500
MOST_HELD_BYTES = 2 * BLOCK_BYTES
"""Bytes of a content that are held for its reader at most."""
router = APIRouter(tags=["files"])
_PAGES = (
    *paging(MOST_LISTED, MOST_LISTED),
    query("order", enum_of("asc", "desc"), "by their age"),
    query("purpose", TEXT, "only those of this purpose"),
)
_CONTENT = answers({"type": "string", "format": "binary"}, BYTES, about="what is in the file")


@router.post("/v1/files", **operation({200: answers("File")}, (400, 413), body("FileUpload", FORM)))
async def upload(request: Request) -> JSONResponse:
    """Store a file."""
    context = await authenticate(request, requests=1)
    most_bytes = context.settings.gateway_file_max_bytes
    with context.files.place(context.tenant):
        record = await receive_file(request, context.files, context.tenant, most_bytes)
    context.call.facts |= {"file": record.id, "bytes": record.bytes}
    return JSONResponse(file_object(record))


@router.get("/v1/files", **operation({200: answers("FileList")}, (400,), parameters=_PAGES))
async def files(request: Request) -> Response:
    """The tenant's files, newest first unless `order` is asc."""
    context = await authenticate(request)
    page = read_page(request.query_params, FILE, 10_000, MOST_LISTED)
    purpose = request.query_params.get("purpose")
    wanted = VISIBLE if purpose is None else tuple(name for name in VISIBLE if name == purpose)
    ids, items = await _list_files(context.files, context.tenant, page, wanted)
    context.hold_answer(sum(map(len, items)))
    return StreamedJson(page.to_json(ids), data=items[: page.limit])


@router.get("/v1/files/{file_id}", **operation({200: answers("File")}, (404,)))
async def file(request: Request, file_id: str) -> JSONResponse:
    """One file."""
    return JSONResponse(file_object(await find_file(await authenticate(request), file_id)))


@router.get("/v1/files/{file_id}/content", **operation({200: _CONTENT}, (404,)))
async def content(request: Request, file_id: str) -> Response:
    """The content of a file."""
    context = await authenticate(request)
    record = await find_file(context, file_id)
    parts = await context.files.broker.parts(file_id)
    context.hold_answer(min(sum(part.bytes for part in parts), MOST_HELD_BYTES))
    blocks = context.files.read(parts)
    try:
        first = await anext(blocks, b"")  # after the headers, a missing content could not be reported
    except ContentGone:
        raise content_gone() from None
    headers = {
        "content-length": str(sum(part.bytes for part in parts)),
        # A browser has to save the content, never to show it.
        "content-disposition": f'attachment; filename="{record.id}.jsonl"',
    }
    return Streamed(chain(first, blocks), "application/octet-stream", headers)


@router.delete("/v1/files/{file_id}", **operation({200: answers("FileDeleted")}, (404, 409)))
async def delete(request: Request, file_id: str) -> JSONResponse:
    """Delete a file."""
    context = await authenticate(request)
    code = await context.files.delete(await find_file(context, file_id))
    if code is Deletion.IN_USE:
        text = "a batch that has not ended reads this file: cancel the batch, or wait for its end"
        raise ApiError(409, text, "file_in_use", param="file_id", headers=NOT_AGAIN)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


def content_gone() -> ApiError:
    """Returns the answer for a file whose content is not in the store any more."""
    return ApiError(404, "the content of the file is gone from the store", "content_gone", param="file_id")


async def find_file(context: AuthContext, file_id: str) -> FileRecord:
    """Returns one of the caller's files.

    Raises:
        ApiError: the caller has none of this id.
    """
    record = await context.files.broker.file(file_id) if is_id(file_id, FILE) else None
    if record is None or record.tenant != context.tenant or record.purpose not in VISIBLE:
        raise ApiError(404, f"there is no file {file_id[:80]!r}; GET /v1/files has those that are", "file_not_found")
    return record


def file_object(record: FileRecord) -> dict[str, Any]:
    """Returns a file as OpenAI shows it."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_ms // 1000,
        "expires_at": record.expires_ms // 1000,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
    }


async def chain(first: bytes, blocks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yields the first block, and the others."""
    async with contextlib.aclosing(blocks):
        yield first
        async for block in blocks:
            yield block


async def _list_files(
    files: Files, tenant: str, page: Page, purposes: tuple[str, ...]
) -> tuple[list[str], list[bytes]]:
    """Returns the ids and the items of a page, and one more if there are more."""
    found: list[str] = []
    items: list[bytes] = []
    after = page.after
    while len(found) <= page.limit:
        ids = await files.broker.file_ids(tenant, after, LOOK_AT, newest_first=page.newest_first)
        records = [record for record in await files.broker.files(ids) if record and record.purpose in purposes]
        found += [record.id for record in records]
        items += await encode_all(map(file_object, records))
        if len(ids) < LOOK_AT:
            break
        after = ids[-1]
    return found[: page.limit + 1], items
