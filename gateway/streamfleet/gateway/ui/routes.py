"""/ui: the page's files for everybody, its data and actions for operators.

Each handler returns JSON from `session`, `search` or `operator.json_view`. Queue data needs an
operator's key; where keys are off, only pages of other sites are refused.

The files hold nothing secret, so no key is needed for them. The headers keep other sites out of the page; the checks
keep their forms from acting through a visitor's browser.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from streamfleet.common.errors import NotPermitted
from streamfleet.common.protocol import parse_body
from streamfleet.gateway.authentication import check_own_site
from streamfleet.gateway.body import read_body
from streamfleet.gateway.broker.responses import PREFIX, ResponseRecord
from streamfleet.gateway.call import call_of
from streamfleet.gateway.errors import NOT_AGAIN, REFUSED, SERVER, ApiError
from streamfleet.gateway.gateway import Gateway, gateway_of
from streamfleet.gateway.offload import offload
from streamfleet.gateway.ui import parameters
from streamfleet.gateway.ui.search import search
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.dead_letters import DeadLetter, NotRequeued, read_letter
from streamfleet.operator.dead_letters import requeue as requeue_letter
from streamfleet.operator.json_view import letter_object, trace_object
from streamfleet.operator.request_location import Trace, trace
from streamfleet.operator.request_trace import not_found
from streamfleet.operator.texts import SHORT_CHARS, line, passage

MOST_BODY_BYTES = 65_536
MOST_BYTES = 4_194_304
"""Bytes of one page: dead letters contain the request's body."""
GONE = "there is no such dead letter any more"
Handler = Callable[..., Awaitable[dict[str, Any]]]
# Only the page uses this JSON: its form may change at any time.
router = APIRouter(tags=["ui"], include_in_schema=False)
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
INDEX = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
NO_STORE: Mapping[str, str] = {"cache-control": "no-store"}
"""Headers of answers with data, which no cache may store."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


def _for_operators(handler: Handler) -> Callable[..., Awaitable[Response]]:
    """Wraps a handler: only operators get its answer."""

    @wraps(handler)
    async def handling(request: Request, **path: str) -> Response:
        call_of(request).headers.update({**HEADERS, **NO_STORE})
        await _require_operator(request)
        try:
            return JSONResponse(await handler(request, **path))
        except NotPermitted:
            raise _not_permitted() from None

    return handling


async def _require_operator(request: Request) -> None:
    """Refuse callers that are no operators.

    Raises:
        ApiError: the key is missing, or not an operator's; or, where keys are off, another site's page asks.
    """
    gateway = gateway_of(request)
    if not gateway.keys_on:
        check_own_site(request.headers)
    caller = await gateway.authenticator.admit(request, 0)
    if gateway.keys_on:
        call_of(request).facts["key"] = caller.owner
    if not caller.operator:
        raise _operator_required()
    call_of(request).admit(caller.tenant)
    if request.method == "POST":
        check_json(request.headers)


# -- files -------------------------------------------------------------------------------------------------


@router.get("/ui")
@router.get("/ui/")
async def index(request: Request) -> Response:
    """The page."""
    return _file_response(request, INDEX)


@router.get("/ui/static/{name}")
async def static(request: Request, name: str) -> Response:
    """One of the page's files."""
    return _file_response(request, name)


def _file_response(request: Request, name: str) -> Response:
    call_of(request).headers.update(HEADERS)
    found = page_file(name)
    if found is None:
        raise ApiError(404, f"the page has no file {line(name, 80)}", "not_found", headers=NOT_AGAIN)
    headers = {"etag": found.etag, "cache-control": "no-cache"}
    if is_known(found.etag, request.headers.get("if-none-match")):
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.media_type)


# -- looking -----------------------------------------------------------------------------------------------


@router.get("/ui/api/overview")
@_for_operators
async def overview(request: Request) -> dict[str, Any]:
    """The state of a queue at this instant."""
    gateway = gateway_of(request)
    queue = _queue(gateway, request.query_params.get("queue"))
    seen = await gateway.ui_session.reading(queue).get()
    return {"object": "ui.overview", "queue": queue, "queues": gateway.models.queues, **seen}


@router.get("/ui/api/requests")
@_for_operators
async def requests(request: Request) -> dict[str, Any]:
    """Requests that match a search."""
    gateway = gateway_of(request)
    queue = _queue(gateway, request.query_params.get("queue"))
    criteria = parameters.read_criteria(request.query_params)
    with gateway.ui_session.search_slot():
        broker = await gateway.ui_session.broker(queue)
        found = await search(broker, criteria)
    return {
        "object": "ui.search",
        "queue": queue,
        "now_ms": await broker.now_ms(),
        "data": list(found.rows.values()),
        "more": found.more,
        "looked": found.extent.to_json(),
        "note": found.extent.note,
    }


