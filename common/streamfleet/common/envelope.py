"""The fields of an entry: one table, and what reads, checks and writes each field but the body. Pure.

Clients check values with the same functions when they encode a request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from streamfleet.common.errors import InvalidRequest

MAX_NAME_CHARS = 256
MAX_META_BYTES = 4096
EARLIEST_MS = 978_307_200_000
"""The year 2001: an earlier deadline is one in seconds. `come_back.lua` has it too."""
_MS = re.compile(r"[0-9]{1,16}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def check_label(value: str, param: str) -> str:
    """Check a tenant, session or program.

    Raises:
        InvalidRequest: over 256 characters, or not printable.
    """
    if len(value) > MAX_NAME_CHARS or not value.isprintable():
        raise InvalidRequest(f"must be at most {MAX_NAME_CHARS} printable characters", param)
    return value


def check_traceparent(value: str, param: str = "traceparent") -> str:
    """Check a W3C trace context.

    Raises:
        InvalidRequest: the value is not one.
    """
    if not _TRACEPARENT.fullmatch(value):
        raise InvalidRequest("must be a W3C traceparent, such as 00-<32 hex>-<16 hex>-01", param)
    return value


def traceparent_of(trace_id: int, span_id: int, flags: int) -> str:
    """The W3C trace context of a span, from its OpenTelemetry ids."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


def check_deadline(epoch_ms: int, param: str = "deadline") -> int:
    """Check that a producer's deadline is in milliseconds.

    Raises:
        InvalidRequest: it is before the year 2001, so it is in seconds.
    """
    if epoch_ms < EARLIEST_MS:
        raise InvalidRequest(
            f"was read as {epoch_ms}, before the year 2001: epoch milliseconds are meant, not seconds", param
        )
    return epoch_ms


def text(name: bytes, value: bytes) -> str:
    """A field's value as text. Raises InvalidRequest if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is not UTF-8: byte {error.start} is {value[error.start]:#04x}", name.decode(), "invalid_encoding"
        ) from None


def _milliseconds(value: str, param: str) -> int:
    if not _MS.fullmatch(value):
        unit = "epoch milliseconds" if param == "deadline" else "milliseconds from enqueueing"
        raise InvalidRequest(f"must be {unit} in decimal digits, not {value[:40]!r}", param)
    return int(value)


def _flag(value: str, param: str) -> bool:
    if value not in ("0", "1"):
        raise InvalidRequest(f"must be 0 or 1, not {value[:40]!r}", param)
    return value == "1"


def _if_late(value: str, param: str) -> str:
    """Check ``if_late``, which is judged before a worker gets the entry."""
    if value != "refuse":
        raise InvalidRequest(f"must be refuse, not {value[:40]!r}", param)
    return value


def _meta(value: str, _: str) -> str:
    size = len(value.encode())
    if size > MAX_META_BYTES:
        raise InvalidRequest(f"is {size} bytes; at most {MAX_META_BYTES} are allowed", "meta")
    return value


def as_text(value: object, param: str) -> str:
    """A client's option that has to be text. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(f"must be text, not {type(value).__name__}", param, "invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("cannot be written as UTF-8", param, "invalid_encoding") from None
    return value


def _as_flag(value: object, _: str) -> str:
    return "1" if value else ""


def _as_text_or_json(value: object, param: str) -> str:
    if isinstance(value, Mapping):
        try:
            value = json.dumps(dict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"cannot be written as JSON: {error}", param, "invalid_json") from None
    return as_text(value, param)


class RequestField(NamedTuple):
    """A field of an entry; docs/protocol.md has a table of them, made of this one.

    Attributes:
        name: its name.
        rule: what its text may be.
        meaning: what it says; help of the command line's option as well.
        read: reads its text, given the field's name too; raises InvalidRequest. None if `protocol.py` reads it.
        write: returns the text of the client's option of that name, given the name too; raises InvalidRequest. None if
            `ask.py` writes it.
        carried: True if its result has it too, as given.
        option: True if the command line has an option of that name.
    """

    name: str
    rule: str
    meaning: str
    read: Callable[[str, str], Any] | None = None
    write: Callable[[Any, str], str] | None = None
    carried: bool = False
    option: bool = False


