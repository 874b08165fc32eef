"""Differences between Anthropic's API and this gateway's own: fields, kinds of errors, limits, models. Pure.

Fields of a message that are in no table reach the engine unchanged; docs/gateway.md lists them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import MESSAGES
from streamfleet.gateway.call import Call
from streamfleet.gateway.errors import ApiError

KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Types of errors by status; of any other it is that of 400, or `api_error` from 500 on."""
STATUSES: Mapping[str, int] = {"queue_full": 529, "batch_ended": 400}
"""Statuses that differ, by the error's code."""
USUAL_TIERS = ("auto", "standard_only")
"""Values of `service_tier` that name no lane."""


def speaks_anthropic(path: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """True if a caller is to be answered in Anthropic's form."""
    if path.startswith("/v1/models"):
        return any(name == b"anthropic-version" for name, _ in headers)
    return path.startswith(MESSAGES)


def to_engine(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns a message's body as an engine takes it, and the names of tools that were left out.

    Raises:
        InvalidRequest: there is no other tool, or `tool_choice` forces one of them.
    """
    passed, metadata, left_out = dict(body), body.get("metadata"), list[str]()
    if body.get("service_tier") in USUAL_TIERS:
        del passed["service_tier"]
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if isinstance(user, str):
        passed = {"user": user, **passed}
    tools = body.get("tools")
    if isinstance(tools, list) and (own := [tool for tool in tools if _is_anthropics(tool)]):
        names = list(dict.fromkeys(str(tool.get("name") or tool["type"]) for tool in own))
        why = f"has a form that only Anthropic knows; workers take tools with an input_schema: {', '.join(names)}"
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and choice.get("name") in names:  # a list, as it may be of any type
            raise InvalidRequest(why, "tool_choice", "unsupported_parameter")
        passed["tools"] = [tool for tool in tools if not _is_anthropics(tool)]
        if not passed["tools"]:
            raise InvalidRequest(why, "tools", "unsupported_parameter")
        left_out = [f"tools.{name}" for name in names]
    return passed, left_out


def _is_anthropics(tool: object) -> bool:
    """True for a tool that Anthropic runs, or whose schema it knows: it has a type in place of a schema."""
    return isinstance(tool, dict) and tool.get("type") not in (None, "custom") and "input_schema" not in tool


def error_object(error: ApiError) -> dict[str, Any]:
    """Returns an error as Anthropic's clients read it."""
    status = STATUSES.get(error.code or "", error.status)
    kind = KINDS.get(status, "api_error" if status >= 500 else KINDS[400])
    return {"type": "error", "error": {"type": kind, "message": error.error["message"]}}


def answer_of(error: ApiError, call: Call) -> tuple[int, bytes]:
    """Returns status and body of an error, in the form that its caller reads."""
    if not call.anthropic:
        return error.status, error.body()
    text = json.dumps({**error_object(error), "request_id": call.id}, ensure_ascii=False, separators=(",", ":"))
    return STATUSES.get(error.code or "", error.status), text.encode(errors="backslashreplace")


def limit_headers(name: str, limit: int, left: int, full_at_ms: float) -> dict[str, str]:
    """Returns a remaining limit as Anthropic's rate limit headers.

    Args:
        name: requests or tokens.
        limit, left: the limit, and what is left of it.
        full_at_ms: when all of it is left again, epoch ms.
    """
    reset = datetime.fromtimestamp(full_at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = f"anthropic-ratelimit-{name}"
    return {f"{head}-limit": str(limit), f"{head}-remaining": str(left), f"{head}-reset": reset}


def model_object(name: str, longest: int | None) -> dict[str, Any]:
    """Returns a model as Anthropic's clients read it."""
    # The time of creation is unknown; clients only need a time.
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": longest,
        "max_tokens": longest,
    }


def page(items: list[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """Returns a page of a list as Anthropic's clients read it."""
    ids = [item["id"] for item in items] or [None]
    return {"data": items, "has_more": has_more, "first_id": ids[0], "last_id": ids[-1]}
