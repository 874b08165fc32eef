"""The FastAPI application: includes all routers, and turns every exception into an OpenAI error.

`build` makes it from one process's `Gateway`. It holds no state of its own.
"""

from __future__ import annotations

from importlib import metadata

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from streamfleet.common.errors import BrokerUnavailable, NotPermitted, SettingsError, StreamfleetError
from streamfleet.gateway import health, inference, model_routes, streaming
from streamfleet.gateway.batches import routes as batches
from streamfleet.gateway.body import drop_body
from streamfleet.gateway.call import call_of
from streamfleet.gateway.disconnect import CallerLeft
from streamfleet.gateway.document import document
from streamfleet.gateway.errors import (
    CLIENT_LEFT,
    ApiError,
    exception_to_api_error,
    http_status_to_api_error,
    internal_error,
)
from streamfleet.gateway.files import routes as files
from streamfleet.gateway.gateway import Gateway
from streamfleet.gateway.messages import batches as message_batches
from streamfleet.gateway.messages.translation import answer_of
from streamfleet.gateway.responses import routes as responses
from streamfleet.gateway.simple import routes as simple
from streamfleet.gateway.ui import routes as ui

log = structlog.get_logger(__name__)
ROUTERS = (
    inference.router,
    message_batches.router,
    model_routes.router,
    streaming.router,
    responses.router,
    health.router,
    files.router,
    batches.router,
    simple.router,
)
EXPOSED_HEADERS = (
    "x-request-id",
    "x-streamfleet-id",
    "x-streamfleet-lane",
    "x-streamfleet-place",
    "x-streamfleet-expected-ms",
    "x-streamfleet-ignored",
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    *(f"anthropic-ratelimit-{of}-{what}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    "request-id",
)
"""Headers that pages in a browser may read."""


def build(gateway: Gateway) -> FastAPI:
    """The application of one process."""
    app = FastAPI(
        title="streamfleet gateway",
        version=metadata.version("streamfleet"),
        # FastAPI's documentation pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        # The redirect would name http:// where a proxy in front speaks TLS.
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.openapi = lambda: document(app, keys_on=gateway.keys_on)  # type: ignore[method-assign]
    for router in ROUTERS:
        app.include_router(router)
    if gateway.settings.gateway_ui == "on":
        app.include_router(ui.router)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(StreamfleetError, _on_refusal)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_http)
    app.add_exception_handler(CallerLeft, _on_left)
    app.add_exception_handler(ClientDisconnect, _on_left)
    app.add_exception_handler(Exception, _on_fault)
    if gateway.settings.gateway_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=gateway.settings.gateway_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return app


async def respond(request: Request, error: ApiError) -> Response:
    """Returns an error as an answer; closes the connection if the rest of the body was not received."""
    call_of(request).refused = error.reason
    headers = dict(error.headers)
    if "connection" not in headers and not await drop_body(request):
        headers["connection"] = "close"
    status, body = answer_of(error, call_of(request))
    return Response(body, status, headers, "application/json")


async def _on_api_error(request: Request, error: Exception) -> Response:
    return await respond(request, error if isinstance(error, ApiError) else internal_error())


async def _on_refusal(request: Request, error: Exception) -> Response:
    if isinstance(error, BrokerUnavailable):
        log.warning("redis_unavailable", http_id=call_of(request).id, error=str(error))
    elif isinstance(error, SettingsError | NotPermitted):
        log.error("not_set_up", http_id=call_of(request).id, error=str(error))
    return await respond(
        request, exception_to_api_error(error) if isinstance(error, StreamfleetError) else internal_error()
    )


async def _on_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 422
    found = http_status_to_api_error(status, request.url.path, request.method)
    allowed = (error.headers or {}).get("Allow") if isinstance(error, HTTPException) else None
    if allowed:
        found.headers = {"allow": allowed}
    return await respond(request, found)


async def _on_left(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    call_of(request).facts["left"] = True
    return Response(status_code=CLIENT_LEFT)


async def _on_fault(request: Request, error: Exception) -> Response:  # noqa: ARG001 - it is raised on, and logged there
    status, body = answer_of(internal_error(), call_of(request))
    return Response(body, status, {"connection": "close"}, "application/json")
