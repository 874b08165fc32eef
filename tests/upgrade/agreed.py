"""Agreements between releases beside Redis, as one of them has it: `python -m tests.upgrade.agreed`.

An id that was enqueued by one release and is enqueued again by another (a batch that goes on after the upgrade, a
caller that tries again) has to be the same request. Rules for Redis's users are given once, and have to do for both.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from streamfleet.common.keys import Keys
from streamfleet.producer.ask import Ask, prepare

BODIES: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8},
    {"max_tokens": 8, "messages": [{"content": "Say hi", "role": "user"}]},
    {"prompt": 'Grüße, 世界, \U0001f600, \u2028, \x7f, \x00, "quoted", \\ and /', "temperature": 0.1},
    {"prompt": ["a", "b"], "temperature": 1.0, "top_p": 1e-7, "seed": 12345678901234567890, "n": 1},
    {"prompt": "", "logit_bias": {"10": -100, "2": 1.5e300}, "stop": None, "echo": True, "suffix": False},
    {"input": [[1, 2, 3], []], "encoding_format": "float", "ключ": {"b": [], "a": {}}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "é"}], "name": "x"}, {"role": "tool"}]},
    {"messages": [], "tools": [{"function": {"parameters": {"z": 1, "a": [1.0, -0.0, 10**20]}}}]},
)
ACL = ("streamfleet.common.acl", "streamfleet.operator.access_rules")
"""Module of the rules; the first name is that of earlier releases."""


def digests() -> list[str]:
    """Of each body, and of the first with another endpoint."""
    asks = [Ask(body=body) for body in BODIES]
    return [prepare(ask, "r", None).digest for ask in (*asks, Ask(body=BODIES[0], endpoint="/v1/completions"))]


def rights() -> list[list[str]]:
    """(role, command, key) of all that the printed rules allow; nothing of a release that prints none."""
    acl = _rules()
    if acl is None:
        return []
    return [
        [str(role), command, key]
        for role in acl.Role
        for grant in acl.grants(role, acl.Patterns(Keys("q")))
        for command in grant.commands
        for key in grant.keys or ("",)
    ]


def _rules() -> Any:
    for name in ACL:
        try:
            return importlib.import_module(name)
        except ImportError:  # also today's, which is found beside a release without rules
            continue
    return None


if __name__ == "__main__":
    print(json.dumps({"digests": digests(), "rights": rights()}))
