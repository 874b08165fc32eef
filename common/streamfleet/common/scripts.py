"""The Lua scripts: one file per verb; `-- @include` lines insert shared parts from lua/lib."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

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
    "take_turn",
    "cancel",
    "ask",
    "pause",
    "audit",
    "requeue",
    "check_in",
    "check_out",
    "retain",
    "repair",
    "repair_keys",
    "repair_groups",
    "vanish",
    "balance",
    "gateway_admit",
    "gateway_reserve",
    "gateway_settle",
    "gateway_due",
    "gateway_file_add",
    "gateway_file_delete",
    "gateway_batch_add",
    "gateway_batch_take",
    "gateway_batch_lease",
    "gateway_batch_save",
    "gateway_batch_cancel",
    "gateway_batch_finish",
    "webhook_announce",
    "webhook_take",
    "webhook_settle",
    "webhook_requeue",
    "webhook_secrets",
)
_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


@cache
def source(verb: str) -> str:
    """Full Lua text of a verb: its includes, each once and in order, then its own lines.

    Raises:
        KeyError: there is no such verb.
    """
    if verb not in VERBS:
        raise KeyError(f"no script is called {verb!r}")
    seen: list[str] = []
    parts: list[str] = []
    _collect(f"{verb}.lua", seen, parts)
    return "\n".join(parts)


def sha(verb: str) -> str:
    """SHA-1 of a verb's text, as EVALSHA wants it."""
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


def _collect(name: str, seen: list[str], parts: list[str]) -> None:
    text = resources.files("streamfleet.common").joinpath("lua", *name.split("/")).read_text("utf-8")
    for include in _INCLUDE.findall(text):
        path = f"lib/{include}.lua"
        if path not in seen:
            seen.append(path)
            _collect(path, seen, parts)
    parts.append(text)
