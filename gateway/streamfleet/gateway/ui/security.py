"""Security headers of the page's answers, and checks of its requests. Pure.

The headers keep other sites out of the page; the checks keep their forms from acting through a visitor's browser.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamfleet.gateway.errors import NOT_AGAIN, REFUSED, SERVER, ApiError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
NO_STORE: Mapping[str, str] = {"cache-control": "no-store"}
"""Headers of answers with data, which no cache may store."""


def check_json(headers: Mapping[str, str]) -> None:
    """Require JSON for requests that change something: a form on another site cannot send that type.

    Raises:
        ApiError: the body is not declared as JSON.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "send the body as JSON, with 'Content-Type: application/json'"
        raise ApiError(415, text, "json_required", param="Content-Type", headers=NOT_AGAIN)


def operator_required() -> ApiError:
    """Returns the refusal of a key that is no operator's."""
    text = "this is no operator's API key; make one with `streamfleet gateway keys create NAME --operator`"
    return ApiError(403, text, "operator_key_required", REFUSED, headers=NOT_AGAIN, reason="key")


def not_permitted() -> ApiError:
    """Returns the error for a Redis user that lacks an operator's rights."""
    text = (
        "the Redis user of this gateway may not do this: set STREAMFLEET_GATEWAY_UI_REDIS_URL to the same Redis "
        "with a user of the role operator (`streamfleet acl --role operator` has its rules)"
    )
    return ApiError(503, text, "ui_not_permitted", SERVER, headers=NOT_AGAIN)
