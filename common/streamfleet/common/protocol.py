"""The wire protocol as pure code: format and meaning of the entries in a lane's stream.

`docs/protocol.md` is the normative text. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from hashlib import blake2b, sha1
from typing import Any, NamedTuple

from streamfleet.common import envelope, jsontext
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
        return _NUMBERS[self] - 1

    @property
    def number(self) -> int:
        """1 for the most urgent; the lane's name in scripts and in members of sorted sets."""
        return _NUMBERS[self]


LANES: tuple[Lane, ...] = tuple(Lane)
SHARES: tuple[int, ...] = (0, 0, 100, 50)
"""Default of the picks per mille that are guaranteed to each lane while it waits."""
LEAST_WEIGHT, MOST_OF_A_TENANT = 0.001, 1_000_000
"""Least weight of a tenant; largest weight, and most of its requests that a limit lets run at once."""
_NUMBERS = {lane: number for number, lane in enumerate(LANES, 1)}


class Status(StrEnum):
    """Terminal status of a request. Written once."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DEAD = "dead"


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
SCORE = "/v1/score"
RERANK = "/v1/rerank"
CLASSIFY = "/classify"
POOLING = "/pooling"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
# A closed list, because the in-process engine also serves administrative paths, which no request may reach.
ENDPOINTS = frozenset(
    {CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES, COUNT_TOKENS}
    | {SCORE, RERANK, CLASSIFY, POOLING, TOKENIZE, DETOKENIZE}
)

MAX_NAME_CHARS, MAX_META_BYTES = envelope.MAX_NAME_CHARS, envelope.MAX_META_BYTES
DEFAULT_MAX_BODY_BYTES = 4_194_304
BEFORE_IT_COMES = "before_it_comes"
"""Field of a cancel request: ms for which an id that the queue has not seen is cancelled when it comes."""
PLAIN_BYTES = 262_144
"""A body up to this size is read whatever it is."""
READ_NS = 40_000_000
"""Most time that a longer body may take in one step of reading or writing it, as estimated; or as much for each 16 MiB
of the largest body, where that is more. 200,000 token ids in a thousand lists count as 28 ms. No other thread runs
during such a step; the worst one of a body that passes took 36 ms."""
_READ_BYTES = 16_777_216
_BYTE_NS, _VALUE_NS, _STRING_NS, _OPENING_NS, _FLOAT_NS, _DIGIT_NS = 5, 100, 100, 350, 200, 50
"""Measured on one busy core, the longest of parsing (pydantic-core 2.50) and encoding (json's C part): each byte
outside of strings (`null,`: 2 ns a byte), each value behind another (an id: 87), each string (81), each list or object
(`[[[]]]`: 400, with the garbage collector's part; `{"a":1}`: 277), each number with a point or an exponent (215, 295),
and each byte beyond eight a value (a number of 4,000 digits: 49)."""
UNUSUAL_BYTES, UNUSUAL_PART = 1_048_576, 16
"""Most bytes of a body that are not `_USUAL`; or this part of the largest body, where that is more."""
_USUAL = bytes(code for code in range(0x20, 0x7F) if code not in b'"\\,:[]{}')
_END_BYTES = 32_768
_NAME = re.compile(r"[\x21-\x7e]{1,256}")
_RESERVED = re.compile(r"[A-Za-z]+:[0-9]+-[0-9]+")
_FALLBACK = re.compile(rf"(?:{'|'.join(LANES)}):[0-9]{{1,20}}-[0-9]{{1,20}}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_written = jsontext.encoder(ascii_only=False, sort_keys=False, allow_nan=True)


class Request(NamedTuple):
    """One request: an OpenAI body and its envelope.

    Attributes:
        body: the OpenAI request body as an object.
        id: request id; empty only before it is assigned.
        lane: its priority.
        endpoint: OpenAI path.
        deadline_ms: deadline, epoch ms; None for none.
        reply: name of the caller's reply stream.
        stream: the caller wants tokens as they are generated.
    """

    body: Mapping[str, Any]
    id: str
    lane: Lane
    endpoint: str
    deadline_ms: int | None = None
    reply: str | None = None
    stream: bool = False


def check_name(value: str, param: str, forbidden: str = "") -> str:
    """Check a request id, reply, queue or worker name, so that it is safe as a part of a key.

    Raises:
        InvalidRequest: empty, over 256 characters, not printable ASCII, or of the reserved shape.
    """
    if not _NAME.fullmatch(value):
        raise InvalidRequest("must be 1 to 256 printable ASCII characters without spaces", param)
    if ":" in value and _RESERVED.fullmatch(value):
        raise InvalidRequest("the form <lane>:<number>-<number> is reserved for requests without an id", param)
    if forbidden and any(char in value for char in forbidden):
        raise InvalidRequest(f"must not contain any of {forbidden}", param)
    return value


def is_request_id(value: str) -> bool:
    """True for a valid request id: one chosen by a producer, or the place of a request that came without an id."""
    if _FALLBACK.fullmatch(value):
        return True
    return bool(_NAME.fullmatch(value)) and not _RESERVED.fullmatch(value)


def infer_endpoint(body: Mapping[str, Any]) -> str:
    """Infer the endpoint from a body.

    Raises:
        InvalidRequest: the body fits no endpoint.
    """
    if "messages" in body:
        return CHAT
    if "prompt" in body:
        return COMPLETIONS
    if "input" in body:
        return EMBEDDINGS
    raise InvalidRequest(
        "the body has neither messages, prompt nor input: give one of them, or name the endpoint",
        "body",
        "missing_field",
    )


def inferred(body: Mapping[str, Any]) -> str | None:
    """Infer the endpoint from a body; None if it fits no endpoint."""
    try:
        return infer_endpoint(body)
    except InvalidRequest:
        return None


def check_endpoint(value: str) -> str:
    """Check an endpoint.

    Raises:
        InvalidRequest: it is not one of ENDPOINTS.
    """
    if value not in ENDPOINTS:
        shown = value if len(value) <= 80 else value[:80] + "…"
        raise InvalidRequest(f"{shown!r} is not one of {', '.join(sorted(ENDPOINTS))}", "endpoint", "unknown_endpoint")
    return value


_READERS: Mapping[bytes, Callable[[str, str], Any]] = {
    **{field.name.encode(): field.read for field in envelope.FIELDS if field.read},
    b"id": check_name,
    b"reply": check_name,
    b"endpoint": lambda value, _: check_endpoint(value),
}


def _check_size(size: int, max_bytes: int) -> None:
    """Check the size of a body's JSON text, in bytes.

    Raises:
        InvalidRequest: it is too large.
    """
    if size > max_bytes:
        message = f"is {size} bytes; at most {max_bytes} are allowed (STREAMFLEET_MAX_BODY_BYTES)"
        raise InvalidRequest(message, "body", "request_too_large")


def check_body(text: bytes, max_bytes: int) -> None:
    """Check the size of a body's JSON text: in all, and of the parts that are slow to parse.

    Raises:
        InvalidRequest: it is too large.
    """
    size = len(text)
    if size <= PLAIN_BYTES and size <= max_bytes:
        return  # nearly every body
    _check_size(size, max_bytes)
    most = max(UNUSUAL_BYTES, max_bytes // UNUSUAL_PART)
    if size > most and (unusual := len(text.translate(None, _USUAL))) > most:
        message = f"has {unusual} bytes of quotes, commas, colons, brackets, escapes and letters beyond ASCII"
        raise InvalidRequest(f"{message}; at most {most} are allowed", "body", "request_too_large")
    check_plain(text, max_bytes)


def check_plain(text: bytes, max_bytes: int, param: str = "body") -> None:
    """Check the time that reading JSON text takes without the insides of its strings, for a body of `max_bytes`.

    Raises:
        InvalidRequest: it takes longer than `READ_NS`; `param` is the one given.
    """
    most = max(READ_NS, READ_NS * max_bytes // _READ_BYTES)
    if len(text) > PLAIN_BYTES and _read_ns(text, most) > most:
        message = (
            f"has too many numbers, lists, objects and texts to be read in {most // 1_000_000} ms, which is the limit: "
            "send several requests"
        )
        raise InvalidRequest(message, param, "request_too_large")


def _read_ns(text: bytes, most: int) -> int:
    """Time of the longest step of reading JSON text; more than `most` if that is certain before all is counted."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = text.count(b'"') // 2
    if strings * _STRING_NS > most:
        return strings * _STRING_NS
    outside = b"".join(text.split(b'"')[::2])
    openings, floats = outside.count(b"[") + outside.count(b"{"), sum(map(outside.count, (b".", b"e", b"E")))
    values = outside.count(b",")
    long = max(0, len(outside.translate(None, b" \t\n\r")) - 8 * values)
    found = len(outside) * _BYTE_NS + long * _DIGIT_NS + values * _VALUE_NS
    return found + strings * _STRING_NS + openings * _OPENING_NS + floats * _FLOAT_NS


def parse_body(text: bytes, max_bytes: int) -> dict[str, Any]:
    """Parse a body into its JSON object.

    Raises:
        InvalidRequest: too large, not UTF-8, not JSON, or not an object.
    """
    check_body(text, max_bytes)
    try:
        value = jsontext.parse(text)
        if b"\\" in text and _SURROGATE.search(text):
            _written(value).encode()  # fails for half of a surrogate pair
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
    fields: Mapping[bytes, bytes],
    lane: Lane,
    stream_id: str,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    enqueued_ms: int | None = None,
) -> Request:
    """Decode an entry of a lane into its request.

    Args:
        fields: the entry's fields; unknown names are ignored.
        lane: the entry's lane.
        stream_id: ``<ms>-<seq>``; it names the request when ``id`` is absent.
        max_body_bytes: largest body accepted.
        enqueued_ms: start of ``ttl``, epoch ms; None for the stream id's time.

    Raises:
        InvalidRequest: a field is missing or wrong; ``param`` names it.
    """
    if b"body" not in fields:
        raise InvalidRequest(
            "is missing: XADD it as the field 'body' with an OpenAI request as JSON", "body", "missing_field"
        )
    body = parse_body(fields[b"body"], max_body_bytes)
    read: dict[bytes, Any] = {
        name: reader(envelope.text(name, value), name.decode())
        for name, value in fields.items()
        if value and (reader := _READERS.get(name)) is not None
    }
    given = read.get
    deadline_ms, ttl = given(b"deadline"), given(b"ttl")
    if deadline_ms is None and ttl is not None:
        deadline_ms = ttl + (stream_ms(stream_id) if enqueued_ms is None else enqueued_ms)
    return Request(
        body,
        given(b"id") or f"{lane}:{stream_id}",
        lane,
        given(b"endpoint") or infer_endpoint(body),
        deadline_ms,
        given(b"reply"),
        given(b"stream", False),
    )


def stream_ms(stream_id: str) -> int:
    """Time in a stream id, epoch ms: that of Redis when the entry was added."""
    return int(stream_id.partition("-")[0])


def digest(request: Request) -> str:
    """Digest of endpoint and body as JSON, independent of the order of keys, 16 hex characters."""
    return hashed(comparable(request.endpoint, jsontext.canonical(request.body)))


def comparable(endpoint: str, canonical_body: str) -> str:
    """The text that `digest` hashes; the body is in the form of `jsontext.canonical`."""
    return f"{endpoint}\0{canonical_body}"


def hashed(text: str) -> str:
    """Digest of a text from `comparable`."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def digest_of_bytes(fields: Mapping[bytes, bytes]) -> str:
    """Digest of endpoint and body as they are in the fields of an entry, 16 hex characters; scripts make it too.

    Two requests of one id are the same request if it is the same. `digest` decides where both came from clients.
    """
    body, endpoint = b"body" in fields, b"endpoint" in fields  # `get` would take longer, for each request
    return hashed_bytes(fields[b"body"] if body else b"", fields[b"endpoint"] if endpoint else b"")


def hashed_bytes(body: bytes, endpoint: bytes) -> str:
    """The same of body and endpoint; it is empty if it was not given. Of a long body its length, beginning and end."""
    if len(body) > 2 * _END_BYTES:
        body = b"%d " % len(body) + body[:_END_BYTES] + body[-_END_BYTES:]
    return sha1(endpoint + b"\0" + body, usedforsecurity=False).hexdigest()[:16]


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
