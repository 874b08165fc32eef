"""The page's static files, from the package.

A file name goes in, its bytes and headers come out. The files hold nothing secret, so no key is needed for them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

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
