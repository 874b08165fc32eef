"""The Lua scripts: one file per verb; `-- @include` lines insert shared parts from lua/lib beside it.

The queue's scripts are in this package. Another package with scripts adds their verbs before it calls them.
`-- @guard` lines mark a guard for the tests (CONTRIBUTING.md). Redis never gets them.

Redis 7.0 and later get the scripts that run for each request as functions too: they are compiled once, and what they
decoded of the queue's configuration stays between calls. EVALSHA makes everything in a script anew at each call, which
takes longer than most of the Redis commands in it. Older servers, and users who may not call functions, use EVALSHA.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    "expected",
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
    "set_tenant",
)
FUNCTIONS = ("enqueue", "pull", "complete", "renew", "release", "retry_later", "heartbeat")
"""Verbs that are called for each request, or all the time."""
LIBRARY_PREFIX = "streamfleet_"
_PACKAGES = dict.fromkeys(VERBS, PACKAGE)
_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
_EACH_CALL = re.compile(r"^-- @begin\n(.*?)^-- @end\n", re.MULTILINE | re.DOTALL)
_VERB = "-- @verb\n"
"""Stands between a script's shared parts and its own lines."""
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
    return "\n".join([*parts[:-1], _VERB + parts[-1]])


@dataclass(frozen=True, slots=True)
class Library:
    """The scripts of `FUNCTIONS` as a library of Redis functions.

    Its name has a hash of its text, and so have the names of its functions: releases stand beside each other.

    Attributes:
        name: name of the library.
        text: its source, as FUNCTION LOAD takes it.
        functions: name of the function of each verb.
    """

    name: str
    text: str
    functions: Mapping[str, str]


def library(text_of: Callable[[str], str] | None = None) -> Library:
    """The library of this release. Each function has its own copy of the shared parts, as its script has.

    Args:
        text_of: returns a verb's text; tests change it.
    """
    return _library_of(tuple(map(text_of or source, FUNCTIONS)))


@cache
def _library_of(texts: Sequence[str]) -> Library:
    digest = hashlib.sha1("".join(texts).encode(), usedforsecurity=False).hexdigest()[:16]
    name = f"{LIBRARY_PREFIX}{digest}"
    functions = {verb: f"{name}_{verb}" for verb in FUNCTIONS}
    parts = map(_as_function, functions.values(), texts)
    return Library(name, "\n".join([f"#!lua name={name}", *parts]), functions)


def _as_function(name: str, text: str) -> str:
    shared, own = text.split(_VERB)
    each_call = "".join(_EACH_CALL.findall(shared))
    return (
        f"do\nlocal KEYS, ARGV\n{_EACH_CALL.sub('', shared)}\n"
        f"redis.register_function('{name}', function(keys, args)\nKEYS, ARGV = keys, args\n{each_call}{own}\nend)\nend"
    )


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