@router.get("/ui/api/requests/{request_id:path}")
@_for_operators
async def request_trace(request: Request, request_id: str) -> dict[str, Any]:
    """Everything that is known of one request."""
    gateway = gateway_of(request)
    queue = _queue(gateway, request.query_params.get("queue"))
    found = await _trace(gateway, queue, request_id)
    values = await offload(gateway.queue_settings.max_body_bytes, trace_object, found)
    stored = (await gateway.responses.broker.records([found.request_id]))[0]
    return {"object": "ui.request", "queue": queue, **values, "response": stored and _stored_object(stored)}


def _stored_object(record: ResponseRecord) -> dict[str, str]:
    """Returns the stored response of a request."""
    before = record.previous and f"{PREFIX}{record.previous}"
    return {"id": f"{PREFIX}{record.id}", "status": record.status, "previous": before}


@router.get("/ui/api/dead")
@_for_operators
async def dead(request: Request) -> dict[str, Any]:
    """Dead letters, newest first."""
    gateway = gateway_of(request)
    queue = _queue(gateway, request.query_params.get("queue"))
    before, limit = parameters.read_before(request.query_params), parameters.read_limit(request.query_params)
    with gateway.ui_session.search_slot():
        broker = await gateway.ui_session.broker(queue)
        found, following = await _dead_letters(broker, before, limit)
    now_ms, audit = await broker.now_ms(), await broker.audit(0)
    return {
        "object": "ui.dead",
        "queue": queue,
        "now_ms": now_ms,
        "total": audit.dead_letters,
        "data": [
            await offload(len(dead_letter.original.get(b"body", b"")), _dead_letter_object, dead_letter, now_ms)
            for dead_letter in found
        ],
        "next": following,
    }


# -- acting ------------------------------------------------------------------------------------------------


@router.post("/ui/api/dead/requeue")
@_for_operators
async def requeue(request: Request) -> dict[str, Any]:
    """Enqueue dead letters' requests again."""
    gateway, queue, asked = await _read_action(request)
    ids = parameters.read_dead_letter_ids(asked)
    broker = await gateway.ui_session.broker(queue)
    now_ms = await broker.now_ms()
    done = [await _requeue(broker, letter_id, now_ms) for letter_id in ids]
    gateway.ui_session.reading(queue).invalidate()
    return {"object": "ui.requeued", "done": sum(each["ok"] for each in done), "data": done}


@router.post("/ui/api/dead/purge")
@_for_operators
async def purge(request: Request) -> dict[str, Any]:
    """Delete dead letters for good."""
    gateway, queue, asked = await _read_action(request)
    deleted = await (await gateway.ui_session.broker(queue)).purge(parameters.read_dead_letter_ids(asked))
    gateway.ui_session.reading(queue).invalidate()
    return {"object": "ui.purged", "deleted": deleted}


@router.post("/ui/api/pause")
@_for_operators
async def pause(request: Request) -> dict[str, Any]:
    """Pause lanes."""
    return await _set_paused(request, resting=True)


@router.post("/ui/api/resume")
@_for_operators
async def resume(request: Request) -> dict[str, Any]:
    """Resume lanes."""
    return await _set_paused(request, resting=False)


async def _set_paused(request: Request, *, resting: bool) -> dict[str, Any]:
    gateway, queue, asked = await _read_action(request)
    lanes = parameters.read_lanes(asked)
    broker = await gateway.ui_session.broker(queue)
    changed = await (broker.pause(lanes) if resting else broker.resume(lanes))
    gateway.ui_session.reading(queue).invalidate()
    paused, now_ms = await broker.paused(), await broker.now_ms()
    return {
        "object": "ui.lanes",
        "queue": queue,
        "changed": [lane.value for lane in changed],
        "paused": {lane.value: max(0.0, (now_ms - since_ms) / 1000) for lane, since_ms in paused.items()},
    }


@router.post("/ui/api/requests/{request_id:path}/cancel")
@_for_operators
async def cancel(request: Request, request_id: str) -> dict[str, Any]:
    """Cancel a request, queued or running."""
    gateway, queue, _ = await _read_action(request)
    known = (await _trace(gateway, queue, request_id)).request_id
    client = await gateway.ui_session.client(queue)
    cancelled = await client.cancel(known)
    gateway.ui_session.reading(queue).invalidate()
    return {"object": "ui.cancelled", "id": known, "cancelled": cancelled, "state": (await client.status(known)).state}


async def _trace(gateway: Gateway, queue: str, request_id: str) -> Trace:
    """Returns everything that is stored about a request.

    Raises:
        ApiError: nothing is stored.
    """
    with gateway.ui_session.search_slot():
        found = await trace(await gateway.ui_session.broker(queue), request_id)
    if not found.known:
        raise ApiError(404, not_found(found), "request_not_found", param="id", headers=NOT_AGAIN)
    return found


