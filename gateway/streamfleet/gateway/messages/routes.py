"""Endpoints of Anthropic's Messages API. Requests go the way of all others, through `inference`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from streamfleet.common.protocol import COUNT_TOKENS, MESSAGES
from streamfleet.gateway.document import body, operation
from streamfleet.gateway.inference import ANSWER, ERRORS, NAMED, STREAMED, STREAMING, DirectRoute, answer

router = APIRouter(tags=["messages"], route_class=DirectRoute)
_BODY, _ERROR = body("MessageRequest"), "MessageError"


@router.post(MESSAGES, **operation({200: STREAMED}, ERRORS, _BODY, STREAMING, error=_ERROR))
async def messages(request: Request) -> Response:
    """A conversation's next message, in Anthropic's form."""
    return await answer(request, MESSAGES)


@router.post(COUNT_TOKENS, **operation({200: ANSWER}, ERRORS, _BODY, NAMED, error=_ERROR))
async def count_tokens(request: Request) -> Response:
    """Number of tokens of such a conversation. It counts towards no limit of tokens."""
    return await answer(request, COUNT_TOKENS)


@router.head("/", include_in_schema=False)
async def ping(request: Request) -> Response:  # noqa: ARG001 - a route's
    """200 while the process answers: clients of Anthropic's API look before they ask."""
    return Response()
