"""Outcomes of one attempt at a request, and the rules that judge an engine's reply. Pure.

The executor makes one `Outcome` of each run: finished, postponed, handed back or gone. The circuit breaker weighs it,
and the completer writes it to Redis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common import jsontext
from streamfleet.common.errors import InvalidRequest, naming, openai_error
from streamfleet.common.numbers import OUTPUT_LIMITS, number
from streamfleet.common.protocol import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, Status
from streamfleet.common.results import tokens_used
from streamfleet.worker.engine.base import EngineReply, EngineRequest, Partial

_TOO_LONG = re.compile(r"context (?:length|size|window)|maximum model length|max_model_len", re.IGNORECASE)
"""Words of vLLM and other servers where prompt and output do not fit into the model."""
_ENGINES_OWN = (None, "input_text", "input_tokens")
"""Names by which vLLM means the prompt; no request has such fields."""
_NO_ROOM = "max_tokens must be at least 1, got 0"
"""Words of vLLM for a limit that it has itself cut to 0, because the prompt fills the context."""
_PROMPTS = {CHAT: "messages", COMPLETIONS: "prompt", MESSAGES: "messages", COUNT_TOKENS: "messages"}


@dataclass(slots=True)  # frozen ones take three times as long to make
class Finished:
    """A terminal status, with the other fields of the result hash.

    ``error``: JSON of the OpenAI error object; empty with success. ``engine_ok``: True if the engine works, False if
    the engine or the request is at fault, None if the outcome says nothing about the engine. ``resumed_tokens``:
    output tokens that earlier runs had generated. ``held``: output tokens for the time in the engine, where nobody has
    counted them; infinite if the engine's pace is not known; None if they were counted.
    """

    status: Status
    http_status: int
    response: bytes = b""
    error: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    first_token_ms: float | None = None
    engine_ok: bool | None = None
    resumed_tokens: int = 0
    held: float | None = None


@dataclass(slots=True)
class Postponed:
    """A fault that may pass: try again later, this attempt counted.

    ``retry_after_ms``: wait that the engine asked for. ``engine_died``: this worker ends, so another one may try at
    once.
    ``engine_hangs``: the engine answers no request for now. ``said``: the engine's own words, which may repeat the
    request: for its owner only, never for a log. ``partial``: output from which another run can go on. ``held``: as of
    `Finished`, which is charged with the prompt; None if nothing is charged. ``code``: as of
    `EngineUnavailable`.
    """

    reason: str
    retry_after_ms: int | None = None
    engine_died: bool = False
    engine_hangs: bool = False
    said: str = ""
    partial: Partial | None = None
    held: float | None = None
    code: str = "engine_error"

    @property
    def whole(self) -> str:
        """The reason with the engine's own words."""
        return f"{self.reason}: {self.said}" if self.said else self.reason


@dataclass(frozen=True, slots=True)
class HandedBack:
    """This worker does not finish it: back to the queue at once, this attempt not counted.

    ``in_turn``: it could not start here, so its lane gets its turn back. ``gave_way``: it was interrupted for an urgent
    request. ``after_ms``: time for which it is held back. ``partial``: output from which another run can go on.
    ``lost_tokens``: output tokens that have to be generated again, as the engine counted them.
    """

    in_turn: bool = False
    gave_way: bool = False
    after_ms: int = 0
    partial: Partial | None = None
    lost_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Gone:
    """The lease was lost: another worker finishes the request, nothing is written."""


Outcome = Finished | Postponed | HandedBack | Gone


def refused(error: InvalidRequest) -> Finished:
    """Returns the outcome of an invalid request."""
    return Finished(Status.FAILED, 400, error=error.to_openai())


def expired(where: str) -> Finished:
    """Returns the outcome of a deadline that passed ``where`` ("while it was running", …)."""
    return Finished(
        Status.EXPIRED,
        504,
        error=openai_error(f"the deadline passed {where}", "timeout", "deadline", "deadline_exceeded"),
    )


def cancelled() -> Finished:
    """Returns the outcome of a cancelled request, which has its result already; writing it only removes the entry."""
    return Finished(
        Status.CANCELLED, 499, error=openai_error("cancelled by the caller", "cancelled", None, "cancelled")
    )


def broken(message: str) -> Finished:
    """Returns the outcome of a bug in the worker, which no retry can mend."""
    error = openai_error(message, "server_error", None, "internal_error")
    return Finished(Status.FAILED, 500, error=error, engine_ok=False)


def judge(reply: EngineReply, asked: EngineRequest | None = None) -> Outcome:
    """Returns the outcome for an engine's reply: success, the request's own fault, or a passing fault.

    `asked` tells which field holds the prompt.
    """
    body = _parse(reply.body)
    if 200 <= reply.status < 300:
        if not isinstance(body, dict):
            return broken(f"the engine answered {reply.status} with something that is no JSON object")
        if "error" in body and "choices" not in body and body["error"]:
            return Finished(Status.FAILED, 400, error=_error_of(body, 400, asked))
        return Finished(
            Status.SUCCEEDED,
            reply.status,
            response=reply.body,
            finish_reason=_finish_reason(body),
            usage=_usage_of(body),
            first_token_ms=reply.first_token_ms,
            engine_ok=True,
        )
    if reply.status in (408, 409, 425, 429, 502, 503, 504):
        return Postponed(f"the engine answered {reply.status}", said=_message(body))
    # A front end refuses wrong requests and unknown paths even if the engine behind it is broken.
    refusal = reply.status < 500 or reply.status in (501, 505)
    return Finished(
        Status.FAILED, reply.status, error=_error_of(body, reply.status, asked), engine_ok=None if refusal else False
    )


def _usage_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an answer's usage; that of a message by the names of a chat's, which all who count tokens read."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return {}
    if "choices" in body or body.get("type") != "message":
        return usage
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    new, cached, created, written = (tokens_used(usage, name) or 0 for name in names)
    read = new + cached + created
    counted = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {**counted, "prompt_tokens_details": {"cached_tokens": cached}} if cached else counted


def _parse(body: bytes) -> Any:
    try:
        return jsontext.parse(body)
    except (ValueError, RecursionError):
        return body[:200].decode(errors="replace")


def _finish_reason(body: dict[str, Any]) -> str:
    choices = body.get("choices")
    if not choices and body.get("type") == "message":
        choices = [{"finish_reason": body.get("stop_reason")}]
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        said = str(choices[0].get("finish_reason") or "")[:100]
        return said.encode(errors="replace").decode()  # half of a surrogate pair could not be stored
    return ""


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", "") if isinstance(error, dict) else error
    return str(text)[:500]


def _error_of(body: Any, status: int, asked: EngineRequest | None) -> str:
    """Returns the engine's error in the OpenAI shape."""
    error = body.get("error") if isinstance(body, dict) else None
    given = error if isinstance(error, dict) else {}
    kind = given.get("type") or ("invalid_request_error" if status < 500 else "server_error")
    code = given.get("code")
    message = str(given.get("message") or _message(body) or f"the engine answered {status}")[:4000]
    param = given.get("param")
    param = param if isinstance(param, str) else None
    if asked and message.startswith(_NO_ROOM) and all(number(asked.body.get(name)) != 0 for name in OUTPUT_LIMITS):
        message, param = f"leaves no room for output in the model's context length: {message}", None
    if status < 500 and _TOO_LONG.search(message):
        code = "context_length_exceeded"
        param = param if param not in _ENGINES_OWN else _PROMPTS.get(asked.endpoint if asked else "", "input")
    message = naming(message, param) if status < 500 else message
    return openai_error(message, str(kind), param, str(code) if code is not None else None)
