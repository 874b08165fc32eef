"""Descriptions of operations for routes' decorators, and the whole OpenAPI document.

`operation` returns the arguments of a decorator: answers, errors, body, parameters. `document` collects the routes, and
lists each of SCHEMAS, the objects of requests and answers, once by its name. Pure: nothing is read but the routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Response

from streamfleet.common.protocol import LANES
from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.request_parameters import BATCH_ENDPOINTS, TIERS

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number", "minimum": 0}
SECONDS: Schema = {"type": "integer", "description": "epoch seconds"}
TEXTS: Schema = {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512}}
SPAN: Schema = {"type": "string", "pattern": "^[0-9]{1,6}(ms|s|m|h|d)$", "examples": ["24h"]}


def ref(name: str) -> Schema:
    """A reference to one of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def array_of(schema: Schema, **bounds: int) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": schema, **bounds}


def enum_of(*values: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(values)}


def object_with(**fields: Schema) -> Schema:
    """An object that has all of these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def open_object(needed: list[str], **fields: Schema) -> Schema:
    """An object that has these fields, and may have more."""
    return {"type": "object", "required": needed, "properties": fields, "additionalProperties": True}


def page(of: str, **more: Schema) -> Schema:
    """A page of a list."""
    ends = {"first_id": nullable(TEXT), "last_id": nullable(TEXT), "has_more": FLAG}
    return object_with(data=array_of(ref(of)), **ends, **more)


_SAMPLING: dict[str, Schema] = {
    "model": {"type": "string", "description": "one of GET /v1/models; where there is only one, it may be left out"},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "service_tier": enum_of(*filter(None, TIERS)) | {"description": "priority is lane high, flex is low"},
}
_REQUEST: dict[str, Schema] = {
    **_SAMPLING,
    "stream": FLAG,
    "user": TEXT,
    "prompt_cache_key": TEXT,
}
_MESSAGE = open_object(["role", "content"], role=enum_of("system", "user", "assistant"), content=TEXT)
_USAGE = object_with(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
_THROUGHPUT = object_with(prompts_per_second=NUMBER, output_tokens_per_second=NUMBER)
_TOTALS: dict[str, Schema] = {
    "total_tokens": COUNT,
    "usage": _USAGE,
    "latency_ms": NUMBER,
    "throughput_tokens_per_sec": NUMBER,
    "throughput": _THROUGHPUT,
}
_COUNTS = object_with(total=COUNT, completed=COUNT, failed=COUNT)
_OUTPUTS: Schema = array_of(nullable(TEXT)) | {
    "description": "a text for each prompt, in their order; null where it failed"
}
_PROMPTS: dict[str, Schema] = {
    **_SAMPLING,
    "prompts": array_of(TEXT, minItems=1),
    "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.7},
    "system": TEXT,
    "endpoint": enum_of("/v1/chat/completions", "/v1/completions"),
}
_CALLBACK: Schema = {"type": "string", "format": "uri", "description": "who is told of the end, by a webhook"}
_RESULT = object_with(
    index=COUNT,
    status=enum_of("succeeded", "failed"),
    output=nullable(TEXT),
    finish_reason=nullable(TEXT),
    usage=nullable({"type": "object"}),
    latency_ms=nullable(NUMBER),
    error=nullable({"type": "object"}),
)
_MOMENT: Schema = {"type": "string", "format": "date-time"}
_KEPT_S: Schema = {"type": "integer", "minimum": 3_600, "maximum": 2_592_000}
_KEPT = nullable(object_with(anchor=enum_of("created_at"), seconds=_KEPT_S))

SCHEMAS: dict[str, Schema] = {
    "Error": object_with(error=object_with(message=TEXT, type=TEXT, param=nullable(TEXT), code=nullable(TEXT))),
    "MessageError": object_with(type=enum_of("error"), error=object_with(type=TEXT, message=TEXT), request_id=TEXT),
    "ChatRequest": open_object(["messages"], messages=array_of(_MESSAGE, minItems=1), **_REQUEST),
    "CompletionRequest": open_object(["prompt"], prompt={"anyOf": [TEXT, array_of(TEXT, minItems=1)]}, **_REQUEST),
    "EmbeddingRequest": open_object(
        ["input"],
        input={"anyOf": [TEXT, array_of(TEXT, minItems=1)]},
        **{name: _REQUEST[name] for name in ("model", "service_tier", "user")},
    ),
    "ResponseRequest": open_object(
        ["input"],
        input={"anyOf": [TEXT, array_of({"type": "object"}, minItems=1)]},
        instructions=TEXT,
        max_output_tokens={"type": "integer", "minimum": 1},
        store={"type": "boolean", "description": "whether it is stored; the operator sets the default, true"},
        previous_response_id=TEXT,
        background={"type": "boolean", "description": "answer at once: its status and output are read by its id"},
        callback_url=nullable(_CALLBACK),
        **{name: _REQUEST[name] for name in ("model", "service_tier", "stream", "temperature", "user")},
    ),
    "Response": open_object(
        ["id", "object", "created_at", "status", "output"],
        id=TEXT,
        object=enum_of("response"),
        created_at=SECONDS,
        status=enum_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        output=array_of({"type": "object"}),
        previous_response_id=nullable(TEXT),
        error=nullable({"type": "object"}),
    ),
    "ResponseDeleted": object_with(id=TEXT, object=enum_of("response"), deleted=FLAG),
    "InputItem": open_object(["id"], id=TEXT, type=TEXT),
    "InputItemList": page("InputItem", object=enum_of("list")),
    "MessageRequest": open_object(
        ["model", "messages"],
        messages=array_of(open_object(["role", "content"], role=enum_of("system", "user", "assistant")), minItems=1),
        system={"anyOf": [TEXT, array_of({"type": "object"})]},
        max_tokens={"type": "integer", "minimum": 1, "description": "cut to what the model's context leaves"},
        **{name: _REQUEST[name] for name in ("model", "stream", "temperature")},
    ),
    "MessageBatchRequest": object_with(
        requests=array_of(
            object_with(custom_id={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}, params=ref("MessageRequest")),
            minItems=1,
            maxItems=100_000,
        )
    ),
    "MessageBatch": object_with(
        id=TEXT,
        type=enum_of("message_batch"),
        processing_status=enum_of("in_progress", "canceling", "ended"),
        request_counts=object_with(processing=COUNT, succeeded=COUNT, errored=COUNT, canceled=COUNT, expired=COUNT),
        created_at=_MOMENT,
        expires_at=_MOMENT,
        results_url=nullable(TEXT),
        **{name: nullable(_MOMENT) for name in ("ended_at", "cancel_initiated_at", "archived_at")},
    ),
    "MessageBatchList": page("MessageBatch"),
    "MessageBatchDeleted": object_with(id=TEXT, type=enum_of("message_batch_deleted")),
    "RerankRequest": open_object(
        ["query"],
        query=TEXT,
        documents=array_of(TEXT, minItems=1),
        **{name: _REQUEST[name] for name in ("model", "service_tier", "user")},
    ),
    "PoolingRequest": open_object([], **{name: _REQUEST[name] for name in ("model", "service_tier", "user")}),
    "DetokenizeRequest": open_object(["tokens"], tokens=array_of(COUNT), model=_REQUEST["model"]),
    "EngineAnswer": {"type": "object", "description": "as the engine answers: OpenAI's object of this endpoint"},
    "Model": object_with(id=TEXT, object=enum_of("model"), created=COUNT, owned_by=TEXT, max_model_len=nullable(COUNT)),
    "ModelList": object_with(object=enum_of("list"), data=array_of(ref("Model"))),
    "File": object_with(
        id=TEXT,
        object=enum_of("file"),
        bytes=COUNT,
        created_at=SECONDS,
        expires_at=SECONDS,
        filename=TEXT,
        purpose=enum_of("batch", "batch_output"),
        status=enum_of("processed"),
    ),
    "FileList": page("File", object=enum_of("list")),
    "FileDeleted": object_with(id=TEXT, object=enum_of("file"), deleted=FLAG),
    "FileUpload": {
        "type": "object",
        "required": ["purpose", "file"],
        "properties": {
            "purpose": enum_of("batch"),
            "file": {"type": "string", "format": "binary"},
            "expires_after[anchor]": enum_of("created_at"),
            "expires_after[seconds]": _KEPT_S,
        },
    },
    "BatchRequest": open_object(
        ["input_file_id", "endpoint", "completion_window"],
        input_file_id={"type": "string", "pattern": "^file-"},
        endpoint=enum_of(*BATCH_ENDPOINTS),
        completion_window=SPAN,
        output_expires_after=_KEPT,
        metadata=nullable(TEXTS),
        callback_url=nullable(_CALLBACK),
        service_tier=_SAMPLING["service_tier"],
    ),
    "Batch": object_with(
        id=TEXT,
        object=enum_of("batch"),
        endpoint=TEXT,
        errors=nullable(object_with(object=enum_of("list"), data=array_of({"type": "object"}))),
        input_file_id=TEXT,
        completion_window=TEXT,
        output_expires_after=_KEPT,
        status=enum_of(*BatchStatus),
        output_file_id=nullable(TEXT),
        error_file_id=nullable(TEXT),
        created_at=SECONDS,
        expires_at=SECONDS,
        request_counts=_COUNTS,
        usage=open_object(["total_tokens"], input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT),
        metadata=nullable(TEXTS),
        **{f"{status}_at": nullable(SECONDS) for status in BatchStatus if status is not BatchStatus.VALIDATING},
    ),
    "BatchList": page("Batch", object=enum_of("list")),
    "PromptsRequest": open_object(["prompts"], **_PROMPTS),
    "JobRequest": open_object(
        ["prompts"], **_PROMPTS, completion_window=SPAN, callback_url=nullable(_CALLBACK), metadata=nullable(TEXTS)
    ),
    "Results": object_with(
        batch_id=TEXT,
        object=enum_of("batch.result"),
        status=enum_of("completed", "failed"),
        outputs=_OUTPUTS,
        results=array_of(_RESULT),
        succeeded=COUNT,
        failed=COUNT,
        **_TOTALS,
    ),
    "Job": object_with(
        batch_id=TEXT,
        id=TEXT,
        object=enum_of("batch.job"),
        status=enum_of("pending", "processing", "completed", "failed"),
        reason=nullable(TEXT),
        progress={"type": "number", "minimum": 0, "maximum": 1},
        request_counts=_COUNTS,
        outputs=nullable(_OUTPUTS),
        created_at=SECONDS,
        ended_at=nullable(SECONDS),
        expires_at=SECONDS,
        metadata=nullable(TEXTS),
        errors=nullable(array_of({"type": "object"})),
        **_TOTALS,
        results=nullable(array_of(_RESULT)),
        output_file_id=nullable(TEXT),
        error_file_id=nullable(TEXT),
    )
    | {"required": ["batch_id", "id", "object", "status", "progress", "request_counts", "outputs", "created_at"]},
    "Stats": object_with(
        object=enum_of("batch.stats"),
        total_batches=COUNT,
        completed=COUNT,
        pending=COUNT,
        processing=COUNT,
        sync_calls=COUNT,
        jobs=COUNT,
        prompts=COUNT,
        succeeded=COUNT,
        failed=COUNT,
        usage=_USAGE,
        mean_latency_ms=NUMBER,
        throughput=_THROUGHPUT,
        batches_here=COUNT,
    ),
    "Health": object_with(
        status=enum_of("healthy", "unready"),
        reason=nullable(TEXT),
        keys=enum_of("on", "off"),
        warnings=array_of(TEXT),
        version=TEXT,
    ),
}

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
EVENT_IDS = header(
    "X-Streamfleet-Event-Ids",
    {"type": "string", "enum": ["send"]},
    "a stream has ids to resume behind; so it has with an Idempotency-Key, Last-Event-ID, or On-Disconnect: continue",
)
EXPECTED = header(
    "X-Streamfleet-Expected",
    {"type": "string", "enum": ["tell"]},
    "answer with `x-streamfleet-place` and `x-streamfleet-expected-ms`; a stream begins before its first token then",
)
IDEMPOTENCY = header(
    "Idempotency-Key", {"type": "string", "maxLength": 1_024}, "the same key and body are the same request"
)
WAITING = (
    LANE,
    header("X-Streamfleet-Ttl", SPAN, "when the answer becomes worthless, from now"),
    header("X-Streamfleet-Deadline-Ms", {"type": "string", "pattern": "^[0-9]{12,16}$"}, "the same in epoch ms"),
    header("X-Streamfleet-Program", TEXT, "the agent's run that the request is a turn of"),
    header(
        "X-Streamfleet-On-Disconnect",
        {"type": "string", "enum": ["cancel", "continue"]},
        "what becomes of the request when the caller leaves",
    ),
)

OWN_HEADERS = frozenset(each["name"].lower() for each in (*WAITING, RESTARTS, EVENT_IDS, EXPECTED))
"""All headers that a caller may give under the project's own prefix."""


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
    error: str = "Error",
) -> dict[str, Any]:
    """Returns the arguments of a route's decorator.

    Args:
        good: answers by status.
        errors: statuses, in addition to those that every operation may answer.
        takes: the request's body.
        parameters: in addition to those of the path.
        keyed: True if the operation needs an API key.
        error: form of its errors, one of SCHEMAS.
    """
    every = ALWAYS | (KEYED if keyed else {})
    refused = {status: ERRORS[status] for status in errors} | every
    problem = {JSON: {"schema": ref(error)}}
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
