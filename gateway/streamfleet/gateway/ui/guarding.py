"""Headers of all answers of the page, which keep other sites out, and what its requests have to look like. Pure."""

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
FRESH: Mapping[str, str] = {"cache-control": "no-store"}
"""Of answers with data in them: nothing of it is to stay in a cache."""


def check_json(headers: Mapping[str, str]) -> None:
    """What acts has to say that it is JSON: no form of another site can.

    Raises:
        ApiError: it does not.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "send the body as JSON, with 'Content-Type: application/json'"
        raise ApiError(415, text, "json_required", param="Content-Type", headers=NOT_AGAIN)


def operator_required() -> ApiError:
    """This key may send requests, and no more."""
    text = "this is no operator's API key; make one with `streamfleet gateway keys create NAME --operator`"
    return ApiError(403, text, "operator_key_required", REFUSED, headers=NOT_AGAIN, reason="key")


def not_permitted() -> ApiError:
    """The page's user in Redis may not do what an operator does."""
    text = (
        "the Redis user of this gateway may not do this: set STREAMFLEET_GATEWAY_UI_REDIS_URL to the same Redis "
        "with a user of the role operator (`streamfleet acl --role operator` has its rules)"
    )
    return ApiError(503, text, "ui_not_permitted", SERVER, headers=NOT_AGAIN)