_NAME_RULE = f"1 to {MAX_NAME_CHARS} characters of printable ASCII without space"
_LABEL_RULE = f"UTF-8, at most {MAX_NAME_CHARS} printable characters"
_DIGITS_RULE = "1 to 16 decimal digits"
FIELDS = (
    RequestField("body", "REQUIRED. UTF-8 text of a JSON object", "An OpenAI request body."),
    RequestField(
        "id",
        f"{_NAME_RULE}; not of the form letters, `:`, digits, `-`, digits",
        "Name of the request. Without one it is `<lane>:<stream id>`.",
    ),
    RequestField("endpoint", "one of the endpoints below", "OpenAI path. Default: by the body."),
    RequestField(
        "deadline", _DIGITS_RULE, "Epoch milliseconds, not seconds: then the answer is worthless.", _milliseconds
    ),
    RequestField("ttl", _DIGITS_RULE, "The same in milliseconds from enqueueing. `deadline` wins.", _milliseconds),
    RequestField("if_late", "`refuse`", "It ends at once, as `expired`, if it would likely be late.", _if_late),
    RequestField(
        "tenant",
        _LABEL_RULE,
        "Whose request it is, for fairness between tenants.",
        check_label,
        as_text,
        carried=True,
        option=True,
    ),
    RequestField(
        "session",
        _LABEL_RULE,
        "Its conversation: it runs on the worker that has it in its cache.",
        check_label,
        as_text,
        carried=True,
        option=True,
    ),
    RequestField(
        "program",
        _LABEL_RULE,
        "The agent's run that it is a turn of. Default: the session's.",
        check_label,
        as_text,
        option=True,
    ),
    RequestField("reply", _NAME_RULE, "Name of the caller's reply stream."),
    RequestField("stream", "`0` or `1`", "The caller wants tokens while they come.", _flag, _as_flag),
    RequestField(
        "traceparent",
        "W3C trace context, in lower case",
        "The caller's span.",
        check_traceparent,
        as_text,
        carried=True,
    ),
    RequestField(
        "meta",
        f"UTF-8, at most {MAX_META_BYTES} bytes",
        "Anything of the caller's.",
        _meta,
        _as_text_or_json,
        carried=True,
    ),
    RequestField(
        "bounded",
        "`0` or `1`",
        "Its result counts to what its tenant may keep. Gateways set it.",
        _flag,
        _as_flag,
        carried=True,
    ),
)
"""All fields that an entry may have. A new one is a line here, and an option in `ask.py`."""
CARRIED = tuple(field.name for field in FIELDS if field.carried)

KNOWN = sorted(field.name for field in FIELDS)
KNOWN_FIELDS = frozenset(map(str.encode, KNOWN))
_ELSEWHERE = {b"priority": "the lane is the priority", b"model": "the model belongs into the body"}
MEANT = (*map(str.encode, KNOWN), *_ELSEWHERE)
_MOST_LOOKED_AT, _MOST_WARNINGS = 256, 8


def unknown_fields(names: Collection[bytes]) -> list[tuple[str, str]]:
    """The known name that was meant, and a warning, for each field that looks like one. Fields of others do not."""
    found: list[tuple[str, str]] = []
    if KNOWN_FIELDS.issuperset(names):
        return found
    for name in sorted([name for name in names if name not in KNOWN_FIELDS][:_MOST_LOOKED_AT]):
        meant = next((each for each in MEANT if _near(name.lower(), each)), None)
        if meant is not None and len(found) < _MOST_WARNINGS:
            advice = _ELSEWHERE.get(meant, f"did you mean '{meant.decode()}'?")
            shown = re.sub(rb"[^ -~]", b"?", name).decode()
            found.append((meant.decode(), f"field '{shown}' is unknown and was passed over; {advice}"))
    return found


def _near(one: bytes, other: bytes) -> bool:
    """True if at most one byte is added, left out or replaced, or two neighbours are exchanged."""
    return abs(len(one) - len(other)) < 2 and any(
        one[:at] == other[:at]
        and (
            one[at + 1 :] in (other[at:], other[at + 1 :])
            or one[at:] == other[at + 1 :]
            or (one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :])
        )
        for at in range(max(len(one), len(other)))
    )
