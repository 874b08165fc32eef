"""Results of requests: decodes the hash in Redis into the `Result` that callers get."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamfleet.common.errors import RequestFailed, openai_error
from streamfleet.common.protocol import Status


class Timings(NamedTuple):
    """Durations in ms; None if the step was not reached or could not be measured.

    Attributes:
        queued_ms: from enqueueing to being claimed by the worker that finished it.
        waited_ms: from being claimed to being handed to the engine.
        first_token_ms: from the engine to its first token.
        total_ms: from enqueueing to the outcome.
    """

    queued_ms: float | None = None
    waited_ms: float | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None


MOST_TOKENS = 10**9
"""Most tokens of one request that are believed: any server can be the engine, and sums of a million stay whole."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a request.

    Attributes:
        id: the request id.
        status: its terminal status.
        response: the OpenAI response object, as the engine gave it; None without success.
        error: the OpenAI error object (``message``, ``type``, ``param``, ``code``); None with success.
        http_status: HTTP status that an OpenAI server would send.
        worker, attempt: worker that finished it, and number of the attempt; None and 0 if no worker ran it.
        fields: every field of the hash, as text.
        warnings: mistakes of the request that did not keep it from running, such as an unknown field.
    """

    id: str
    status: Status
    response: dict[str, Any] | None
    error: dict[str, Any] | None
    http_status: int
    finish_reason: str | None
    usage: dict[str, Any] | None
    worker: str | None
    attempt: int
    timings: Timings
    fields: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status is Status.SUCCEEDED

    @property
    def text(self) -> str:
        """The generated text of the first choice; empty for endpoints that generate none."""
        choices = (self.response or {}).get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, dict):
            return ""
        message = first.get("message")
        content = message.get("content") if isinstance(message, dict) else first.get("text")
        return content if isinstance(content, str) else ""

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the engine took from its prefix cache; 0 if it does not tell."""
        return cached_tokens(self.usage or {})

    def moment(self, name: str) -> int | None:
        """A time among its fields, epoch ms; None if it is missing or no number."""
        said = self.fields.get(name, "")
        return int(said) if said.isascii() and said.isdigit() and len(said) <= 16 else None

    def raise_for_status(self) -> Result:
        """Return itself if it succeeded.

        Raises:
            RequestFailed: it ended in any other way.
        """
        if not self.ok:
            raise RequestFailed(self.id, self.status, self.error or {})
        return self


_IN_RESPONSES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
"""Names of the Responses API for what other endpoints call by the first."""


def tokens_used(usage: Mapping[str, Any], name: str) -> int | None:
    """An engine's count of tokens; None if it is missing or not possible, because any server can be the engine."""
    used = usage.get(name)
    if used is None:
        used = usage.get(_IN_RESPONSES.get(name, name))
    return used if type(used) is int and 0 <= used <= MOST_TOKENS else None


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """Tokens of the prompt that came from a prefix cache, by an engine's usage object; 0 if it does not tell."""
    for name in ("prompt_tokens_details", "input_tokens_details"):  # the second is that of the Responses API
        details = usage.get(name)
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int and 0 < cached <= MOST_TOKENS:
            return cached
    return 0


_STATUSES: dict[str, Status] = {status: status for status in Status}
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
DEFAULT_HTTP_STATUS = {
    Status.SUCCEEDED: 200,
    Status.FAILED: 400,
    Status.EXPIRED: 504,
    Status.CANCELLED: 499,
    Status.DEAD: 500,
}


def decode_result(request_id: str, fields: Mapping[bytes, bytes]) -> Result | None:
    """The result in a hash's fields; None if there is none yet.

    Invalid contents never raise, so that one damaged result does not keep a caller from reading the others.
    """
    if b"status" not in fields:
        return None
    try:
        text = {key.decode(): value.decode() for key, value in fields.items()}
    except UnicodeDecodeError:
        text = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in fields.items()}
    status = _status(text)
    get = text.get
    return Result(
        request_id,
        status,
        _object(get("response")),
        _error(get("error")),
        int(_number(get("http_status")) or DEFAULT_HTTP_STATUS[status]),
        get("finish_reason"),
        _object(get("usage")),
        get("worker"),
        int(_number(get("attempt")) or 0),
        Timings(
            _number(get("queued_ms")),
            _number(get("waited_ms")),
            _number(get("first_token_ms")),
            _number(get("total_ms")),
        ),
        text,
        _warnings(get("warnings")),
    )


def _warnings(text: str | None) -> tuple[str, ...]:
    found = (_object(text) or {}).get("value", ())
    return tuple(map(str, found)) if isinstance(found, list | tuple) else (str(found),)


def _status(text: dict[str, str]) -> Status:
    """Read the status; an invalid one was written by hand, and counts as failed."""
    status = _STATUSES.get(text["status"])
    if status is None:
        said = f"the result was written by hand: {text['status'][:40]!r} is no status"
        text["error"] = openai_error(said, "server_error", "status", "invalid_value")
        return Status.FAILED
    return status


def _object(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"value": value}


def _error(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    found = _object(text)
    inner = found.get("error", found) if found else None
    return inner if inner is None or isinstance(inner, dict) else {"message": str(inner)}


def _number(text: str | None) -> float | None:
    return float(text) if text and _NUMBER.fullmatch(text) else None
