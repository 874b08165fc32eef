"""Errors as the OpenAI API shows them: a status, an error object, and whether to try again. Pure.

Errors of the client library, of results, of HTTP and of the gateway itself come in; an `ApiError` comes out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.errors import (
    BrokerOutOfMemory,
    BrokerUnavailable,
    Conflict,
    InvalidRequest,
    LikelyLate,
    NotReplicated,
    QueueFull,
    RequestLost,
    ResultTimeout,
    StreamfleetError,
    UnknownProtocol,
    naming,
)
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result

INVALID, SERVER, LIMITED, REFUSED = "invalid_request_error", "server_error", "rate_limit_error", "permission_error"
NOT_AGAIN: Mapping[str, str] = {"x-should-retry": "false"}
"""OpenAI's SDKs repeat a request after a 409, a 429 or any 5xx, unless this header forbids it."""
FULL_S, AWAY_S, STOPPING_S, NO_WORKER_S = 3, 2, 1, 5
"""Seconds after which to try again: a lane is full, Redis is away, this gateway is stopping, no worker is there."""
_NOTHING_TAKEN = ("the queue takes nothing at the moment; try again", FULL_S)
_UNAVAILABLE: Mapping[type[StreamfleetError], tuple[str, int]] = {
    BrokerOutOfMemory: _NOTHING_TAKEN,
    NotReplicated: _NOTHING_TAKEN,
    BrokerUnavailable: ("the queue cannot be reached; try again", AWAY_S),
    UnknownProtocol: ("this gateway does not know its queue's protocol, and has to be updated", NO_WORKER_S),
}
"""Messages, and seconds after which to try again."""
_TYPE = re.compile(r"[a-z]+(_[a-z]+)*")
CLIENT_LEFT = 499
"""Status in the log for a request whose caller left before the answer; nobody receives it."""


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: HTTP status.
        message: what is wrong and what would be right.
        code: short machine-readable name.
        kind: OpenAI's ``type``.
        param: the wrong field or header.
        headers: added to those that every answer has.
        reason: label for the metrics; empty if the gateway did not refuse the request itself.
    """

    status: int
    message: str
    code: str | None = None
    kind: str = INVALID
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    @property
    def error(self) -> dict[str, Any]:
        """The error object, as clients read it."""
        text = naming(self.message, self.param) if self.status < 500 else self.message
        return {"message": text, "type": self.kind, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        """The whole body of the answer."""
        return json.dumps({"error": self.error}, ensure_ascii=False, separators=(",", ":")).encode(
            errors="backslashreplace"
        )


def retry_after(seconds: float) -> dict[str, str]:
    """Returns the header that says when to try again, in whole seconds, at least one."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def exception_to_api_error(error: StreamfleetError) -> ApiError:
    """Returns the answer for an error of the client library. It shows no addresses and no settings."""
    found = internal_error()
    match error:
        case InvalidRequest():
            status = {"request_too_large": 413, "request_not_found": 404}.get(error.code, 400)
            found = ApiError(status, error.message, error.code, param=error.param)
        case Conflict():
            text = "this Idempotency-Key belongs to a request with another body; use another key, or send the same body"
            found = ApiError(409, text, "idempotency_conflict", param="Idempotency-Key", headers=NOT_AGAIN)
        case QueueFull():
            found = ApiError(429, _full(error), "queue_full", LIMITED, headers=retry_after(FULL_S), reason="queue_full")
        case LikelyLate():
            text = (
                f"service_tier flex: it would wait for {error.wait_s:.0f} s, and end {error.late_s:.0f} s after its "
                "deadline; give it more time, or try again later"
            )
            headers = retry_after(error.late_s) | {"x-streamfleet-expected-ms": str(round(error.wait_s * 1000))}
            found = ApiError(429, text, "resource_unavailable", LIMITED, headers=headers, reason="likely_late")
        case ResultTimeout():
            text = "the request was not answered before its deadline"
            found = ApiError(504, text, "deadline_exceeded", SERVER, headers=NOT_AGAIN)
        case RequestLost():
            text = "the queue lost the request in a failover or restart; send it again"
            found = ApiError(503, text, "request_lost", SERVER, headers=retry_after(FULL_S))
        case BrokerOutOfMemory() | NotReplicated() | BrokerUnavailable() | UnknownProtocol():
            text, again_s = _UNAVAILABLE[type(error)]
            found = ApiError(503, text, "queue_unavailable", SERVER, headers=retry_after(again_s))
        case StreamfleetError(retryable=True):
            text = "this cannot be done at the moment; try again"
            found = ApiError(503, text, "unavailable", SERVER, headers=retry_after(FULL_S))
    return found


