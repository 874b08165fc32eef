"""The wire protocol as pure code: what stands in a lane's stream, and what it means.

`docs/protocol.md` is the normative text. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamfleet.common.errors import InvalidRequest


class Lane(StrEnum):
    """A priority of a queue; most urgent first."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for the most urgent."""
        return LANES.index(self)

    @property
    def number(self) -> int:
        """1 for the most urgent; how the scripts and the member names of sorted sets call a lane."""
        return LANES.index(self) + 1


LANES: tuple[Lane, ...] = tuple(Lane)


class Status(StrEnum):
    """How a request ended. Written once."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DEAD = "dead"


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
# A closed list: the in-process engine also serves administrative paths, which no request may reach.
ENDPOINTS = frozenset({CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, "/v1/score", "/v1/rerank", "/classify", "/pooling"})

MAX_NAME_CHARS = 256
MAX_META_BYTES = 4096
DEFAULT_MAX_BODY_BYTES = 1_048_576
_NAME = re.compile(r"[\x21-\x7e]{1,256}")
_RESERVED = re.compile(r"[A-Za-z]+:[0-9]+-[0-9]+")
_FALLBACK = re.compile(rf"(?:{'|'.join(LANES)}):[0-9]{{1,20}}-[0-9]{{1,20}}")
_MS = re.compile(r"[0-9]{1,16}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: an OpenAI body and its envelope.

    Attributes:
        body: the OpenAI request body as an object.
        id: request id; empty only before one was given.
        lane: its priority.
        endpoint: OpenAI path.
        deadline_ms: epoch milliseconds after which the answer is worthless; None for none.
        tenant, session: fairness and affinity keys, carried.
        reply: name of the caller's reply stream.
        stream: whether tokens are wanted while they come, carried.
        traceparent, meta: carried through to result and logs.
    """

    body: Mapping[str, Any]
    id: str
    lane: Lane
    endpoint: str
    deadline_ms: int | None = None
    tenant: str | None = None
    session: str | None = None
    reply: str | None = None
    stream: bool = False
    traceparent: str | None = None
    meta: str | None = None


def check_name(value: str, param: str, forbidden: str = "") -> str:
    """A request id, reply, queue or worker name that is safe as a part of a key.

    Raises:
        InvalidRequest: empty, over 256 characters, not printable ASCII, or of the reserved shape.
    """
    if not _NAME.fullmatch(value):
        raise InvalidRequest("must be 1 to 256 printable ASCII characters without spaces", param)
    if _RESERVED.fullmatch(value):
        raise InvalidRequest("the form <lane>:<number>-<number> is reserved for requests without an id", param)
    if any(char in value for char in forbidden):
        raise InvalidRequest(f"must not contain any of {forbidden}", param)
    return value


def is_request_id(value: str) -> bool:
    """Whether a request may be called so: by its producer, or by its place where it came without an id."""
    if _FALLBACK.fullmatch(value):
        return True
    return bool(_NAME.fullmatch(value)) and not _RESERVED.fullmatch(value)


def infer_endpoint(body: Mapping[str, Any]) -> str:
    """The endpoint that a body without one is meant for.

    Raises:
        InvalidRequest: the body fits none.
    """
    for key, endpoint in (("messages", CHAT), ("prompt", COMPLETIONS), ("input", EMBEDDINGS)):
        if key in body:
            return endpoint
    raise InvalidRequest(
        "the body has neither messages, prompt nor input: give one of them, or name the endpoint",
        "body",
        "missing_field",
    )


def check_endpoint(value: str) -> str:
    """An endpoint that requests may be sent to.

    Raises:
        InvalidRequest: it is not one of ENDPOINTS.
    """
    if value not in ENDPOINTS:
        shown = value if len(value) <= 80 else value[:80] + "…"
        raise InvalidRequest(f"{shown!r} is not one of {', '.join(sorted(ENDPOINTS))}", "endpoint", "unknown_endpoint")
    return value


