"""GET /v1/streams: read a stream again, from its beginning or from the last chunk that a reader has.

Only the key that sent a request may read its stream. `streaming` sends the events.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from streamfleet.gateway.call import call_of
from streamfleet.gateway.document.operations import AFTER, RESTARTS, SSE, answers, operation
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.gateway import Gateway, gateway_of
from streamfleet.gateway.request_parameters import belongs_to, read_restart_events
from streamfleet.gateway.streaming import Reading, open_stream
from streamfleet.producer.client import Client

router = APIRouter(tags=["models"])
_ERRORS = (400, 404, 499, 504, "4XX", "5XX")


@router.get(
    "/v1/streams/{request_id}",
    **operation({200: answers("EngineAnswer", SSE)}, _ERRORS, parameters=(AFTER, RESTARTS)),
)
async def stream(request: Request, request_id: str) -> Response:
    """The tokens of a request that was sent with `stream`, by the `x-streamfleet-id` of its answer.

    `Last-Event-ID` resumes after that event. Reading changes nothing, and leaving cancels nothing.
    """
    gateway, call = gateway_of(request), call_of(request)
    caller = await gateway.authenticator.admit(request)
    call.headers |= caller.limit_headers()
    client = await _find_client(gateway, request_id) if belongs_to(caller.owner, request_id) else None
    if client is None:
        raise ApiError(404, "there is no such request, or it is not yours", "request_not_found", param="request_id")
    call.set_request_id(request_id)
    reading = Reading(
        gateway=gateway,
        call=call,
        client=client,
        handle=client.handle(request_id),
        after=request.headers.get("last-event-id") or None,
        restart_events=read_restart_events(request.headers),
        wait_s=gateway.settings.gateway_max_wait_ms / 1000,
        on_left=lambda: None,
    )
    return await open_stream(request, reading)


async def _find_client(gateway: Gateway, request_id: str) -> Client | None:
    """Returns the client of the queue that knows a request; None if no queue does."""
    for queue in gateway.models.queues:
        client = await gateway.queues.client(queue)
        if await client.broker.record(request_id) or await client.broker.result(request_id):
            return client
    return None
