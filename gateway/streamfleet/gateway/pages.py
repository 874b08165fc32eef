"""What is said of the gateway itself: alive, ready, why not, and its metrics. Nobody needs a key for that."""

from __future__ import annotations

import asyncio
from importlib import metadata

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from streamfleet.common.errors import StreamfleetError
from streamfleet.gateway import metrics
from streamfleet.gateway.document.operations import PLAIN, answers, operation
from streamfleet.gateway.document.schemas import TEXT
from streamfleet.gateway.gateway import Gateway, gateway_of

REDIS_TIMEOUT_S = 2.0
KEYS_OFF = "keys are off: whoever reaches this gateway may use it, in all lanes (STREAMFLEET_GATEWAY_KEYS)"
router = APIRouter(tags=["health"])
_TEXT = answers(TEXT, PLAIN)


@router.get("/livez", **operation({200: _TEXT}, keyed=False))
async def livez() -> Response:
    """200 while the process answers."""
    return PlainTextResponse("ok\n")


@router.get("/readyz", **operation({200: _TEXT, 503: _TEXT}, keyed=False))
async def readyz(request: Request) -> Response:
    """200 while it takes requests: it is not stopping, and Redis answers. Else 503 with the reason."""
    reason = await why_unready(gateway_of(request))
    return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)


@router.get("/health", **operation({200: answers("Health"), 503: answers("Health")}, keyed=False))
async def health(request: Request) -> Response:
    """The same for people, with what may surprise them."""
    gateway = gateway_of(request)
    reason = await why_unready(gateway)
    page = {
        "status": "unready" if reason else "ok",
        "reason": reason or None,
        "keys": "on" if gateway.keys_on else "off",
        "warnings": [] if gateway.keys_on else [KEYS_OFF],
        "version": metadata.version("streamfleet"),
    }
    return JSONResponse(page, 503 if reason else 200)


@router.get("/metrics", **operation({200: _TEXT}, keyed=False))
async def numbers() -> Response:
    """For Prometheus."""
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)


async def why_unready(gateway: Gateway) -> str:
    """Why nobody new is to be sent here; empty when somebody may be."""
    if gateway.draining:
        return "stopping"
    try:
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            await gateway.queues.ping(gateway.models.queues[0])
    except TimeoutError:
        return f"no answer from Redis within {REDIS_TIMEOUT_S:g} s"
    except StreamfleetError:
        return "Redis cannot be reached, or refuses"
    return ""