def _full(error: QueueFull) -> str:
    if not error.tenant_percent:
        return f"lane {error.lane} is full; try again later"
    return (
        f"this tenant has {error.tenant_percent} % of what lane {error.lane} may hold waiting, the most while other "
        "tenants use it; try again when some of it was taken"
    )


def result_to_api_error(result: Result) -> ApiError:
    """Returns the answer for a request that ended without success, with the request's own status and error.

    Engines have types and codes of their own (vLLM: `BadRequestError` and the status); callers get those of OpenAI.
    """
    error = result.error or {}
    status = result.http_status if 400 <= result.http_status <= 599 else 500
    message, kind, param, code = (error.get(name) for name in ("message", "type", "param", "code"))
    return ApiError(
        status,
        message if isinstance(message, str) else f"the request ended as {result.status}",
        _openai_code(code, status, param) or result.status.value,
        kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else SERVER if status >= 500 else INVALID,
        param if isinstance(param, str) else None,
        # Repeating gives the same: the request is wrong, too late, or was tried often enough.
        {} if result.status is Status.CANCELLED else NOT_AGAIN,
    )


def _openai_code(code: object, status: int, param: object) -> str | None:
    """OpenAI's code for an engine's; None where the engine gave none."""
    if not isinstance(code, str) or not code.isdecimal():
        return code if isinstance(code, str) else None
    if status == 404:
        return "model_not_found" if param == "model" else "not_found"
    return "engine_error" if status >= 500 else "invalid_request"


def http_status_to_api_error(status: int, path: str, method: str) -> ApiError:
    """Returns the answer for an error of the web framework."""
    if status == 404:
        return ApiError(404, f"there is no {path[:200]}; see /openapi.json", "not_found")
    if status == 405:
        return ApiError(405, f"{method} is not what {path[:200]} takes; see /openapi.json", "method_not_allowed")
    return ApiError(status, "the request cannot be answered", "invalid_request")


def request_not_found() -> ApiError:
    """Returns the answer for an id that is not one of the caller's requests, or not of the kind that is asked for."""
    text = (
        "there is no such request, it is not yours, or it ended too long ago: results are kept for a time, "
        "and while they are among the newest of their tenant"
    )
    return ApiError(404, text, "request_not_found", param="request_id")


def internal_error() -> ApiError:
    """Returns the answer for a fault of the gateway itself."""
    return ApiError(500, "the gateway failed on this request; its log says why", "internal_error", SERVER)


def gateway_stopping() -> ApiError:
    """Returns the answer for a caller when this process stops."""
    text = "this gateway is stopping; send it again, with the same Idempotency-Key if it had one"
    return ApiError(503, text, "gateway_stopping", SERVER, headers={**retry_after(STOPPING_S), "connection": "close"})


def access_ended(lane: str = "") -> ApiError:
    """Returns the answer for a caller whose key ends while it waits, or, with a lane, may not use that one any more."""
    if lane:
        text = f"this API key may not use lane {lane} any more"
        return ApiError(403, text, "lane_not_allowed", REFUSED, reason="lane")
    text = "the API key was revoked, or has expired, while this request waited"
    return ApiError(401, text, "invalid_api_key", headers={"www-authenticate": "Bearer"}, reason="key")
