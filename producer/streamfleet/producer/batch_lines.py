"""The OpenAI Batch file format: parses input lines, and formats output and error lines. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamfleet.common.errors import InvalidRequest, StreamfleetError, naming
from streamfleet.common.jsontext import json_line
from streamfleet.common.protocol import check_endpoint, check_plain, parse_body
from streamfleet.common.results import Result

NO_LIMIT = 2**63
LINE_BEGINS = b'{"id": '
"""Beginning of every line written here; other lines are foreign."""
MAX_LINE_BYTES = 64 * 1_048_576
"""Longest input line; a body within the default limit takes less than a tenth of it."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of an input file.

    Attributes:
        number: line number, from 1.
        custom_id: the caller's name for the request.
        url: OpenAI path.
        body: OpenAI request body.
        ignored: what was left out of the body, as the header `x-streamfleet-ignored` names it; empty for nothing.
    """

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]
    ignored: str = ""


class BadLine(StreamfleetError):
    """A line that is not a valid request.

    Attributes:
        number: line number, from 1.
        custom_id: the caller's name; None if it could not be read.
        message, param, code: as in an OpenAI error.
    """

    def __init__(
        self, number: int, custom_id: str | None, message: str, param: str | None, code: str = "invalid_value"
    ) -> None:
        super().__init__(f"line {number}: {param}: {message}" if param else f"line {number}: {message}")
        self.number = number
        self.custom_id = custom_id
        self.message = naming(message, param)
        self.param = param
        self.code = code


def parse_line(text: bytes, number: int, max_body_bytes: int = NO_LIMIT) -> BatchLine:
    """Parse a line, ``{"custom_id", "method", "url", "body"}``.

    Args:
        text: the line.
        number: which it is, from 1.
        max_body_bytes: what is beyond the limits of such a body outside of its strings is not parsed.

    Raises:
        BadLine: the line is invalid; the error names the field.
    """
    if len(text) > MAX_LINE_BYTES:
        raise BadLine(number, None, f"the line is longer than {MAX_LINE_BYTES} bytes", None, "request_too_large")
    if b"\0" in text:
        said = "the line is not UTF-8: it holds zero bytes, as UTF-16 does"
        raise BadLine(number, None, said, None, "invalid_encoding")
    try:
        check_plain(text, max_body_bytes)
        line = parse_body(text.removeprefix(b"\xef\xbb\xbf"), NO_LIMIT)
    except InvalidRequest as error:
        raise BadLine(number, None, f"the line {error.message}", None, error.code) from None
    if "custom_id" not in line:
        raise BadLine(number, None, "is missing: a line has custom_id, method, url and body", "custom_id")
    custom_id = line["custom_id"]
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine(number, None, "must be a text of one character or more", "custom_id")
    if line.get("method") != "POST":
        shown = json.dumps(line.get("method"))[:40]
        raise BadLine(number, custom_id, f"must be POST, not {shown}", "method")
    url, body = line.get("url"), line.get("body")
    if not isinstance(url, str):
        raise BadLine(number, custom_id, "must be an OpenAI path, such as /v1/chat/completions", "url")
    try:
        check_endpoint(url)
    except InvalidRequest as error:
        raise BadLine(number, custom_id, error.message, "url", error.code) from None
    if not isinstance(body, dict):
        raise BadLine(number, custom_id, "must be an object: an OpenAI request body", "body")
    return BatchLine(number, custom_id, url, body)


def request_id(prefix: str, custom_id: str) -> str:
    """The request id of a line, derived from job and custom_id."""
    digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"{prefix}-{digest.hexdigest()}"


def answer_line(custom_id: str, result: Result, ignored: str = "") -> bytes:
    """The line for an ended request: for the output file if it succeeded, else for the error file."""
    body = result.response if result.ok else {"error": result.error}
    told = {"x-streamfleet-ignored": ignored} if ignored else {}
    response = {"status_code": result.http_status, "request_id": result.id, **told, "body": body}
    error = None if result.ok else _short_error(result)
    return _line({"id": result.id, "custom_id": custom_id, "response": response, "error": error})


def refusal_line(error: BadLine) -> bytes:
    """The error file's line for an input line that was not run."""
    reason = {"code": error.code, "message": str(error), "param": error.param, "line": error.number}
    return _line({"id": None, "custom_id": error.custom_id, "response": None, "error": reason})


@dataclass(frozen=True, slots=True)
class Written:
    """Subject of a line that an earlier run wrote.

    Attributes:
        custom_id: the request that it answers; None for an input line without one.
        number: the input line that it refuses; None if it answers a request.
    """

    custom_id: str | None
    number: int | None


def parse_written(text: bytes) -> Written | None:
    """Read the subject of a line of an output or error file; None for a foreign line."""
    try:
        line = json.loads(text)
        if not isinstance(line, dict) or "response" not in line or "custom_id" not in line:
            return None
        error, custom_id = line.get("error"), line["custom_id"]
        number = error.get("line") if isinstance(error, dict) else None
    except (ValueError, RecursionError):
        return None
    if custom_id is not None and not isinstance(custom_id, str):
        return None
    return Written(custom_id, number if isinstance(number, int) else None)


def _short_error(result: Result) -> dict[str, Any]:
    error = result.error or {}
    return {"code": error.get("code") or result.status.value, "message": error.get("message") or "no message"}


def _line(value: Mapping[str, Any]) -> bytes:
    try:
        return json_line(value).encode() + b"\n"
    except UnicodeEncodeError:
        # Half a surrogate pair is valid JSON but not UTF-8, so it must stay escaped.
        return json.dumps(value).encode() + b"\n"
