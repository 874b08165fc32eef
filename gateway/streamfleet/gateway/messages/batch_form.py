"""Message batches in Anthropic's form: their requests, which come in one body, the batches, and the results. Pure.

`RequestSplitter` takes a body in pieces and gives the text of each request; `input_line` makes a line of a batch's
input of it. `batch_object` shows a batch, and `result_line` a line of its two files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.jsontext import json_line
from streamfleet.common.protocol import MESSAGES, check_plain, parse_body
from streamfleet.gateway.batch_records import BATCH, BatchRecord, BatchStatus, is_id
from streamfleet.gateway.batches.lines import LineChecker
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.messages.translation import error_object
from streamfleet.gateway.offload import encode
from streamfleet.producer.batch_lines import NO_LIMIT, BadLine

BATCHES = f"{MESSAGES}/batches"
PREFIX = "msg"
"""Beginning of a batch's id in Anthropic's form; the id of its record follows."""
MOST_AROUND_BYTES = 1_024
"""Most bytes before the first request, and behind the last."""
FIELDS = ("custom_id", "params")
_BLANK = rb"[ \t\r\n]*"
_BEGIN = re.compile(_BLANK + rb"\{" + _BLANK + rb'"requests"' + _BLANK + rb":" + _BLANK + rb"\[")
_END = re.compile(_BLANK + rb"\}" + _BLANK)
_EMPTY = re.compile(_BLANK + rb"\{" + _BLANK + rb"\}")
_NO_LIST = re.compile(_BLANK + rb"\{" + _BLANK + rb'"requests"' + _BLANK + rb":" + _BLANK + rb"[^\[ \t\r\n]")
_OTHER = re.compile(_BLANK + rb"[{,]" + _BLANK + rb'"([^"\\]{1,80})"')
_SIGN = re.compile(rb"[^ \t\r\n]")
_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
"""The rest of a text with its last quote, or as far as it has come."""
_OUTSIDE = re.compile(rb'["{}\[\]]')
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_STATUSES = {"model_not_found": 404, "request_too_large": 413}
"""Statuses of errors of lines that were not run, by their codes; of any other it is 400."""


class RequestSplitter:
    """Splits ``{"requests": [{…}, …]}``, which comes in pieces of any size, into its requests.

    It only finds where each one ends: nothing is parsed, and at most one request and a piece are held.

    Args:
        most_bytes: longest request.

    Attributes:
        count: number of requests so far.
        held: bytes that have come and are in no request that was returned.
    """

    def __init__(self, most_bytes: int) -> None:
        self.count = 0
        self._most_bytes = most_bytes
        self.held = bytearray()
        self._start = self._at = self._depth = 0  # of the request that is being read
        self._begun = self._in_text = self._ended = False
        self._may_come = b"{]"

    def feed(self, data: bytes) -> list[bytes]:
        """Add a piece. Returns the requests that are complete with it. Raises InvalidRequest."""
        held = self.held
        held += data
        if not self._begun:
            if (begin := _BEGIN.match(held)) is None:
                self._check_around()
                return []
            self._begun, self._start = True, begin.end()
        found = list(iter(self._next, None))
        del held[: self._start]
        self._at, self._start = self._at - self._start, 0
        if self._ended:
            self._check_around()
        elif len(held) > self._most_bytes:
            raise InvalidRequest(
                f"is larger than {self._most_bytes} bytes", f"requests.{self.count}", "request_too_large"
            )
        return found

    def end(self) -> None:
        """Check that the body was complete. Raises InvalidRequest."""
        if not self._ended or not _END.fullmatch(self.held):
            raise InvalidRequest("is not an object with a whole list of requests", "body", "invalid_json")
        if not self.count:
            raise InvalidRequest("must have one request or more", "requests")

    def _check_around(self) -> None:
        """Refuse what cannot become the beginning of a body, or its end."""
        other = _OTHER.match(self.held)
        if other is not None and (self._ended or other[1] != b"requests"):
            name = other[1].decode(errors="replace")
            raise InvalidRequest("is not a field of a batch: it has requests, once", name, "unsupported_parameter")
        if not self._begun and _EMPTY.match(self.held):
            raise InvalidRequest("is missing", "requests", "missing_required_parameter")
        if not self._begun and _NO_LIST.match(self.held):
            raise InvalidRequest("must be a list", "requests", "invalid_type")
        if len(self.held) > MOST_AROUND_BYTES:
            raise InvalidRequest("must be an object with a list of requests", "body", "invalid_json")

    def _next(self) -> bytes | None:
        """Returns the next request; None if more has to come."""
        held = self.held
        while not self._depth:
            if self._ended:
                return None
            if (sign := _SIGN.search(held, self._start)) is None:
                self._start = len(held)  # else the next piece is read with all blanks before it
                return None
            what, self._start = sign[0], sign.end()
            if what not in self._may_come:
                text = "must be an object with custom_id and params, behind a comma unless it is the first"
                raise InvalidRequest(text, f"requests.{self.count}", "invalid_json")
            if what == b"{":
                self._start, self._at, self._depth = sign.start(), sign.end(), 1
            self._ended, self._may_come = what == b"]", b"{" if what == b"," else b",]"
        if not self._find_end():
            return None
        request, self._start = bytes(held[self._start : self._at]), self._at
        self.count += 1
        return request

    def _find_end(self) -> bool:
        """Go on to the end of the request; False if that has to come."""
        held = self.held
        while self._depth:
            if self._in_text:
                rest = _TEXT.match(held, self._at)
                self._at = rest.end() if rest else self._at
                if rest is None or not rest[1]:
                    return False
            if (mark := _OUTSIDE.search(held, self._at)) is None:
                self._at, self._in_text = len(held), False
                return False
            self._at, found = mark.end(), mark[0]
            self._in_text = found == b'"'
            if not self._in_text:
                self._depth += 1 if found in b"{[" else -1
        return True


def input_line(text: bytes, number: int, checker: LineChecker, most_body_bytes: int) -> bytes:
    """Returns a request as a line of a batch's input.

    Args:
        text: the request.
        number: which it is, from 0.
        checker: has checked the requests before.
        most_body_bytes: largest body of a request.

    Raises:
        InvalidRequest: a field is wrong; `param` names it after the number.
    """
    at = f"requests.{number}"
    custom_id, params = _read_request(text, at, most_body_bytes)
    line = encode({"custom_id": custom_id, "method": "POST", "url": MESSAGES, "body": params}) + b"\n"
    try:
        checker.check(number + 1, line)
    except BadLine as bad:
        if bad.code == "duplicate_custom_id":
            said = f"{custom_id!r} is that of an earlier request: each needs its own"
            raise InvalidRequest(said, f"{at}.custom_id", bad.code) from None
        param = "" if bad.param is None else f".{bad.param.replace('body', 'params', 1)}"
        said = bad.message.removeprefix(f"{bad.param}: ").replace("body.", "params.", 1)
        raise InvalidRequest(said, f"{at}{param}", bad.code) from None
    return line


def _read_request(text: bytes, at: str, most_body_bytes: int) -> tuple[str, dict[str, Any]]:
    """Returns custom_id and params of a request. Raises InvalidRequest."""
    try:
        check_plain(text, most_body_bytes)
        request = parse_body(text, NO_LIMIT)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, at, error.code) from None
    for name in request:
        if name not in FIELDS:
            said = "is not a field of a request: it has custom_id and params"
            raise InvalidRequest(said, f"{at}.{name[:80]}", "unsupported_parameter")
    for name in FIELDS:
        if name not in request:
            raise InvalidRequest("is missing", f"{at}.{name}", "missing_required_parameter")
    custom_id, params = request["custom_id"], request["params"]
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise InvalidRequest("must be 1 to 64 letters, digits, _ or -", f"{at}.custom_id")
    if not isinstance(params, dict):
        raise InvalidRequest("must be an object: what POST /v1/messages takes", f"{at}.params", "invalid_type")
    if params.get("stream"):
        said = "is not supported in a batch: its answers come whole"
        raise InvalidRequest(said, f"{at}.params.stream", "unsupported_parameter")
    return custom_id, params


def own_id(batch_id: str) -> str | None:
    """Returns the id of a batch's record; None if this is no id of a message batch."""
    found = batch_id.removeprefix(PREFIX)
    return found if found != batch_id and is_id(found, BATCH) else None


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    """Returns a batch as Anthropic shows it."""
    ended, total = batch.status.ended, batch.total
    status = "canceling" if batch.status is BatchStatus.CANCELLING else "in_progress"
    return {
        "id": f"{PREFIX}{batch.id}",
        "type": "message_batch",
        "processing_status": "ended" if ended else status,
        "request_counts": {
            "processing": 0 if ended else total,
            "succeeded": batch.completed if ended else 0,
            "errored": total - batch.completed - batch.late - batch.cancelled if ended else 0,
            "canceled": batch.cancelled if ended else 0,
            "expired": batch.late if ended else 0,
        },
        "created_at": _moment(batch.created_ms),
        "expires_at": _moment(batch.deadline_ms),
        "ended_at": _moment(batch.times.get(batch.status) if ended else None),
        "cancel_initiated_at": _moment(batch.times.get(BatchStatus.CANCELLING)),
        "archived_at": None,
        # Without a host: a client adds its own, and sends its key nowhere else.
        "results_url": f"{BATCHES}/{PREFIX}{batch.id}/results" if ended else None,
    }


def _moment(ms: int | None) -> str | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def result_line(text: bytes) -> bytes:
    """Returns a line of a batch's output or error file as Anthropic's results have it."""
    line = json.loads(text)
    told = json_line({"custom_id": line["custom_id"], "result": _result(line)})
    return told.encode(errors="backslashreplace") + b"\n"


def _result(line: Mapping[str, Any]) -> dict[str, Any]:
    response, error = line["response"] or {}, line["error"]
    if error is None:
        ignored = {name: value for name, value in response.items() if name == "x-streamfleet-ignored"}
        return {"type": "succeeded", "message": response["body"], **ignored}
    code, message = error.get("code"), str(error.get("message"))
    if code in ("batch_cancelled", "batch_expired"):
        return {"type": "canceled" if code == "batch_cancelled" else "expired"}
    status = response.get("status_code") or _STATUSES.get(code, 400)
    if not response:
        message = message.removeprefix(f"line {error.get('line')}: ").removeprefix("body.")
    return {"type": "errored", "error": error_object(ApiError(status, message, code)) | {"request_id": line["id"]}}
