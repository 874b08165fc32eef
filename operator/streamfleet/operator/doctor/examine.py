"""Runs all checks of `streamfleet doctor` in order; a check that fails to run does not stop the others.

The check of access builds each command of each grant for ACL DRYRUN, which shows the roles that the user can take.
DRYRUN checks arguments before rules, so every command needs valid arguments.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from streamfleet.common.clock import Clock
from streamfleet.common.errors import BrokerUnavailable, InvalidRequest, NotPermitted, UnknownProtocol
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES
from streamfleet.common.server_checks import read_info
from streamfleet.operator.access_rules import Patterns, Role, grants
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.doctor import queue
from streamfleet.operator.doctor.check import Check, fail, ok, unknown, warn
from streamfleet.operator.doctor.server import WITH_SELECTORS, clock_check, int_or, ping_check, server_checks
from streamfleet.operator.snapshot import take_snapshot

PINGS = 21
QUESTIONS = 5
"""Number of times that the clock is read; the fastest answer counts."""
KEY = "<key>"
NAMED = "doctor"
"""Sample name of a request or client."""
MOST_NAMED = 3
ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("ping", "info", "time", "client|id", "dbsize", "readonly"), ""),
    **dict.fromkeys(("cluster|slots", "cluster|shards", "cluster|nodes"), ""),
    **dict.fromkeys(("xlen", "zcard", "zpopmin", "hgetall", "hkeys", "hlen", "llen", "lpop"), KEY),
    **dict.fromkeys(("get", "getex", "mget", "del", "unlink", "exists", "type", "pttl"), KEY),
    **dict.fromkeys(("memory|usage", "xinfo|groups", "xinfo|stream"), KEY),
    **dict.fromkeys(("zscore", "zmscore", "zrank", "zrem", "hget", "hmget", "hexists", "hdel"), f"{KEY} f"),
    **dict.fromkeys(("hset", "hsetnx"), f"{KEY} f v"),
    **dict.fromkeys(("zcount", "zrange", "zrangebyscore", "zremrangebyscore", "zremrangebyrank"), f"{KEY} 0 1"),
    **dict.fromkeys(("zscan", "hscan"), f"{KEY} 0"),
    **dict.fromkeys(("xack", "xgroup|delconsumer"), f"{KEY} workers 1-0"),
    **dict.fromkeys(("xgroup|create", "xgroup|setid"), f"{KEY} workers 0"),
    **dict.fromkeys(("xpending", "xinfo|consumers"), f"{KEY} workers"),
    **dict.fromkeys(("zrangebylex", "zrevrangebylex"), f"{KEY} - +"),
    "lrange": f"{KEY} 0 1",
    "lindex": f"{KEY} 0",
    "getbit": f"{KEY} 0",
    "setbit": f"{KEY} 0 1",
    "select": "0",
    "scan": "0",
    "wait": "0 0",
    "client|unblock": "1",
    "eval": f"x 1 {KEY}",
    "evalsha": f"x 1 {KEY}",
    "set": f"{KEY} v",
    "rename": f"{KEY} {KEY}",
    "pexpire": f"{KEY} 1",
    "rpush": f"{KEY} v",
    "lrem": f"{KEY} 1 v",
    "blpop": f"{KEY} 1",
    "hincrby": f"{KEY} f 1",
    "zrandmember": f"{KEY} 1",
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


async def examine(
    broker: OperatorBroker, clock: Clock, *, password_given: bool, environment: Mapping[str, str] | None = None
) -> list[Check]:
    """Run all checks, in the order of their dependencies.

    Args:
        broker: the queue.
        clock: this machine's clock.
        password_given: True if REDIS_URL has a password, or a provider gives one.
        environment: values of the queue's configuration that this machine's environment names.

    Returns:
        The findings. If Redis does not answer, or the queue has a protocol that this version does not know, that is
        the only one, or the last.
    """
    found: list[Check] = []
    try:
        await broker.connection.ping()
        with contextlib.suppress(NotPermitted):  # `configuration` says so
            await broker.refresh_configuration()
        info = await _info(broker, found)
        found.append(await _access(broker, info, password_given=password_given))
        found.append(await _clock(broker, clock))
        found.append(ping_check([await _ping_ms(broker, clock) for _ in range(PINGS)]))
        await _look_at_queue(broker, found, environment or {})
    except BrokerUnavailable as error:
        found.append(fail("connection", str(error), "REDIS_URL, or Redis itself"))
    except UnknownProtocol as error:
        found.append(fail("protocol", str(error), "the version of streamfleet here, or --queue"))
    return found


async def _info(broker: OperatorBroker, found: list[Check]) -> Mapping[str, str]:
    try:
        info = read_info(await broker.connection.command("INFO"))
    except NotPermitted as error:
        found.append(queue.not_looked_at("server", str(error)))
        return {}
    found += server_checks(info, broker.limits.enqueue_replicas)
    return info


async def _access(broker: OperatorBroker, info: Mapping[str, str], *, password_given: bool) -> Check:
    release = tuple(int_or(part, 0) for part in info.get("redis_version", "0.0").split(".")[:2])
    if release < WITH_SELECTORS:
        return _cannot_tell("this server has no ACL DRYRUN" if info else "its release is not known")
    try:
        wanted = {role: attempts(role, broker.keys, clustered=info.get("cluster_enabled", "0") == "1") for role in Role}
    except InvalidRequest as error:
        return _cannot_tell(str(error))
    answer = await broker.permitted([words for commands in wanted.values() for words in commands])
    if answer is None:
        return _cannot_tell("this user may not ask for it")
    user, each = answer[0], iter(answer[1])
    refused = {role: [words for words in commands if not next(each)] for role, commands in wanted.items()}
    return access_check(user, refused, open_door=not password_given)


async def _clock(broker: OperatorBroker, clock: Clock) -> Check:
    questions = [await _offset(broker, clock) for _ in range(QUESTIONS)]
    took_s, offset_s = min(questions)
    return clock_check(offset_s, took_s)


async def _offset(broker: OperatorBroker, clock: Clock) -> tuple[float, float]:
    """Duration of reading Redis's clock, and its offset in the middle of that time; seconds."""
    asked_ms, started = clock.now_ms(), clock.monotonic()
    theirs_ms = await broker.now_ms()
    took_s = clock.monotonic() - started
    return took_s, (theirs_ms - asked_ms) / 1000 - took_s / 2


