"""Objects of requests and answers, as JSON Schema. The document lists each once, by its name."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number", "minimum": 0}
SECONDS: Schema = {"type": "integer", "description": "epoch seconds"}
TEXTS: Schema = {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512}}
SPAN: Schema = {"type": "string", "pattern": "^[0-9]{1,6}(ms|s|m|h|d)$", "examples": ["24h"]}
ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
TIERS = ["auto", "default", "flex", "priority", "scale"]


def ref(name: str) -> Schema:
    """A reference to one of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema, **bounds: int) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": schema, **bounds}


def fixed(*values: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(values)}


def whole(**fields: Schema) -> Schema:
    """An object that has all of these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def loose(needed: list[str], **fields: Schema) -> Schema:
    """An object that has these fields, and may have more."""
    return {"type": "object", "required": needed, "properties": fields, "additionalProperties": True}


def page(of: str) -> Schema:
    """A page of a list, in OpenAI's pagination."""
    flag: Schema = {"type": "boolean"}
    ends = {"first_id": maybe(TEXT), "last_id": maybe(TEXT), "has_more": flag}
    return whole(object=fixed("list"), data=listed(ref(of)), **ends)


_SAMPLING: dict[str, Schema] = {
    "model": {"type": "string", "description": "one of GET /v1/models; where there is only one, it may be left out"},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "service_tier": {"type": "string", "enum": TIERS, "description": "priority is lane high, flex is low"},
}
_REQUEST: dict[str, Schema] = {
    **_SAMPLING,
    "stream": {"type": "boolean"},
    "user": TEXT,
    "prompt_cache_key": TEXT,
}
_MESSAGE = loose(["role", "content"], role=fixed("system", "user", "assistant"), content=TEXT)
_USAGE = whole(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
_THROUGHPUT = whole(prompts_per_second=NUMBER, output_tokens_per_second=NUMBER)
_TOTALS: dict[str, Schema] = {
    "total_tokens": COUNT,
    "usage": _USAGE,
    "latency_ms": NUMBER,
    "throughput_tokens_per_sec": NUMBER,
    "throughput": _THROUGHPUT,
}
_COUNTS = whole(total=COUNT, completed=COUNT, failed=COUNT)
_OUTPUTS: Schema = listed(maybe(TEXT)) | {"description": "a text for each prompt, in their order; null where it failed"}
_PROMPTS: dict[str, Schema] = {
    **_SAMPLING,
    "prompts": listed(TEXT, minItems=1),
    "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.7},
    "system": TEXT,
    "endpoint": fixed("/v1/chat/completions", "/v1/completions"),
}
_CALLBACK: Schema = {"type": "string", "format": "uri", "description": "who is told of the end, by a webhook"}
_RESULT = whole(
    index=COUNT,
    status=fixed("succeeded", "failed"),
    output=maybe(TEXT),
    finish_reason=maybe(TEXT),
    usage=maybe({"type": "object"}),
    latency_ms=maybe(NUMBER),
    error=maybe({"type": "object"}),
)
_BATCH_STATUS = fixed(
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
)
_MOMENTS = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)

