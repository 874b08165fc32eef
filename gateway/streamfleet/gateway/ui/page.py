"""The page's static files, the headers of all its answers, and the checks of its requests. Pure, but for reading files.

A file name goes in, its bytes and version come out. The files hold nothing secret, so no key is needed for them. The
headers keep other sites out of the page; the checks keep their forms from acting through a visitor's browser.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from streamfleet.gateway.errors import NOT_AGAIN, REFUSED, SERVER, ApiError

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
INDEX = "index.html"
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
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, its media type, and its version for ``ETag``."""

    content: bytes
    media_type: str
    etag: str


def page_file(name: str) -> PageFile | None:
    """Returns a file by its name; None if no such file is served."""
    suffix = "." + name.rpartition(".")[2]
    return _read(name, TYPES[suffix]) if _NAME.fullmatch(name) and suffix in TYPES else None


def is_known(etag: str, asked: str | None) -> bool:
    """True if ``If-None-Match`` names this version."""
    return asked is not None and etag in [part.strip().removeprefix("W/") for part in asked.split(",")]


@lru_cache(maxsize=64)
def _read(name: str, media_type: str) -> PageFile | None:
    try:
        content = resources.files(__package__).joinpath("static", name).read_bytes()
    except OSError:
        return None
    return PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


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
