"""What a caller asks for, checked and encoded before anything is sent. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypedDict

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    DEFAULT_MAX_BODY_BYTES,
    LANES,
    Lane,
    Request,
    check_endpoint,
    check_name,
    decode,
    digest,
    encode,
    infer_endpoint,
)
from streamfleet.common.records import Submission

Deadline = datetime | timedelta | int


class Options(TypedDict, total=False):
    """What may be said of a request beside its body; all of it is optional.

    lane: ``critical``, ``high``, ``normal`` (default) or ``low``.
    id: the request's name; the same id with the same body is the same request. Made up when absent.
    deadline: when the answer becomes worthless: an aware datetime, a timedelta from now, or epoch ms.
    ttl_ms: in place of a deadline, milliseconds from enqueueing.
    endpoint: OpenAI path; inferred from the body when absent.
    tenant, session: fairness and affinity keys.
    stream: whether tokens are wanted while they come.
    traceparent: W3C trace context, carried to the result.
    meta: text, or an object that is sent as JSON text; carried to the result.
    """

    lane: Lane | str
    id: str | None
    deadline: Deadline | None
    ttl_ms: int | None
    endpoint: str | None
    tenant: str | None
    session: str | None
    stream: bool
    traceparent: str | None
    meta: str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of a bulk call: its body, and the same options as `Options`."""

    body: Mapping[str, Any]
    lane: Lane | str = Lane.NORMAL
    id: str | None = None
    deadline: Deadline | None = None
    ttl_ms: int | None = None
    endpoint: str | None = None
    tenant: str | None = None
    session: str | None = None
    stream: bool = False
    traceparent: str | None = None
    meta: str | Mapping[str, Any] | None = None


_FIELDS = frozenset(field.name for field in fields(Ask))


def as_ask(value: object) -> Ask:
    """An Ask, or one made of a mapping with the names of its fields.

    Raises:
        InvalidRequest: the mapping has no body, or a name that Ask does not have.
    """
    if isinstance(value, Ask):
        return value
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise InvalidRequest(f"must be an Ask or a dict, not {kind}", "request", "invalid_type")
    if "body" not in value:
        raise InvalidRequest("is missing: give {'body': {…}, 'lane': …}, or an Ask", "body", "missing_field")
    unknown = sorted(str(name) for name in set(value) - _FIELDS)
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise InvalidRequest(f"is no option; there are {known}", unknown[0], "unknown_option")
    return Ask(**value)


def prepare(ask: Ask, request_id: str, reply: str | None, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> Submission:
    """What to send for a request, after the same checks that a worker will make.

    Args:
        ask: the request; its own id is passed over.
        request_id: id to send it under.
        reply: name of the reply stream to notify; None for none.
        max_body_bytes: largest body accepted.

    Raises:
        InvalidRequest: a field is wrong; `param` names it.
    """
    lane, body = _lane(ask.lane), encode_body(ask.body)
    deadline_ms, ttl_ms = _deadline(ask)
    request = Request(
        body=ask.body,
        id=check_name(_text(request_id, "id"), "id"),
        lane=lane,
        endpoint=_endpoint(ask),
        deadline_ms=deadline_ms,
        tenant=_optional_text(ask.tenant, "tenant"),
        session=_optional_text(ask.session, "session"),
        reply=reply,
        stream=bool(ask.stream),
        traceparent=_optional_text(ask.traceparent, "traceparent"),
        meta=_meta(ask.meta),
    )
    encoded = encode(request, body, ttl_ms)
    # The worker's own reading is the check, so that the two cannot come to differ.
    checked = decode({name.encode(): value for name, value in encoded.items()}, lane, "0-0", max_body_bytes)
    return Submission(request.id, lane, encoded, digest(checked), reply or "")


def encode_body(body: Mapping[str, Any]) -> bytes:
    """A body as compact JSON text in UTF-8, its keys in the order given.

    Raises:
        InvalidRequest: it is no object, or holds what JSON cannot.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequest(f"must be a dict, not {type(body).__name__}", "body", "invalid_type")
    try:
        return json.dumps(dict(body), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise InvalidRequest("is nested too deeply", "body", "invalid_json") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", "body", "invalid_json") from None


def _lane(value: Lane | str) -> Lane:
    try:
        return Lane(value)
    except ValueError:
        raise InvalidRequest(f"{value!r} is not one of {', '.join(LANES)}", "lane", "unknown_lane") from None


def _endpoint(ask: Ask) -> str:
    if ask.endpoint is None:
        return infer_endpoint(ask.body)
    return check_endpoint(_text(ask.endpoint, "endpoint"))


def _deadline(ask: Ask) -> tuple[int | None, int | None]:
    deadline, ttl_ms = ask.deadline, ask.ttl_ms
    if deadline is not None and ttl_ms is not None:
        raise InvalidRequest("give deadline or ttl_ms, not both", "ttl_ms")
    if isinstance(deadline, timedelta):
        # A span is counted by Redis's clock from enqueueing, so that this machine's clock does not matter.
        return None, _milliseconds(deadline // timedelta(milliseconds=1), "deadline")
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise InvalidRequest("the datetime needs a time zone, such as datetime.now(UTC)", "deadline")
        return _milliseconds(round(deadline.timestamp() * 1000), "deadline"), None
    return (
        None if deadline is None else _milliseconds(deadline, "deadline"),
        None if ttl_ms is None else _milliseconds(ttl_ms, "ttl_ms"),
    )


def _milliseconds(value: object, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"must be whole milliseconds, not {value!r}", param, "invalid_type")
    if not 0 <= value < 10**16:
        raise InvalidRequest(f"must be 0 or more milliseconds, in at most 16 digits, not {value}", param)
    return value


def _meta(value: str | Mapping[str, Any] | None) -> str | None:
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"cannot be written as JSON: {error}", "meta", "invalid_json") from None
    return _optional_text(value, "meta")


def _optional_text(value: object, param: str) -> str | None:
    return None if value is None else _text(value, param)


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"must be text, not {type(value).__name__}", param, "invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("cannot be written as UTF-8", param, "invalid_encoding") from None
    return value
