"""What keeps the page to itself: headers of all its answers, and which requests come from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

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
_OWN = frozenset({"same-origin", "none"})


def check_own_site(headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site sends: where keys are off, a browser is all that it would need.

    Raises:
        ApiError: a browser says that another site asks.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site.lower() not in _OWN:
        raise _cross_site("Sec-Fetch-Site")
    origin = headers.get("origin")
    if origin is not None and not _is_host(origin, headers.get("host", "")):
        raise _cross_site("Origin")


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


def _is_host(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(host) and parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _cross_site(header: str) -> ApiError:
    text = "this comes from a page of another site, which may neither read nor act here"
    return ApiError(403, text, "cross_site", REFUSED, param=header, headers=NOT_AGAIN, reason="key")