def parse_body(text: bytes, max_bytes: int) -> dict[str, Any]:
    """A body's JSON object.

    Raises:
        InvalidRequest: too large, not UTF-8, not JSON, or not an object.
    """
    if len(text) > max_bytes:
        raise InvalidRequest(f"is {len(text)} bytes; at most {max_bytes} are allowed", "body", "request_too_large")
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # fails where one half of a pair stands alone
    except UnicodeEncodeError:
        raise InvalidRequest(
            "holds half of a surrogate pair, which is no character", "body", "invalid_encoding"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is not UTF-8: byte {error.start} is {text[error.start]:#04x}", "body", "invalid_encoding"
        ) from None
    except RecursionError:
        raise InvalidRequest("is nested too deeply", "body", "invalid_json") from None
    except ValueError as error:
        raise InvalidRequest(f"is not JSON: {error}", "body", "invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"must be a JSON object, not {_json_type(value)}", "body", "invalid_type")
    return value


def decode(
    fields: Mapping[bytes, bytes], lane: Lane, stream_id: str, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
) -> Request:
    """The request that an entry of a lane holds.

    Args:
        fields: the entry's fields; unknown names are passed over.
        lane: the lane that it stood in.
        stream_id: ``<ms>-<seq>``; its time is when ``ttl`` starts, and it names the request when ``id`` is absent.
        max_body_bytes: largest body accepted.

    Raises:
        InvalidRequest: a field is missing or wrong; ``param`` names it.
    """
    if b"body" not in fields:
        raise InvalidRequest(
            "is missing: XADD it as the field 'body' with an OpenAI request as JSON", "body", "missing_field"
        )
    identity = _text(fields, "id")
    reply = _text(fields, "reply")
    body = parse_body(fields[b"body"], max_body_bytes)
    endpoint = _text(fields, "endpoint")
    return Request(
        body=body,
        id=check_name(identity, "id") if identity else f"{lane}:{stream_id}",
        lane=lane,
        endpoint=check_endpoint(endpoint) if endpoint else infer_endpoint(body),
        deadline_ms=_deadline(fields, stream_id),
        tenant=_label(fields, "tenant"),
        session=_label(fields, "session"),
        reply=check_name(reply, "reply") if reply else None,
        stream=_flag(fields, "stream"),
        traceparent=_traceparent(fields),
        meta=_meta(fields),
    )


def encode(request: Request, body: bytes, ttl_ms: int | None = None) -> dict[str, bytes]:
    """The fields to XADD for a request; absent ones are left out.

    Args:
        request: what to send.
        body: its body as JSON text; handed in so that what was measured and hashed is what is sent.
        ttl_ms: sent in place of a deadline, to be counted by Redis's clock from enqueueing.
    """
    fields: dict[str, bytes] = {"body": body}
    if request.id:
        fields["id"] = request.id.encode()
    if request.endpoint != _inferred(request.body):
        fields["endpoint"] = request.endpoint.encode()
    if request.deadline_ms is not None:
        fields["deadline"] = str(request.deadline_ms).encode()
    elif ttl_ms is not None:
        fields["ttl"] = str(ttl_ms).encode()
    for name in ("tenant", "session", "reply", "traceparent", "meta"):
        value = getattr(request, name)
        if value is not None:
            fields[name] = value.encode()
    if request.stream:
        fields["stream"] = b"1"
    return fields


def digest(request: Request) -> str:
    """What two enqueues of one id must share to be the same request: endpoint and body, whatever the order of its keys.

    32 hex characters.
    """
    body = json.dumps(request.body, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(f"{request.endpoint}\0{body}".encode(), digest_size=16).hexdigest()


def _inferred(body: Mapping[str, Any]) -> str | None:
    try:
        return infer_endpoint(body)
    except InvalidRequest:
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _json_type(value: object) -> str:
    names = {
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


def _text(fields: Mapping[bytes, bytes], name: str) -> str | None:
    value = fields.get(name.encode())
    if not value:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is not UTF-8: byte {error.start} is {value[error.start]:#04x}", name, "invalid_encoding"
        ) from None


def _label(fields: Mapping[bytes, bytes], name: str) -> str | None:
    value = _text(fields, name)
    if value is not None and (len(value) > MAX_NAME_CHARS or not value.isprintable()):
        raise InvalidRequest(f"must be at most {MAX_NAME_CHARS} printable characters", name)
    return value


def _deadline(fields: Mapping[bytes, bytes], stream_id: str) -> int | None:
    deadline, ttl = _milliseconds(fields, "deadline"), _milliseconds(fields, "ttl")
    if deadline is not None:
        return deadline
    return None if ttl is None else int(stream_id.split("-", 1)[0]) + ttl


def _milliseconds(fields: Mapping[bytes, bytes], name: str) -> int | None:
    value = _text(fields, name)
    if value is None:
        return None
    if not _MS.fullmatch(value):
        unit = "epoch milliseconds" if name == "deadline" else "milliseconds from enqueueing"
        raise InvalidRequest(f"must be {unit} in decimal digits, not {value[:40]!r}", name)
    return int(value)


def _flag(fields: Mapping[bytes, bytes], name: str) -> bool:
    value = _text(fields, name)
    if value not in (None, "0", "1"):
        raise InvalidRequest(f"must be 0 or 1, not {value[:40]!r}", name)
    return value == "1"


def _traceparent(fields: Mapping[bytes, bytes]) -> str | None:
    value = _text(fields, "traceparent")
    if value is not None and not _TRACEPARENT.fullmatch(value):
        raise InvalidRequest("must be a W3C traceparent, such as 00-<32 hex>-<16 hex>-01", "traceparent")
    return value


def _meta(fields: Mapping[bytes, bytes]) -> str | None:
    value = _text(fields, "meta")
    if value is not None and len(fields[b"meta"]) > MAX_META_BYTES:
        raise InvalidRequest(f"is {len(fields[b'meta'])} bytes; at most {MAX_META_BYTES} are allowed", "meta")
    return value
