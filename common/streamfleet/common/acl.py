"""What each role may do in Redis, as rules for its ACL. Pure.

A user of a role can do the role's job on the keys of its queue, and nothing else. A script is only a way to send
commands: Redis checks each command inside it against the same rules, so that being allowed to run any script lets
nobody do more.

Needs Redis 7.0 or newer (or Valkey): 6.2 has one set of keys for all commands of a user, so that who may add to a lane
could also read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.gateway_keys import GatewayNames
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES, Lane

ANY_QUEUE = "*"
READ, WRITE, BOTH = "%R~", "%W~", "~"
_GLOB = re.compile(r"([*?\[\]^\\])")
_CLUSTER = ("cluster|slots", "cluster|shards", "cluster|nodes", "readonly")


class Role(StrEnum):
    """Who somebody is to a queue."""

    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    GATEWAY = "gateway"
    AUTOSCALER = "autoscaler"


VERBS: dict[Role, tuple[str, ...]] = {
    Role.PRODUCER: ("enqueue", "ask"),
    Role.WORKER: (
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
        "check_in",
        "check_out",
        "retain",
    ),
    Role.OPERATOR: (
        "audit",
        "cancel",
        "ask",
        "pause",
        "requeue",
        "repair",
        "repair_keys",
        "repair_groups",
        "vanish",
        "balance",
        "pull",
        "check_out",
        "webhook_requeue",
    ),
    Role.GATEWAY: (
        "enqueue",
        "ask",
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
        "webhook_secrets",
    ),
    Role.AUTOSCALER: (),
}
"""The scripts that belong to each role's job."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Commands, each allowed on each of the keys, which are ACL patterns with their kind of access before them."""

    commands: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """The rules, as ACL SETUSER takes them."""
        return [*self.keys, *(f"+{command}" for command in self.commands)]


@dataclass(frozen=True, slots=True)
class Patterns:
    """Key patterns of a queue, or of all queues.

    Args:
        keys: names of the queue's keys; those of any queue when `every` is true.
        every: all queues with the prefix.

    Raises:
        InvalidRequest: the queue's name or the prefix cannot stand in an ACL rule.
    """

    keys: Keys
    every: bool = False

    def __post_init__(self) -> None:
        # Redis splits rules at blanks, takes quotes out of selectors, and writes them back without.
        for name, text in (("queue", self.keys.queue), ("key_prefix", self.keys.prefix)):
            if re.search(r"[\x00-\x20\x7f\"']", text):
                raise InvalidRequest("must not contain blanks or quotes: an ACL rule cannot hold them", name)

    @property
    def whole(self) -> str:
        """Every key of the queue."""
        return f"{self._base}*"

    def beside(self, access: str, *names: str) -> tuple[str, ...]:
        """Patterns for what all gateways share, which is no queue's; a name may end in `*`."""
        base = _escaped(GatewayNames(self.keys.prefix).base)
        return tuple(f"{access}{base}{name}" for name in names)

    @property
    def _base(self) -> str:
        return f"{_escaped(self.keys.prefix)}{{*}}:" if self.every else _escaped(self.keys.base)

    def of(self, access: str, *names: str | Callable[[str], str]) -> tuple[str, ...]:
        """Patterns for keys by their full names; a method of `Keys` stands for all the keys that it can make."""
        return tuple(access + self._pattern(name) for name in names)

    def _pattern(self, name: str | Callable[[str], str]) -> str:
        full, rest = (name, "") if isinstance(name, str) else (name(""), "*")
        return self._base + full.removeprefix(self.keys.base) + rest


def grants(role: Role, patterns: Patterns, lanes: Sequence[Lane] = LANES) -> list[Grant]:
    """What a role may do.

    Args:
        role: which.
        patterns: on which keys.
        lanes: where a producer may put requests.
    """
    if role is Role.PRODUCER:
        return _producer(patterns, lanes)
    others = {Role.WORKER: _worker, Role.OPERATOR: _operator, Role.GATEWAY: _gateway, Role.AUTOSCALER: _autoscaler}
    return others[role](patterns)


def rules(role: Role, patterns: Patterns, lanes: Sequence[Lane] = LANES) -> list[str]:
    """The rules of a role, as ACL SETUSER and users.acl take them; without a password, so that nobody gets in yet."""
    first, *others = grants(role, patterns, lanes)
    selectors = [f"({' '.join(grant.words())})" for grant in others]
    return ["on", "resetpass", "resetkeys", "resetchannels", "-@all", *first.words(), *selectors]


def users_acl_line(user: str, words: Iterable[str]) -> str:
    """A line of the file that Redis's `aclfile` names.

    Raises:
        InvalidRequest: the user's name cannot stand in it.
    """
    return " ".join(["user", check_user(user), *words])


