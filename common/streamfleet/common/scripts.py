"""The Lua scripts: one file per verb; `-- @include` lines insert shared parts from lua/lib beside it.

The queue's scripts are in this package. Another package with scripts adds their verbs before it calls them.
`-- @guard` lines mark a guard for the tests (CONTRIBUTING.md). Redis never gets them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

PACKAGE = "streamfleet.common"
VERBS = (
    "enqueue",
    "pull",
    "complete",
    "renew",
    "release",
    "retry_later",
    "promote",
    "expire",
    "reclaim",
    "acquire_housekeeping_lock",
    "cancel",
    "ask",
    "pause",
    "audit",
    "requeue",
    "heartbeat",
    "deregister",
    "configure",
    "retain",
    "repair",
    "repair_keys",
    "repair_groups",
    "vanish",
    "balance",
)
_PACKAGES = dict.fromkeys(VERBS, PACKAGE)
_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
_MARK = re.compile(r"^ *-- @guard .+\n", re.MULTILINE)


def add(package: str, verbs: Sequence[str]) -> None:
    """Make the scripts in another package's folder lua/ known by their verbs."""
    _PACKAGES.update(dict.fromkeys(verbs, package))


@cache
def source(verb: str) -> str:
    """Full Lua text of a verb, as Redis gets it. Raises KeyError: there is no such verb."""
    return without_marks(marked(verb))


def without_marks(text: str) -> str:
    """A script's text without the marks of its guards."""
    return _MARK.sub("", text)


@cache
def marked(verb: str) -> str:
    """Full Lua text of a verb with its marks: its includes, each once and in order, then its own lines.

    Raises:
        KeyError: there is no such verb.
    """
    if verb not in _PACKAGES:
        raise KeyError(f"no script is called {verb!r}")
    seen: list[str] = []
    parts: list[str] = []
    _collect(_PACKAGES[verb], f"{verb}.lua", seen, parts)
    return "\n".join(parts)


def sha(verb: str) -> str:
    """SHA-1 of a verb's text, as EVALSHA wants it."""
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


def _collect(package: str, name: str, seen: list[str], parts: list[str]) -> None:
    text = resources.files(package).joinpath("lua", *name.split("/")).read_text("utf-8")
    for include in _INCLUDE.findall(text):
        path = f"lib/{include}.lua"
        if path not in seen:
            seen.append(path)
            _collect(package, path, seen, parts)
    parts.append(text)
