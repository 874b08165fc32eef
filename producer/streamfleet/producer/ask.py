"""Checks and encodes a caller's request before anything is sent. Pure.

An `Ask` or a mapping goes in, a `Draft` or `Submission` with the fields to XADD comes out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from streamfleet.common import jsontext
from streamfleet.common.broker.types import Submission
from streamfleet.common.envelope import FIELDS, as_text, check_deadline
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import (
    DEFAULT_MAX_BODY_BYTES,
    LANES,
    Lane,
    check_body,
    check_endpoint,
    check_name,
    comparable,
    hashed,
    hashed_bytes,
    infer_endpoint,
    inferred,
)

LONG_BYTES = 1_048_576
"""Longer bodies are hashed where they are encoded: about 2 ms for each of these."""
Deadline = datetime | timedelta | int
REFUSE, DOWNGRADE = "refuse", "downgrade"


class Options(TypedDict, total=False):
    """Options of a request besides its body; all are optional.

    lane: ``critical``, ``high``, ``normal`` (default) or ``low``.
    id: the request's name; the same id with the same body is the same request. Random when absent.
    deadline: an aware datetime, a timedelta from now, or epoch ms.
    ttl_ms: milliseconds from enqueueing, in place of a deadline.
    if_late: what becomes of it if it will likely be late: ``refuse`` raises LikelyLate, and nothing is enqueued;
        ``downgrade`` puts it into lane ``low``. Needs a deadline.
    endpoint: OpenAI path; inferred from the body when absent.
    tenant, session: fairness and affinity keys.
    program: the agent's run that it is a turn of, where a session has several, or none is given.
    stream: True to publish tokens as they are generated: see `Handle.stream`.
    traceparent: W3C trace context, carried to the result.
    meta: text, or an object that is sent as JSON text; carried to the result.
    bounded: True if it counts to what its tenant's ended requests may take of Redis: the setting tenant_result_bytes.
    """

    lane: Lane | str
    id: str | None
    deadline: Deadline | None
    ttl_ms: int | None
    if_late: str | None
    endpoint: str | None
    tenant: str | None
    session: str | None
    program: str | None
    stream: bool
    traceparent: str | None
    meta: str | Mapping[str, Any] | None
    bounded: bool


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a bulk call: its body, and the same options as `Options`."""

    body: Mapping[str, Any]
    lane: Lane | str = Lane.NORMAL
    id: str | None = None
    deadline: Deadline | None = None
    ttl_ms: int | None = None
    if_late: str | None = None
    endpoint: str | None = None
    tenant: str | None = None
    session: str | None = None
    program: str | None = None
    stream: bool = False
    traceparent: str | None = None
    meta: str | Mapping[str, Any] | None = None
    bounded: bool = False


_FIELDS = frozenset(field.name for field in fields(Ask))
_WRITTEN = {field.name: (field.read, field.write) for field in FIELDS if field.read and field.write}
_WRITTEN_NAMES = frozenset(_WRITTEN)
_LANES: dict[str, Lane] = {lane: lane for lane in LANES}


class Draft(NamedTuple):
    """A checked and encoded request. Its digest is computed later, while the server works on other requests.

    That of a long body is there: hashing takes long, and a thread may have made the draft.

    Attributes:
        id, lane: as in `Request`.
        fields: fields to XADD.
        reply: name of the reply stream to notify; empty for none.
        compared: the text to hash into its digest; empty if there is a digest.
        digest: both digests of a long one; empty until they are computed.
    """

    id: str
    lane: Lane
    fields: Mapping[str, bytes]
    reply: str
    compared: str
    digest: str = ""

    @property
    def if_late(self) -> str:
        """Its fate if it will likely be late: REFUSE or DOWNGRADE; empty if it waits."""
        return self.fields.get("if_late", b"").decode()

    def judged(self, lane: Lane) -> Draft:
        """The same draft, judged by now, in the lane that this has led to."""
        return self._replace(
            lane=lane, fields={name: value for name, value in self.fields.items() if name != "if_late"}
        )

    def within(self, traceparent: str) -> Draft:
        """The same draft with this trace context, unless it has one."""
        if "traceparent" in self.fields:
            return self
        return self._replace(fields={**self.fields, "traceparent": traceparent.encode()})

    def submission(self) -> Submission:
        """The request with its digest."""
        digest = self.digest or _digest(self.compared, self.fields)
        return Submission(self.id, self.lane, self.fields, digest, self.reply)


def as_ask(value: object) -> Ask:
    """Return an Ask, made from a mapping of its fields if necessary.

    Raises:
        InvalidRequest: the mapping has no body, or a name that Ask does not have.
    """
    if isinstance(value, Ask):
        return value
    if type(value) is not dict and not isinstance(value, Mapping):  # the second check alone is slow
        kind = type(value).__name__
        raise InvalidRequest(f"must be an Ask or a dict, not {kind}", "request", "invalid_type")
    if "body" not in value:
        raise InvalidRequest("is missing: give {'body': {…}, 'lane': …}, or an Ask", "body", "missing_field")
    if not _FIELDS.issuperset(value):
        unknown = sorted(str(name) for name in set(value) - _FIELDS)
        known = ", ".join(sorted(_FIELDS))
        raise InvalidRequest(f"is no option; there are {known}", unknown[0], "unknown_option")
    # Ask(**value) does the same at ten times the cost.
    ask = object.__new__(Ask)
    object.__setattr__(ask, "__dict__", dict(value))
    return ask


