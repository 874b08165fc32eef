"""Descriptions of operations for routes' decorators, and the whole OpenAPI document.

`operation` returns the arguments of a decorator: answers, errors, body, parameters. `document` collects the routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Response

from streamfleet.common.protocol import LANES
from streamfleet.gateway.document.schemas import SCHEMAS, SPAN, TEXT, Schema, ref

JSON, SSE, PLAIN, BYTES, FORM = (
    "application/json",
    "text/event-stream",
    "text/plain",
    "application/octet-stream",
    "multipart/form-data",
)
ALWAYS = {
    408: "the request did not arrive in time",
    431: "its headers are too large",
    500: "a fault of the gateway's, which its log tells",
    503: "Redis is away, no worker is there, or this gateway is stopping: try again after `retry-after`",
}
KEYED = {401: "no API key, or one that is not valid", 429: "a limit is reached: try again after `retry-after`"}
ERRORS = {
    400: "the request is wrong; `param` names the field or header",
    403: "the API key may not use this lane",
    404: "there is no such thing, or it is not yours",
    409: "it is in the way of something else; `code` says of what",
    413: "the body is too large",
    499: "somebody cancelled the request",
    504: "not answered by its deadline",
    "4XX": "what the engine says",
    "5XX": "what the engine says",
}


def header(name: str, schema: Schema, about: str) -> Schema:
    """An optional header."""
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": about}


def query(name: str, schema: Schema, about: str) -> Schema:
    """An optional query parameter."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": about}


LANE = header("X-Streamfleet-Lane", {"type": "string", "enum": list(LANES)}, "goes before `service_tier`")
RESTARTS = header(
    "X-Streamfleet-Restarts", {"type": "string", "enum": ["error", "event"]}, "how a stream that begins anew is told"
)
AFTER = header("Last-Event-ID", TEXT, "of a stream: go on behind this event")
IDEMPOTENCY = header(
    "Idempotency-Key", {"type": "string", "maxLength": 1_024}, "the same key and body are the same request"
)
WAITING = (
    LANE,
    header("X-Streamfleet-Ttl", SPAN, "when the answer becomes worthless, from now"),
    header("X-Streamfleet-Deadline-Ms", {"type": "string", "pattern": "^[0-9]{12,16}$"}, "the same in epoch ms"),
    header(
        "X-Streamfleet-On-Disconnect",
        {"type": "string", "enum": ["cancel", "continue"]},
        "what becomes of the request when the caller leaves",
    ),
)


def paging(most: int, usual: int) -> tuple[Schema, Schema]:
    """Parameters of a list: the id to begin after, and the number of items."""
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return query("after", TEXT, "the last id that you have"), query("limit", limit, "how many")


def body(schema: str, media: str = JSON) -> Schema:
    """A request's body."""
    return {"required": True, "content": {media: {"schema": ref(schema)}}}


def answers(schema: str | Schema, *media: str, about: str = "the answer") -> Schema:
    """A successful answer."""
    found = ref(schema) if isinstance(schema, str) else schema
    return {"description": about, "content": {name: {"schema": found} for name in media or (JSON,)}}


def operation(
    good: Mapping[int, Schema],
    errors: Sequence[int | str] = (),
    takes: Schema | None = None,
    parameters: Sequence[Schema] = (),
    *,
    keyed: bool = True,
) -> dict[str, Any]:
    """Returns the arguments of a route's decorator.

    Args:
        good: answers by status.
        errors: statuses, in addition to those that every operation may answer.
        takes: the request's body.
        parameters: in addition to those of the path.
        keyed: True if the operation needs an API key.
    """
    every = ALWAYS | (KEYED if keyed else {})
    refused = {status: ERRORS[status] for status in errors} | every
    problem = {JSON: {"schema": ref("Error")}}
    responses: dict[str, Any] = {
        str(status): {"description": about, "content": problem} for status, about in refused.items()
    }
    responses |= {str(status): answer for status, answer in good.items()}
    found: dict[str, Any] = {"responses": responses}
    if takes is not None:
        found["requestBody"] = takes
    if parameters:
        found["parameters"] = list(parameters)
    if not keyed:
        found["security"] = []
    # With response_class, FastAPI adds no answer of its own.
    return {"openapi_extra": found, "response_class": Response}


def document(app: FastAPI, *, keys_on: bool) -> dict[str, Any]:
    """Returns the whole document, without FastAPI's 422 answers, which no operation gives."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        for path in made["paths"].values():
            for each in path.values():
                each["responses"].pop("422", None)
        components = made.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.update(SCHEMAS)
        if keys_on:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            made["security"] = [{"key": []}]
        app.openapi_schema = made
    return app.openapi_schema