async def _ping_ms(broker: OperatorBroker, clock: Clock) -> float:
    started = clock.monotonic()
    await broker.connection.ping()
    return (clock.monotonic() - started) * 1000


async def _look_at_queue(broker: OperatorBroker, found: list[Check], environment: Mapping[str, str]) -> None:
    async def snapshot_checks() -> list[Check]:
        snapshot = await take_snapshot(broker)
        try:
            fields = await broker.configuration()
            configuration = queue.configuration_check(fields, broker.limits, snapshot, environment)
        except NotPermitted as error:
            configuration = queue.not_looked_at("configuration", str(error))
        served = any([await broker.has_group(lane) for lane in LANES])
        return [queue.workers_check(snapshot, served=served), configuration, queue.lateness_check(snapshot)]

    async def alone(look: Callable[[OperatorBroker], Awaitable[Check]]) -> list[Check]:
        return [await look(broker)]

    looks: dict[str, Callable[[], Awaitable[list[Check]]]] = {
        "keys": lambda: alone(queue.shared_keys_check),
        "groups": lambda: alone(queue.groups_check),
        "expiry": lambda: queue.sampled_keys_checks(broker),
        "mistyped": lambda: alone(queue.mistyped_check),
        "workers": snapshot_checks,
    }
    for name, look in looks.items():
        if any(check.name == "keys" and check.level == "fail" for check in found):
            return  # a key of a wrong type would fail all later checks
        try:
            found += await look()
        except NotPermitted as error:
            found.append(queue.not_looked_at(name, str(error)))


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
        return warn("access", seen, "the user's rules: `streamfleet acl` prints those of each role")
    seen = f"user {user} can do the job of {', '.join(able)}" + (f"; {'; '.join(lacking)}" if lacking else "")
    if open_door and not lacking:
        return warn("access", f"{seen}: whoever reaches Redis may", "requirepass, or users by `streamfleet acl`")
    return ok("access", seen)


def _cannot_tell(why: str) -> Check:
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