def prepare(ask: Ask, request_id: str, reply: str | None, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> Submission:
    """Check and encode a request, with the same checks that a worker makes.

    Args:
        ask: the request; its own id is ignored.
        request_id: id to send it under.
        reply: name of the reply stream to notify; None for none.
        max_body_bytes: largest body accepted.

    Raises:
        InvalidRequest: a field is wrong; `param` names it.
    """
    if reply is not None:
        check_name(reply, "reply")
    return draft(ask, check_id(request_id), reply, max_body_bytes).submission()


def check_id(value: object) -> str:
    """Check a request id that a caller chose. Raises InvalidRequest."""
    return check_name(as_text(value, "id"), "id")


def draft(ask: Ask, request_id: str, reply: str | None, max_body_bytes: int) -> Draft:
    """As `prepare`, without the digest; id and reply name must be checked before.

    Raises:
        InvalidRequest: a field is wrong; `param` names it.
    """
    try:
        lane = _LANES[ask.lane]
    except (KeyError, TypeError):
        raise InvalidRequest(f"{ask.lane!r} is not one of {', '.join(LANES)}", "lane", "unknown_lane") from None
    body, compared = encode_body(ask.body)
    check_body(body, max_body_bytes)
    fields = {"body": body, "id": request_id.encode()}
    if ask.endpoint is None:
        endpoint = infer_endpoint(ask.body)
    else:
        endpoint = check_endpoint(as_text(ask.endpoint, "endpoint"))
        if endpoint != inferred(ask.body):
            fields["endpoint"] = endpoint.encode()
    if ask.deadline is not None or ask.ttl_ms is not None:
        fields.update(_deadline(ask))
    if ask.if_late is not None:
        fields["if_late"] = _if_late(ask)
    if reply is not None:
        fields["reply"] = reply.encode()
    _write_options(ask, fields)
    compared = comparable(endpoint, compared)
    if len(body) > LONG_BYTES:
        return Draft(request_id, lane, fields, reply or "", "", _digest(compared, fields))
    return Draft(request_id, lane, fields, reply or "", compared)


def _digest(compared: str, fields: Mapping[str, bytes]) -> str:
    endpoint = fields["endpoint"] if "endpoint" in fields else b""  # noqa: SIM401 - `get` takes longer, for each request
    return hashed(compared) + hashed_bytes(fields["body"], endpoint)


def _write_options(ask: Ask, fields: dict[str, bytes]) -> None:
    """Add the options that are fields by their own names. An empty text counts as absent, as in an entry."""
    given = ask.__dict__
    if _WRITTEN_NAMES.isdisjoint(given):
        return  # most mappings name none of them
    for name, (read, write) in _WRITTEN.items():
        if name in given and (value := given[name]) is not None and (text := write(value, name)):
            read(text, name)
            fields[name] = text.encode()


def encode_body(body: Mapping[str, Any]) -> tuple[bytes, str]:
    """Encode a body: compact JSON in UTF-8 with keys in the order given, and the form to compare.

    Raises:
        InvalidRequest: it is no object, or holds a value that JSON cannot.
    """
    if type(body) is not dict:
        if not isinstance(body, Mapping):
            raise InvalidRequest(f"must be a dict, not {type(body).__name__}", "body", "invalid_type")
        body = dict(body)
    try:
        sent, compared = jsontext.texts(body)
        return sent.encode(), compared
    except RecursionError:
        raise _endless(body) from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", "body", "invalid_json") from None


def _endless(body: Mapping[str, Any]) -> InvalidRequest:
    try:
        json.dumps(dict(body))  # detects circular references
    except ValueError as error:
        return InvalidRequest(f"cannot be written as JSON: {error}", "body", "invalid_json")
    except RecursionError:
        pass
    return InvalidRequest("is nested too deeply", "body", "invalid_json")


def _deadline(ask: Ask) -> dict[str, bytes]:
    deadline, ttl_ms = ask.deadline, ask.ttl_ms
    if deadline is not None and ttl_ms is not None:
        raise InvalidRequest("give deadline or ttl_ms, not both", "ttl_ms")
    if deadline is None:
        return {"ttl": _milliseconds(ttl_ms, "ttl_ms")}
    if isinstance(deadline, timedelta):
        # Redis's clock counts a span from enqueueing, so this machine's clock does not matter.
        return {"ttl": _milliseconds(deadline // timedelta(milliseconds=1), "deadline")}
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise InvalidRequest("the datetime needs a time zone, such as datetime.now(UTC)", "deadline")
        return {"deadline": _milliseconds(round(deadline.timestamp() * 1000), "deadline")}
    written = _milliseconds(deadline, "deadline")
    check_deadline(deadline)
    return {"deadline": written}


def _if_late(ask: Ask) -> bytes:
    if ask.if_late not in (REFUSE, DOWNGRADE):
        raise InvalidRequest(f"must be {REFUSE} or {DOWNGRADE}, not {ask.if_late!r}", "if_late")
    if ask.deadline is None and ask.ttl_ms is None:
        raise InvalidRequest("needs a deadline or ttl_ms: nothing else can be late", "if_late")
    return ask.if_late.encode()


def _milliseconds(value: object, param: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"must be whole milliseconds, not {value!r}", param, "invalid_type")
    if not 0 <= value < 10**16:
        raise InvalidRequest(f"must be 0 or more milliseconds, in at most 16 digits, not {value}", param)
    return b"%d" % value
