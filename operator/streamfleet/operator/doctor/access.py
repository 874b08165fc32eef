"""Checks which roles the Redis user can take: builds each command of each grant for ACL DRYRUN. Pure.

DRYRUN checks arguments before rules, so every command needs valid arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamfleet.common.keys import Keys
from streamfleet.operator.access_rules import Patterns, Role, grants
from streamfleet.operator.doctor.check import Check, ok, unknown, warn

KEY = "<key>"
NAMED = "doctor"
"""Sample name of a request or client."""
MOST_NAMED = 3
ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("ping", "info", "time", "client|id", "dbsize", "readonly"), ""),
    **dict.fromkeys(("cluster|slots", "cluster|shards", "cluster|nodes"), ""),
    **dict.fromkeys(("xlen", "zcard", "zpopmin", "hgetall", "hkeys", "hlen", "llen", "lpop"), KEY),
    **dict.fromkeys(
        ("get", "mget", "del", "exists", "type", "pttl", "memory|usage", "xinfo|groups", "xinfo|stream"), KEY
    ),
    **dict.fromkeys(("zscore", "zmscore", "zrank", "zrem", "hget", "hmget", "hexists", "hdel"), f"{KEY} f"),
    **dict.fromkeys(("hset", "hsetnx"), f"{KEY} f v"),
    **dict.fromkeys(("zcount", "zrange", "zrangebyscore", "zremrangebyscore", "zremrangebyrank"), f"{KEY} 0 1"),
    **dict.fromkeys(("zscan", "hscan"), f"{KEY} 0"),
    **dict.fromkeys(("xack", "xgroup|delconsumer"), f"{KEY} workers 1-0"),
    **dict.fromkeys(("xgroup|create", "xgroup|setid"), f"{KEY} workers 0"),
    **dict.fromkeys(("xpending", "xinfo|consumers"), f"{KEY} workers"),
    **dict.fromkeys(("zrangebylex", "zrevrangebylex", "zlexcount", "zremrangebylex"), f"{KEY} - +"),
    "lrange": f"{KEY} 0 1",
    "lindex": f"{KEY} 0",
    "getbit": f"{KEY} 0",
    "setbit": f"{KEY} 0 1",
    "select": "0",
    "scan": "0",
    "function|list": "",
    "wait": "0 0",
    "client|unblock": "1",
    "eval": f"x 1 {KEY}",
    "evalsha": f"x 1 {KEY}",
    "fcall": f"x 1 {KEY}",
    "set": f"{KEY} v",
    "rename": f"{KEY} {KEY}",
    "pexpire": f"{KEY} 1",
    "rpush": f"{KEY} v",
    "lrem": f"{KEY} 1 v",
    "blpop": f"{KEY} 1",
    "hincrby": f"{KEY} f 1",
    "hrandfield": f"{KEY} 1",
    "zadd": f"{KEY} 1 m",
    "xadd": f"{KEY} * body v",
    "xdel": f"{KEY} 1-0",
    "xclaim": f"{KEY} workers w 0 1-0",
    "xrange": f"{KEY} - +",
    "xrevrange": f"{KEY} + -",
    "xtrim": f"{KEY} MAXLEN 0",
    "xread": f"STREAMS {KEY} 0",
    "xreadgroup": f"GROUP workers w STREAMS {KEY} >",
}
"""Sample arguments of each command that any role may send."""
CLUSTERED = frozenset({"cluster|slots", "cluster|shards", "cluster|nodes", "readonly"})


def attempts(role: Role, keys: Keys, *, clustered: bool) -> list[tuple[str, ...]]:
    """Commands that a role must be able to send, each on each kind of key.

    Args:
        role: the role.
        keys: keys of the queue.
        clustered: True if the server is a cluster node; otherwise commands about clusters are left out.

    Raises:
        InvalidRequest: the queue's name or the prefix cannot stand in an ACL rule.
    """
    found = []
    for grant in grants(role, Patterns(keys)):
        for command in grant.commands:
            if clustered or command not in CLUSTERED:
                found += [_words(command, _sample(pattern)) for pattern in grant.keys or ("",)]
    return found


def access_check(user: str, refused: Mapping[Role, Sequence[Sequence[str]]], *, open_door: bool) -> Check:
    """Finding about a user's permissions.

    Args:
        user: the user's name.
        refused: commands that Redis refuses to the user, by role.
        open_door: the user logged in without a password.
    """
    able = [role for role, commands in refused.items() if not commands]
    lacking = [f"{role} lacks {_named(commands)}" for role, commands in refused.items() if commands]
    if not able:
        seen = f"user {user} can do no role's whole job: {'; '.join(lacking)}"
        return warn("access", seen, "the user's rules: `streamfleet acl --role ROLE` prints them")
    seen = f"user {user} can do the job of {', '.join(able)}" + (f"; {'; '.join(lacking)}" if lacking else "")
    if open_door and not lacking:
        return warn("access", f"{seen}: whoever reaches Redis may", "requirepass, or users by `streamfleet acl`")
    return ok("access", seen)


def cannot_tell(why: str) -> Check:
    """Finding for a server without ACL DRYRUN, or a user who may not call it."""
    change = "to be told, run it as a user with +acl|whoami +acl|dryrun, on Redis 7.0 or newer"
    return unknown("access", f"whether the user may do what each role has to is unknown: {why}", change)


def _named(commands: Sequence[Sequence[str]]) -> str:
    shown = ", ".join(" ".join(words[:3]) for words in commands[:MOST_NAMED])
    return shown + (f" and {len(commands) - MOST_NAMED} more" if len(commands) > MOST_NAMED else "")


def _words(command: str, key: str) -> tuple[str, ...]:
    rest = (key if word == KEY else word for word in ARGUMENTS[command].split())
    return (*command.split("|"), *rest)


def _sample(pattern: str) -> str:
    """A sample key that a pattern matches; empty for no pattern."""
    key = re.sub(r"^%?[RW]*~", "", pattern)
    named = key[:-1] + NAMED if key.endswith("*") and not key.endswith("\\*") else key
    return re.sub(r"\\(.)", r"\1", named)