def setuser_command(user: str, words: Iterable[str]) -> str:
    """The same as a command for redis-cli. It starts from nothing: what the user had before, its password too, is gone.

    Raises:
        InvalidRequest: the user's name cannot stand in it.
    """
    return " ".join(["ACL SETUSER", check_user(user), "reset", *words])


def check_user(name: str) -> str:
    """A name for a Redis user.

    Raises:
        InvalidRequest: it cannot be written into a users.acl file.
    """
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,128}", name):
        raise InvalidRequest("must be 1 to 128 letters, digits, '.', '_', '@' or '-'", "user")
    return name


def users_acl(patterns: Patterns) -> str:
    """A whole users.acl file: all roles, and no way in without a name.

    With an `aclfile`, Redis passes over `requirepass`: a file that does not name the user `default` would let
    everybody in as that user, who may do everything.
    """
    lines = [users_acl_line(f"streamfleet-{role}", rules(role, patterns)) for role in Role]
    return "\n".join(["user default off resetpass resetkeys resetchannels -@all", *lines]) + "\n"


def _producer(p: Patterns, lanes: Sequence[Lane]) -> list[Grant]:
    keys = p.keys
    return [
        Grant(("ping", "select", "wait", "client|id", *_CLUSTER)),
        _scripts(p),
        Grant(("xadd",), p.of(WRITE, *map(keys.lane, lanes), keys.cancel_requests)),
        # How long and large a lane is, and where a request of theirs is: these commands show no bodies.
        Grant(("xlen", "xpending", "xinfo|groups", "memory|usage"), p.of(READ, *keys.lanes)),
        Grant(("zscore",), p.of(READ, *map(keys.ready, LANES), keys.delayed)),
        Grant(("hgetall", "hget", "hmget", "hexists", "exists"), p.of(READ, keys.result)),
        Grant(("get", "set"), p.of(BOTH, keys.request)),
        Grant(("xread", "del"), p.of(BOTH, keys.reply)),
        Grant(("xread", "xrevrange"), p.of(READ, keys.tokens)),
    ]


def _worker(p: Patterns) -> list[Grant]:
    return [Grant(("ping", "select", "info", "time", "client|id", "client|unblock", *_CLUSTER)), *_work(p)]


def _work(p: Patterns) -> list[Grant]:
    keys = p.keys
    groups = ("xgroup|create", "xgroup|delconsumer", "xreadgroup", "xpending", "xinfo|consumers")
    entries = ("xclaim", "xrange", "xack", "xdel")
    sorted_sets = (
        "zadd",
        "zcard",
        "zcount",
        "zpopmin",
        "zrange",
        "zrangebyscore",
        "zrem",
        "zremrangebyscore",
        "zscore",
    )
    hashes = ("hget", "hmget", "hgetall", "hlen", "hset", "hdel", "hincrby")
    return [
        _scripts(p),
        Grant((*groups, *entries), p.of(BOTH, *keys.lanes, keys.wake)),
        Grant(sorted_sets, p.of(BOTH, *map(keys.ready, LANES), keys.delayed, keys.watch)),
        Grant(hashes, p.of(BOTH, keys.tries, keys.counts, keys.sched, keys.workers)),
        Grant(("llen", "rpush", "blpop"), p.of(BOTH, keys.bench)),
        Grant(("hsetnx", "hset", "hmget", "hgetall", "hexists", "exists"), p.of(BOTH, keys.result)),
        Grant(("pexpire",), p.of(WRITE, keys.result, keys.request, keys.reply, keys.tokens)),
        Grant(("xadd",), p.of(WRITE, keys.reply, keys.tokens, keys.dead, keys.cancels, keys.wake)),
        Grant(("exists",), p.of(READ, keys.tokens)),
        Grant(("xtrim",), p.of(WRITE, keys.dead)),
        Grant(("xlen",), p.of(READ, keys.dead, keys.wake)),
        Grant(("xread", "xrevrange"), p.of(READ, keys.cancels)),
        Grant(("xrange", "xdel"), p.of(BOTH, keys.cancel_requests)),
        Grant(("get",), p.of(READ, keys.request)),
        Grant(("set",), p.of(WRITE, keys.maintain)),
    ]


