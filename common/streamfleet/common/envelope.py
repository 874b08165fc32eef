"""Reads and checks the fields of an entry other than its body. Pure.

Clients check values with the same functions when they encode a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from streamfleet.common.errors import InvalidRequest

MAX_NAME_CHARS = 256
MAX_META_BYTES = 4096
_MS = re.compile(r"[0-9]{1,16}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Fields = Mapping[bytes, bytes]


def check_label(value: str, param: str) -> str:
    """Check a tenant or session.

    Raises:
        InvalidRequest: over 256 characters, or not printable.
    """
    if len(value) > MAX_NAME_CHARS or not value.isprintable():
        raise InvalidRequest(f"must be at most {MAX_NAME_CHARS} printable characters", param)
    return value


def check_traceparent(value: str) -> str:
    """Check a W3C trace context.

    Raises:
        InvalidRequest: the value is not one.
    """
    if not _TRACEPARENT.fullmatch(value):
        raise InvalidRequest("must be a W3C traceparent, such as 00-<32 hex>-<16 hex>-01", "traceparent")
    return value


def traceparent_of(trace_id: int, span_id: int, flags: int) -> str:
    """The W3C trace context of a span, from its OpenTelemetry ids."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


def check_meta(size: int) -> None:
    """Check the size of ``meta``, in bytes.

    Raises:
        InvalidRequest: it is too large.
    """
    if size > MAX_META_BYTES:
        raise InvalidRequest(f"is {size} bytes; at most {MAX_META_BYTES} are allowed", "meta")


def text(fields: Fields, name: bytes) -> str | None:
    """A field as text; None if it is absent or empty. Raises InvalidRequest if it is not UTF-8."""
    value = fields.get(name)
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is not UTF-8: byte {error.start} is {value[error.start]:#04x}", name.decode(), "invalid_encoding"
        ) from None


def label(fields: Fields, name: bytes) -> str | None:
    """Read a tenant or session. Raises InvalidRequest."""
    value = text(fields, name)
    return None if value is None else check_label(value, name.decode())


def deadline_ms(fields: Fields, enqueued_ms: int) -> int | None:
    """Epoch ms of ``deadline``, else of ``ttl`` counted from `enqueued_ms`. Raises InvalidRequest."""
    deadline, ttl = _milliseconds(fields, b"deadline"), _milliseconds(fields, b"ttl")
    if deadline is not None:
        return deadline
    return None if ttl is None else enqueued_ms + ttl


def _milliseconds(fields: Fields, name: bytes) -> int | None:
    value = text(fields, name)
    if value is None:
        return None
    if not _MS.fullmatch(value):
        unit = "epoch milliseconds" if name == b"deadline" else "milliseconds from enqueueing"
        raise InvalidRequest(f"must be {unit} in decimal digits, not {value[:40]!r}", name.decode())
    return int(value)


def flag(fields: Fields, name: bytes) -> bool:
    """True if a field is ``1``; False if it is ``0`` or absent. Raises InvalidRequest for any other value."""
    value = text(fields, name)
    if value not in (None, "0", "1"):
        raise InvalidRequest(f"must be 0 or 1, not {value[:40]!r}", name.decode())
    return value == "1"


def check_if_late(fields: Fields) -> None:
    """Check ``if_late``, which is judged before a worker gets the entry. Raises InvalidRequest."""
    value = text(fields, b"if_late")
    if value not in (None, "refuse"):
        raise InvalidRequest(f"must be refuse, not {value[:40]!r}", "if_late")


def traceparent(fields: Fields) -> str | None:
    """Read the trace context. Raises InvalidRequest."""
    value = text(fields, b"traceparent")
    return None if value is None else check_traceparent(value)


def meta(fields: Fields) -> str | None:
    """Read ``meta``, which is carried along unchanged. Raises InvalidRequest."""
    value = text(fields, b"meta")
    if value is not None:
        check_meta(len(fields[b"meta"]))
    return value
