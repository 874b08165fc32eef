"""Health of the gateway itself: alive, ready, and why not. Its endpoints need no key.

`open_health_port` has the same endpoints and the metrics on a port that callers' connections cannot fill up.
"""

from __future__ import annotations

import asyncio
from importlib import metadata

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from streamfleet.common.errors import StreamfleetError, UnknownProtocol
from streamfleet.common.health import HealthServer, ask_loop
from streamfleet.gateway import metrics
from streamfleet.gateway.document import PLAIN, TEXT, answers, operation
from streamfleet.gateway.gateway import Gateway, gateway_of

REDIS_TIMEOUT_S = 2.0
LOOP_TIMEOUT_S = 3.0
"""An event loop that answers nobody for so long fails a probe; Kubernetes then tries some more."""
KEYS_OFF = "keys are off: whoever reaches this gateway may use it, in all lanes (STREAMFLEET_GATEWAY_KEYS)"
router = APIRouter(tags=["health"])
_TEXT = answers(TEXT, PLAIN)


@router.get("/livez", **operation({200: _TEXT}, keyed=False))
async def livez() -> Response:
    """200 while the process answers."""
    return PlainTextResponse("ok\n")


@router.head("/", include_in_schema=False)
async def ping(request: Request) -> Response:  # noqa: ARG001 - a route's
    """200 while the process answers: clients of Anthropic's API look before they ask."""
    return Response()


@router.get("/readyz", **operation({200: _TEXT, 503: _TEXT}, keyed=False))
async def readyz(request: Request) -> Response:
    """200 while it takes requests: not stopping, Redis answers, the protocol is known. Else 503 with the reason."""
    reason = await _unready_reason(gateway_of(request))
    return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)


@router.get("/health", **operation({200: answers("Health"), 503: answers("Health")}, keyed=False))
async def health(request: Request) -> Response:
    """The same for people, with what may surprise them."""
    gateway = gateway_of(request)
    reason = await _unready_reason(gateway)
    page = {
        "status": "unready" if reason else "healthy",
        "reason": reason or None,
        "keys": "on" if gateway.keys_on else "off",
        "warnings": [] if gateway.keys_on else [KEYS_OFF],
        "version": metadata.version("streamfleet"),
    }
    return JSONResponse(page, 503 if reason else 200)


async def _unready_reason(gateway: Gateway) -> str:
    """Returns the reason why no new caller may be sent here; empty if one may be."""
    if gateway.draining:
        return "stopping"
    try:
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            await asyncio.gather(*map(gateway.queues.ping, gateway.models.queues))
    except TimeoutError:
        return f"no answer from Redis within {REDIS_TIMEOUT_S:g} s"
    except UnknownProtocol as error:
        return str(error)
    except StreamfleetError:
        return "Redis cannot be reached, or refuses"
    return ""


def open_health_port(gateway: Gateway) -> HealthServer:
    """Probes and metrics on a port of their own, served by threads. Call it on the gateway's event loop.

    Raises:
        SettingsError: the port is taken.
    """
    settings, loop = gateway.settings, asyncio.get_running_loop()
    return HealthServer(
        settings.gateway_host,
        settings.gateway_health_port,
        lambda: ask_loop(loop, _unready_reason(gateway), REDIS_TIMEOUT_S + LOOP_TIMEOUT_S),
        metrics.REGISTRY,
        "STREAMFLEET_GATEWAY_HEALTH_PORT",
        live=lambda: ask_loop(loop, asyncio.sleep(0, ""), LOOP_TIMEOUT_S),
    )
