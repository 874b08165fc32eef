"""Replies that an engine gives without its model, and checks of a model's own replies.

The engines share these: an endpoint or body that is refused becomes an OpenAI-shaped `EngineReply`, and a model's reply
is completed or recognised as aborted. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamfleet.common import jsontext
from streamfleet.common.errors import openai_error
from streamfleet.common.protocol import ENDPOINTS, MESSAGES
from streamfleet.worker.engine.base import EngineReply


def error_reply(status: int, message: str, param: str | None, code: str | None = None) -> EngineReply:
    """An OpenAI-shaped error as a reply. ``param`` names the field at fault."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return EngineReply(status, openai_error(message, kind, param, code).encode())


def refuse_endpoint(endpoint: str) -> EngineReply | None:
    """Returns a 404 for a path that requests may not reach; None for an allowed path.

    Engines check this themselves, because the applications behind them also serve administrative paths.
    """
    if endpoint in ENDPOINTS:
        return None
    known = ", ".join(sorted(ENDPOINTS))
    return error_reply(
        404, f"there is no endpoint {endpoint[:80]!r}; use one of {known}", "endpoint", "unknown_endpoint"
    )


def encode_body(body: Mapping[str, Any]) -> bytes | EngineReply:
    """Returns the body as JSON text, or a reply with status 400 if it has none."""
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        return error_reply(400, f"cannot be written as JSON: {error}", "body", "invalid_json")


def is_object(body: bytes) -> bool:
    """True if a reply holds a JSON object in UTF-8, without NaN or Infinity, as every OpenAI answer does."""
    try:
        return isinstance(jsontext.parse(body), dict)
    except (ValueError, RecursionError):
        return False


def was_aborted(body: bytes, endpoint: str = "") -> bool:
    """True if the engine dropped the request before its end and answered with the tokens so far.

    vLLM then answers 200 with the finish reason ``abort``, of a message with no reason; that is no success.
    """
    if endpoint == MESSAGES:
        return b'"type":"message"' in body and b'"stop_reason":"' not in body
    if b'"abort"' not in body:  # saves parsing nearly every answer
        return False
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    choices = answer.get("choices") if isinstance(answer, dict) else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
    )


def openai_shaped(reply: EngineReply, endpoint: str) -> EngineReply:
    """Returns an error reply with an OpenAI error object: unchanged if it has one, else one around its text.

    Web frameworks answer in shapes of their own for paths that they do not serve.
    """
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        return reply
    if reply.status in {404, 405}:
        return error_reply(404, f"this model does not serve {endpoint}", "endpoint", "unknown_endpoint")
    said = reply.body[:200].decode("utf-8", "replace")
    return error_reply(reply.status, f"{endpoint} answers {reply.status}: {said}", None, "engine_error")