def _operator(p: Patterns) -> list[Grant]:
    """Reads more, and may do what a worker does: what is broken is mended by the same means as it is made."""
    keys = p.keys
    streams = ("xlen", "xrange", "xrevrange", "xread", "xinfo|stream", "xinfo|groups")
    others = ("zscan", "hscan", "exists", "type", "pttl", "memory|usage")
    return [
        # SCAN and DBSIZE name no keys, so no rule can keep them to the queue's.
        Grant(("ping", "select", "info", "time", "client|id", "scan", "dbsize", *_CLUSTER)),
        *_work(p),
        Grant((*streams, *others), (READ + p.whole,)),
        # trace: how many run before a request
        Grant(("zrank",), p.of(READ, *map(keys.ready, LANES))),
        # dead requeue, dead purge
        Grant(("xadd",), p.of(WRITE, *keys.lanes)),
        Grant(("xdel",), p.of(WRITE, keys.dead)),
        Grant(("del",), p.of(WRITE, keys.result, keys.reply, keys.tokens)),
        Grant(("set",), p.of(WRITE, keys.request)),
        # audit --repair
        Grant(("xgroup|setid",), p.of(WRITE, *keys.lanes)),
        Grant(("pexpire",), p.of(WRITE, keys.maintain)),
        Grant(("rename",), (BOTH + p.whole,)),
        # gateway keys
        Grant(("hset", "hgetall", "hkeys", "hdel"), p.beside(BOTH, "keys")),
        Grant(("xadd",), p.beside(WRITE, "key_changes")),
        Grant(("del",), p.beside(WRITE, "left:*")),
        # gateway webhooks; not their secrets
        Grant(("eval", "evalsha"), p.beside(BOTH, "webhooks:*")),
        Grant(("xrange", "xrevrange", "xdel"), p.beside(BOTH, "webhooks:dead")),
        Grant(("xadd",), p.beside(WRITE, "webhooks:due")),
        Grant(("hexists", "hset"), p.beside(BOTH, "webhooks:messages")),
        Grant(("zrem",), p.beside(WRITE, "webhooks:ended")),
    ]


def _gateway(p: Patterns) -> list[Grant]:
    """A producer in all lanes, who knows the workers' models, and whose callers have keys and allowances."""
    return [
        *_producer(p, LANES),
        # A reader of streams is woken when it gets one more to read.
        Grant(("time", "client|unblock")),
        Grant(("hgetall",), p.of(READ, p.keys.workers)),
        Grant(("eval", "evalsha"), p.beside(BOTH, "*")),
        Grant(("hget",), p.beside(READ, "keys")),
        Grant(("xread",), p.beside(READ, "key_changes")),
        Grant(("hmget", "hset", "pexpire"), p.beside(BOTH, "left:*")),
        Grant(("hmget", "hset", "hgetall", "hincrby", "pexpire", "del"), p.beside(BOTH, "reserved:*")),
        Grant(("zadd", "zrem", "zrangebyscore"), p.beside(BOTH, "reservations")),
        *_files_and_batches(p),
        *_webhooks(p),
    ]


def _files_and_batches(p: Patterns) -> list[Grant]:
    sorted_sets = ("zadd", "zrem", "zscore", "zrangebyscore", "zrangebylex", "zrevrangebylex")
    by_tenant, all_tenants = ("files:*", "batches:*", "jobs:*"), ("file_ends", "loose", "open_batches")
    return [
        Grant(
            ("hset", "hget", "hmget", "hgetall", "hincrby", "hdel", "exists", "del", "pexpire"),
            p.beside(BOTH, "file:*", "batch:*", "stats:*", "use:*", "named:*"),
        ),
        Grant(("rpush", "lrange", "exists", "del"), p.beside(BOTH, "parts:*")),
        Grant(sorted_sets, p.beside(BOTH, *by_tenant, *all_tenants)),
        Grant(("get", "getbit", "setbit", "del"), p.beside(BOTH, "done:*")),
    ]


def _webhooks(p: Patterns) -> list[Grant]:
    """Deliver them. Whoever signs has to read the secrets: nobody else may."""
    groups = ("xgroup|create", "xgroup|delconsumer", "xinfo|consumers", "xreadgroup", "xpending", "xclaim", "xack")
    return [
        Grant((*groups, "xadd", "xdel", "xread", "xinfo|stream"), p.beside(BOTH, "webhooks:due")),
        Grant(
            ("zadd", "zrem", "zrange", "zrangebyscore", "zremrangebyscore", "zscore"),
            p.beside(BOTH, "webhooks:later", "webhooks:ended"),
        ),
        Grant(
            ("hget", "hgetall", "hset", "hdel", "hexists", "hlen", "hincrby"),
            p.beside(BOTH, "webhooks:messages", "webhooks:tries", "webhooks:secrets"),
        ),
        Grant(("hmget", "hset", "hincrby", "hgetall", "hdel", "hlen"), p.beside(BOTH, "webhooks:use")),
        Grant(("xadd", "xtrim"), p.beside(WRITE, "webhooks:dead")),
    ]


def _autoscaler(p: Patterns) -> list[Grant]:
    return [
        Grant(("ping", "select", *_CLUSTER)),
        Grant(("xlen", "xpending", "xinfo|groups"), p.of(READ, *p.keys.lanes)),
    ]


def _scripts(p: Patterns) -> Grant:
    """Any script that names keys of the queue; what it does there is checked command by command."""
    return Grant(("eval", "evalsha"), (BOTH + p.whole,))


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)