SCHEMAS: dict[str, Schema] = {
    "Error": whole(
        error={
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": TEXT, "type": TEXT, "param": maybe(TEXT), "code": maybe(TEXT)},
        }
    ),
    "ChatRequest": loose(["messages"], messages=listed(_MESSAGE, minItems=1), **_REQUEST),
    "CompletionRequest": loose(["prompt"], prompt={"anyOf": [TEXT, listed(TEXT, minItems=1)]}, **_REQUEST),
    "EmbeddingRequest": loose(
        ["input"],
        input={"anyOf": [TEXT, listed(TEXT, minItems=1)]},
        **{name: _REQUEST[name] for name in ("model", "service_tier", "user")},
    ),
    "ResponseRequest": loose(
        ["input"],
        input={"anyOf": [TEXT, listed({"type": "object"}, minItems=1)]},
        instructions=TEXT,
        max_output_tokens={"type": "integer", "minimum": 1},
        store={"type": "boolean", "enum": [False], "description": "nothing is stored: true is refused"},
        **{name: _REQUEST[name] for name in ("model", "service_tier", "temperature", "user")},
    ),
    "RerankRequest": loose(
        ["query"],
        query=TEXT,
        documents=listed(TEXT, minItems=1),
        **{name: _REQUEST[name] for name in ("model", "service_tier", "user")},
    ),
    "PoolingRequest": loose([], **{name: _REQUEST[name] for name in ("model", "service_tier", "user")}),
    "EngineAnswer": {"type": "object", "description": "as the engine answers: OpenAI's object of this endpoint"},
    "Model": whole(id=TEXT, object=fixed("model"), created=COUNT, owned_by=TEXT),
    "ModelList": whole(object=fixed("list"), data=listed(ref("Model"))),
    "File": whole(
        id=TEXT,
        object=fixed("file"),
        bytes=COUNT,
        created_at=SECONDS,
        expires_at=SECONDS,
        filename=TEXT,
        purpose=fixed("batch", "batch_output"),
        status=fixed("processed"),
    ),
    "FileList": page("File"),
    "FileDeleted": whole(id=TEXT, object=fixed("file"), deleted={"type": "boolean"}),
    "FileUpload": {
        "type": "object",
        "required": ["purpose", "file"],
        "properties": {
            "purpose": fixed("batch"),
            "file": {"type": "string", "format": "binary"},
            "expires_after[anchor]": fixed("created_at"),
            "expires_after[seconds]": {"type": "integer", "minimum": 3_600, "maximum": 2_592_000},
        },
    },
    "BatchRequest": loose(
        ["input_file_id", "endpoint", "completion_window"],
        input_file_id={"type": "string", "pattern": "^file-"},
        endpoint=fixed(*ENDPOINTS),
        completion_window=SPAN,
        metadata=maybe(TEXTS),
        callback_url=maybe(_CALLBACK),
        service_tier=fixed(*TIERS),
    ),
    "Batch": whole(
        id=TEXT,
        object=fixed("batch"),
        endpoint=TEXT,
        errors=maybe(whole(object=fixed("list"), data=listed({"type": "object"}))),
        input_file_id=TEXT,
        completion_window=TEXT,
        status=_BATCH_STATUS,
        output_file_id=maybe(TEXT),
        error_file_id=maybe(TEXT),
        created_at=SECONDS,
        expires_at=SECONDS,
        request_counts=_COUNTS,
        usage=loose(["total_tokens"], input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT),
        metadata=maybe(TEXTS),
        **{name: maybe(SECONDS) for name in _MOMENTS},
    ),
    "BatchList": page("Batch"),
    "PromptsRequest": loose(["prompts"], **_PROMPTS),
    "JobRequest": loose(
        ["prompts"], **_PROMPTS, completion_window=SPAN, callback_url=maybe(_CALLBACK), metadata=maybe(TEXTS)
    ),
    "Results": whole(
        batch_id=TEXT,
        object=fixed("batch.result"),
        status=fixed("completed", "failed"),
        outputs=_OUTPUTS,
        results=listed(_RESULT),
        succeeded=COUNT,
        failed=COUNT,
        **_TOTALS,
    ),
    "Job": {
        "type": "object",
        "required": ["batch_id", "id", "object", "status", "progress", "request_counts", "outputs", "created_at"],
        "properties": {
            "batch_id": TEXT,
            "id": TEXT,
            "object": fixed("batch.job"),
            "status": fixed("pending", "processing", "completed", "failed"),
            "reason": maybe(TEXT),
            "progress": {"type": "number", "minimum": 0, "maximum": 1},
            "request_counts": _COUNTS,
            "outputs": maybe(_OUTPUTS),
            "created_at": SECONDS,
            "ended_at": maybe(SECONDS),
            "expires_at": SECONDS,
            "metadata": maybe(TEXTS),
            "errors": maybe(listed({"type": "object"})),
            **_TOTALS,
            "results": maybe(listed(_RESULT)),
            "output_file_id": maybe(TEXT),
            "error_file_id": maybe(TEXT),
        },
    },
    "Stats": whole(
        object=fixed("batch.stats"),
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
    "Health": whole(
        status=fixed("healthy", "unready"),
        reason=maybe(TEXT),
        keys=fixed("on", "off"),
        warnings=listed(TEXT),
        version=TEXT,
    ),
}
