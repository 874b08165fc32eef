"""Shows a result on a terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from streamfleet.operator.commands.common import fail, out, out_record, say

if TYPE_CHECKING:
    from streamfleet.common.results import Result


def show_result(result: Result, as_json: bool = False) -> None:
    """Print a result: its text, or all of it as JSON. Exits with status 1 if it did not succeed."""
    if as_json:
        out(json.dumps(result_json(result), ensure_ascii=False, indent=2))
    elif result.ok:
        out(result.text) if result.text else out_record(result.response)
    if not as_json:
        show_warnings(result)
    if not result.ok:
        message = (result.error or {}).get("message", "no message")
        param = (result.error or {}).get("param")
        fail(f"request {result.id} {result.status}: {f'{param}: ' if param else ''}{message}")


def show_warnings(result: Result) -> None:
    """Print to stderr what the request's entry has wrong that did not keep it from running."""
    for warning in result.warnings:
        say(f"warning: {warning}")


def result_json(result: Result) -> dict[str, Any]:
    """All of a result as JSON values."""
    timings = result.timings
    return {
        "id": result.id,
        "status": result.status.value,
        "http_status": result.http_status,
        "response": result.response,
        "error": result.error,
        "warnings": list(result.warnings),
        "finish_reason": result.finish_reason,
        "usage": result.usage,
        "worker": result.worker,
        "attempt": result.attempt,
        "queued_ms": timings.queued_ms,
        "waited_ms": timings.waited_ms,
        "first_token_ms": timings.first_token_ms,
        "total_ms": timings.total_ms,
        **{
            name: result.fields[name]
            for name in ("lane", "entry", "tenant", "session", "meta")
            if name in result.fields
        },
    }