async def _read_action(request: Request) -> tuple[Gateway, str, dict[str, Any]]:
    """Returns the gateway, the queue and the body of an action."""
    gateway = gateway_of(request)
    raw = await read_body(request, MOST_BODY_BYTES, gateway.bodies.hold(None))
    asked = parse_body(raw, MOST_BODY_BYTES)
    return gateway, _queue(gateway, parameters.read_queue(asked)), asked


def _queue(gateway: Gateway, name: str | None) -> str:
    """Returns the name of the queue that is asked for.

    Raises:
        ApiError: the gateway does not serve it.
    """
    queues = gateway.models.queues
    if not name:
        return queues[0]
    if name not in queues:
        text = f"this gateway serves no queue {line(name, 80)!r}, only {', '.join(queues)}"
        raise ApiError(404, text, "queue_not_found", param="queue", headers=NOT_AGAIN)
    return name


async def _dead_letters(broker: OperatorBroker, before: str | None, limit: int) -> tuple[list[DeadLetter], str | None]:
    """Returns some dead letters, newest first, and the id after which the next page begins; None for the last page.

    Args:
        broker: the queue.
        before: only dead letters older than this id; None for the newest.
        limit: most dead letters on the page.
    """
    dead_letters: list[DeadLetter] = []
    size = 0
    newest = "+" if before is None else f"({before}"
    async for letter_id, fields in broker.stream_entries(broker.keys.dead, newest, limit + 1, newest_first=True):
        if len(dead_letters) == limit or size > MOST_BYTES:
            return dead_letters, dead_letters[-1].letter_id
        dead_letters.append(read_letter(letter_id, fields))
        size += sum(map(len, fields.values()))
    return dead_letters, None


def _dead_letter_object(dead_letter: DeadLetter, now_ms: int) -> dict[str, Any]:
    """Returns a dead letter as JSON values, with the beginning of its body."""
    return letter_object(dead_letter, now_ms) | {"body": passage(dead_letter.original.get(b"body"), SHORT_CHARS)}


async def _requeue(broker: OperatorBroker, letter_id: str, now_ms: int) -> dict[str, Any]:
    fields: Mapping[bytes, bytes] | None = await broker.dead_letter(letter_id)
    if fields is None:
        return _outcome(letter_id, error=GONE, code="gone")
    dead_letter = read_letter(letter_id, fields)
    try:
        revived = await requeue_letter(broker, dead_letter, now_ms)
    except NotRequeued as error:
        return _outcome(letter_id, dead_letter, error=line(str(error)), code=error.code)
    if revived is None:
        return _outcome(letter_id, dead_letter, error=GONE, code="gone")
    return _outcome(letter_id, dead_letter, *revived)


def _outcome(
    letter_id: str,
    dead_letter: DeadLetter | None = None,
    entry: str | None = None,
    dropped: Sequence[str] = (),
    error: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    return {
        "letter_id": letter_id,
        "ok": error is None,
        "request_id": line(dead_letter.request_id) if dead_letter else None,
        "entry": entry,
        "dropped": list(dropped),
        "error": error,
        "code": code,
    }


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, its media type, and its version for ``ETag``."""

    content: bytes
    media_type: str
    etag: str


def page_file(name: str) -> PageFile | None:
    """Returns a file by its name; None if no such file is served."""
    suffix = "." + name.rpartition(".")[2]
    return _read(name, TYPES[suffix]) if _NAME.fullmatch(name) and suffix in TYPES else None


def is_known(etag: str, asked: str | None) -> bool:
    """True if ``If-None-Match`` names this version."""
    return asked is not None and etag in [part.strip().removeprefix("W/") for part in asked.split(",")]


@lru_cache(maxsize=64)
def _read(name: str, media_type: str) -> PageFile | None:
    try:
        content = resources.files(__package__).joinpath("static", name).read_bytes()
    except OSError:
        return None
    return PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def check_json(headers: Mapping[str, str]) -> None:
    """Require JSON for requests that change something: a form on another site cannot send that type.

    Raises:
        ApiError: the body is not declared as JSON.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "send the body as JSON, with 'Content-Type: application/json'"
        raise ApiError(415, text, "json_required", param="Content-Type", headers=NOT_AGAIN)


def _operator_required() -> ApiError:
    """Returns the refusal of a key that is no operator's."""
    text = "this is no operator's API key; make one with `streamfleet gateway keys create NAME --operator`"
    return ApiError(403, text, "operator_key_required", REFUSED, headers=NOT_AGAIN, reason="key")


def _not_permitted() -> ApiError:
    """Returns the error for a Redis user that lacks an operator's rights."""
    text = (
        "the Redis user of this gateway may not do this: set STREAMFLEET_GATEWAY_UI_REDIS_URL to the same Redis "
        "with a user of the role operator (`streamfleet acl --role operator` has its rules)"
    )
    return ApiError(503, text, "ui_not_permitted", SERVER, headers=NOT_AGAIN)
