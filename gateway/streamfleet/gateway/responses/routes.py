"""/v1/responses/{id}: retrieve, stream again, delete and cancel a stored response, and list its input.

A caller sees only the responses of its own API key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import RESPONSES
from streamfleet.gateway.auth_context import AuthContext, authenticate
from streamfleet.gateway.broker.responses import ResponseRecord
from streamfleet.gateway.document import (
    AFTER,
    COUNT,
    EXPECTED,
    JSON,
    RESTARTS,
    SSE,
    answers,
    enum_of,
    operation,
    paging,
    query,
)
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.paging import read_page
from streamfleet.gateway.streaming import ENDED, response_stream

router = APIRouter(tags=["responses"])
_PATH = RESPONSES + "/{response_id}"
_ORDER = query("order", enum_of("asc", "desc"), "of the list; the newest item comes first by default")
USUAL_LISTED, MOST_LISTED = 20, 100


@router.get(
    _PATH,
    **operation(
        {200: answers("Response", JSON, SSE), 204: ENDED},
        (400, 404, 499, 504, "4XX", "5XX"),
        parameters=(
            query("stream", {"type": "string", "enum": ["true"]}, "its events, as long as they are kept"),
            query("starting_after", COUNT, "of a stream: `sequence_number` of the last event that you have"),
            *(AFTER, RESTARTS, EXPECTED),
        ),
    ),
)
async def response(request: Request, response_id: str) -> Response:
    """A stored response, or the events of one that was streamed. Its `id` has that of its request."""
    if request.query_params.get("stream") == "true":
        return await response_stream(request, response_id)
    context, record = await _find(request, response_id)
    return JSONResponse(await context.gateway.responses.shown(record, context.hold_answer))


@router.delete(_PATH, **operation({200: answers("ResponseDeleted")}, (404,)))
async def delete(request: Request, response_id: str) -> JSONResponse:
    """Delete a stored response. Those that go on from it cannot be gone on from any more."""
    context, record = await _find(request, response_id)
    if record.background and not record.ended:
        await context.gateway.responses.cancel(record)
    await context.gateway.responses.broker.delete(record.tenant, record.id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.post(_PATH + "/cancel", **operation({200: answers("Response")}, (400, 404)))
async def cancel(request: Request, response_id: str) -> JSONResponse:
    """Cancel a response that was asked for with `background`."""
    context, record = await _find(request, response_id)
    responses = context.gateway.responses
    if not record.background:
        raise ApiError(400, "Cannot cancel a synchronous response.", "invalid_value", param="response_id")
    record = record if record.ended else await responses.cancel(record)
    return JSONResponse(await responses.shown(record, context.hold_answer))


@router.get(
    _PATH + "/input_items",
    **operation({200: answers("InputItemList")}, (400, 404), parameters=(*paging(MOST_LISTED, USUAL_LISTED), _ORDER)),
)
async def input_items(request: Request, response_id: str) -> JSONResponse:
    """The input of a stored response, without the conversation that it goes on from."""
    context, record = await _find(request, response_id)
    page = read_page(request.query_params, "", USUAL_LISTED, MOST_LISTED)
    given = await context.gateway.responses.input_of(record, context.hold_answer)
    items = [_item(record, at, each) for at, each in enumerate(given)]
    if page.newest_first:
        items.reverse()
    ids = [item["id"] for item in items]
    if page.after and page.after not in ids:
        raise InvalidRequest(f"no input item has the id {page.after[:80]!r}", "after")
    begin = ids.index(page.after) + 1 if page.after else 0
    end = begin + page.limit
    return JSONResponse({**page.to_json(ids[begin : end + 1]), "data": items[begin:end]})


def _item(record: ResponseRecord, at: int, given: Any) -> dict[str, Any]:
    """Returns an input item as OpenAI lists it: with an id, and a message's text as a part."""
    item = dict(given) if isinstance(given, Mapping) else {"content": given}
    if "role" in item:
        item.setdefault("type", "message")
        if isinstance(item.get("content"), str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": item["content"]}]
    kind = "msg" if item.get("type") == "message" else "item"
    return {**item, "id": item.get("id") or f"{kind}_{record.id}_{at}"}


async def _find(request: Request, response_id: str) -> tuple[AuthContext, ResponseRecord]:
    """Returns one of the caller's responses.

    Raises:
        ApiError: the caller has none of this id.
    """
    context = await authenticate(request)
    record = await context.gateway.responses.find(context.caller, response_id)
    if record is None:
        raise ApiError(404, f"Response with id '{response_id[:300]}' not found.", "response_not_found")
    context.call.set_request_id(record.id)
    return context, record
