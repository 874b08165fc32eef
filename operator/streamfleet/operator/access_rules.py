"""Permissions of each role in Redis, as rules for its ACL. Pure.

A user of a role can do the role's job on the keys of its queue, and nothing else. Redis checks each
command inside a script against the same rules, so the permission to run any script grants nothing more.

Needs Redis 7.0 or newer (or Valkey): 6.2 has one set of keys for all commands of a user, so a user with the right to
add to a lane could also read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import Keys, gateway_base
from streamfleet.common.protocol import LANES, Lane

READ, WRITE, BOTH = "%R~", "%W~", "~"
_GLOB = re.compile(r"([*?\[\]^\\])")
_CLUSTER = ("cluster|slots", "cluster|shards", "cluster|nodes", "readonly")


class Role(StrEnum):
    """Roles that a Redis user can have towards a queue."""

    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    GATEWAY = "gateway"
    AUTOSCALER = "autoscaler"


VERBS: dict[Role, tuple[str, ...]] = {
    Role.PRODUCER: ("enqueue", "ask", "expected"),
    Role.WORKER: (
        "pull",
        "complete",
        "renew",
        "release",
        "retry_later",
        "return_delayed",
        "tend_waiting",
        "lose_homes",
        "compare",
        "reconcile",
        "expire",
        "tidy_tenants",
        "reclaim",
        "acquire_housekeeping_lock",
        "cancel",
        "heartbeat",
        "deregister",
        "configure",
        "retain",
    ),
    Role.OPERATOR: (
        "audit",
        "expected",
        "cancel",
        "ask",
        "pause",
        "requeue",
        "compare",
        "reconcile",
        "vanish",
        "set_aside",
        "pull",
        "deregister",
        "configure",
        "webhook_requeue",
        "set_tenant",
        "gateway_change",
        "gateway_response_delete",
    ),
    Role.GATEWAY: (
        "enqueue",
        "ask",
        "expected",
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
        "gateway_response_add",
        "gateway_response_finish",
        "gateway_response_delete",
        "gateway_response_chain",
        "webhook_announce",
        "webhook_take",
        "webhook_settle",
        "gateway_change",
        "set_tenant",
    ),
    Role.AUTOSCALER: (),
}
"""The scripts that belong to each role's job."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Commands and keys: each command is allowed on each key. A key is an ACL pattern that begins with its access."""

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
        # Redis splits rules at blanks, removes quotes from selectors, and saves the rules without them.
        for name, text in (("queue", self.keys.queue), ("key_prefix", self.keys.prefix)):
            if re.search(r"[\x00-\x20\x7f\"']", text):
                raise InvalidRequest("must not contain blanks or quotes: an ACL rule cannot hold them", name)

    @property
    def whole(self) -> str:
        """Every key of the queue."""
        return f"{self._base}*"

    def beside(self, access: str, *names: str) -> tuple[str, ...]:
        """Patterns for the keys that all gateways share and that belong to no queue; a name may end in `*`."""
        base = _escaped(gateway_base(self.keys.prefix))
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
    """Permissions of a role.

    Args:
        role: the role.
        patterns: keys that it works on.
        lanes: lanes that a producer may add to.
    """
    if role is Role.PRODUCER:
        return _producer(patterns, lanes)
    others = {Role.WORKER: _worker, Role.OPERATOR: _operator, Role.GATEWAY: _gateway, Role.AUTOSCALER: _autoscaler}
    return others[role](patterns)


def rules(role: Role, patterns: Patterns, lanes: Sequence[Lane] = LANES) -> list[str]:
    """The rules of a role, as ACL SETUSER and users.acl take them; without a password, so nobody can log in yet."""
    first, *others = grants(role, patterns, lanes)
    selectors = [f"({' '.join(grant.words())})" for grant in others]
    return ["on", "resetpass", "resetkeys", "resetchannels", "-@all", *first.words(), *selectors]


def users_acl_line(user: str, words: Iterable[str]) -> str:
    """A line of the file that Redis's `aclfile` names.

    Raises:
        InvalidRequest: the user's name cannot stand in it.
    """
    return " ".join(["user", _check_user(user), *words])


def setuser_command(user: str, words: Iterable[str]) -> str:
    """The same as a command for redis-cli. It resets the user first: its former rules and its password are gone.

    Raises:
        InvalidRequest: the user's name cannot stand in it.
    """
    return " ".join(["ACL SETUSER", _check_user(user), "reset", *words])


def _check_user(name: str) -> str:
    """A name for a Redis user.

    Raises:
        InvalidRequest: it cannot be written into a users.acl file.
    """
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,128}", name):
        raise InvalidRequest("must be 1 to 128 letters, digits, '.', '_', '@' or '-'", "user")
    return name


def users_acl(patterns: Patterns) -> str:
    """A whole users.acl file: all roles, and the user `default` switched off.

    With an `aclfile`, Redis ignores `requirepass`: if the file did not name `default`, everybody could log in as that
    user, with all permissions.
    """
    lines = [users_acl_line(f"streamfleet-{role}", rules(role, patterns)) for role in Role]
    return "\n".join(["user default off resetpass resetkeys resetchannels -@all", *lines]) + "\n"


def _producer(p: Patterns, lanes: Sequence[Lane]) -> list[Grant]:
    keys = p.keys
    return [
        Grant(("ping", "select", "wait", "client|id", *_CLUSTER)),
        _scripts(p),
        Grant(("xadd",), p.of(WRITE, *map(keys.lane, lanes), keys.cancel_requests)),
        # For the length and size of a lane and the state of a request; these commands show no bodies.
        Grant(("xlen", "xpending", "xinfo|groups", "memory|usage"), p.of(READ, *keys.lanes)),
        Grant(("zcard", "zscore"), p.of(READ, keys.ready, keys.delayed)),
        # For the place of a request and the time until it is taken
        Grant(("time",)),
        Grant(("zcount", "zrank"), p.of(READ, keys.ready)),
        Grant(("zrangebyscore",), p.of(READ, *(f"{keys.ready(lane)}:firsts" for lane in LANES))),  # numbers of homes
        Grant(("hget", "hmget"), p.of(READ, keys.lane_states)),
        Grant(("get",), p.of(READ, keys.pace)),
        # The same for tenants; no command that lists them
        Grant(("zcard", "zscore"), p.of(READ, *map(keys.turns, LANES))),
        Grant(("hget", "hlen"), p.of(READ, keys.tickets)),
        Grant(("hget", "hlen", "hmget"), p.of(READ, keys.served)),
        Grant(("hmget",), p.of(READ, keys.tenants)),
        # Requests of each tenant that no worker has staged yet
        Grant(("hmget", "hlen", "hset", "del"), p.of(BOTH, keys.arrivals)),
        Grant(("hgetall", "hget", "hmget", "hexists", "exists"), p.of(READ, keys.result)),
        Grant(("hgetall",), p.of(READ, keys.meta)),
        Grant(("get", "set"), p.of(BOTH, keys.request)),
        Grant(("xread", "xtrim", "del"), p.of(BOTH, keys.reply)),
        Grant(("xread", "xrevrange"), p.of(READ, keys.tokens)),
    ]


def _worker(p: Patterns) -> list[Grant]:
    return [
        Grant(("ping", "select", "info", "time", "client|id", "client|unblock", *_CLUSTER)),
        *_work(p),
    ]


def _work(p: Patterns) -> list[Grant]:
    keys = p.keys
    derived = [key for key in keys.typed(derived=True) if not key.startswith(keys.ready(""))]
    groups = ("xgroup|create", "xgroup|delconsumer", "xreadgroup", "xpending", "xinfo|consumers")
    entries = ("xclaim", "xrange", "xack", "xdel")
    sorted_sets = ("zadd", "zcard", "zrange", "zrangebyscore", "zrem", "zscore")
    return [
        _scripts(p),
        Grant((*groups, *entries), p.of(BOTH, *keys.lanes, keys.wake)),
        # Scripts make the names of the sets of tenants and homes.
        Grant((*sorted_sets, "exists", "zcount", "zpopmin", "zremrangebyscore"), p.of(BOTH, keys.ready)),
        Grant(sorted_sets, p.of(BOTH, keys.delayed, keys.waiting, keys.watch)),
        Grant(
            ("hget", "hmget", "hlen", "hset", "hdel", "hincrby"), p.of(BOTH, keys.tries, keys.counts, keys.lane_states)
        ),
        Grant(("hdel", "hget", "hgetall", "hkeys", "hlen", "hset"), p.of(BOTH, keys.workers)),
        Grant(("hget", "hgetall", "hmget", "hset", "hdel"), p.of(BOTH, keys.clock)),
        Grant(("hget", "hset", "hdel", "hincrby"), p.of(BOTH, keys.entries, keys.dead_parts)),
        Grant(("get", "set"), p.of(BOTH, keys.pace)),
        # Turns and charges of tenants
        Grant(
            ("zadd", "zcard", "zmscore", "zrandmember", "zrange", "zrangebyscore", "zrem", "zscore"),
            p.of(BOTH, *map(keys.turns, LANES)),
        ),
        Grant(("hdel", "hget", "hlen", "hmget", "hscan", "hset"), p.of(BOTH, keys.served)),
        Grant(("hlen", "hmget"), p.of(READ, keys.tenants)),
        # Homes of sessions
        Grant(("hdel", "hget", "hlen", "hset"), p.of(BOTH, keys.tickets)),
        Grant(("zadd", "zcount", "zrange", "zrangebyscore", "zrem", "zscore"), p.of(BOTH, keys.loads)),
        Grant(("hdel", "hget", "hincrby", "hkeys", "hlen", "hscan", "hset"), p.of(BOTH, keys.sessions)),
        # A worker adds what the configuration lacks; only an operator changes it.
        Grant(("hgetall", "hsetnx"), p.of(BOTH, keys.meta)),
        Grant(("llen", "rpush", "blpop", "del"), p.of(BOTH, keys.wake_up)),
        Grant(("hsetnx", "hset", "hmget", "hgetall", "hexists", "exists"), p.of(BOTH, keys.result)),
        Grant(("pexpire",), p.of(WRITE, keys.result, keys.request, keys.reply, keys.tokens, keys.wake_up)),
        # Ended requests of API keys, which are bounded by tenant
        Grant(("lindex", "lpop", "rpush", "pexpire"), p.of(BOTH, keys.ended)),
        Grant(("memory|usage",), p.of(READ, keys.result, keys.request, keys.tokens)),
        Grant(("xadd",), p.of(WRITE, keys.reply, keys.tokens, keys.dead, keys.cancels, keys.wake)),
        Grant(("exists",), p.of(READ, keys.tokens)),
        Grant(("xtrim",), p.of(WRITE, keys.dead)),
        Grant(("xlen",), p.of(READ, keys.dead, keys.wake, keys.reply)),
        Grant(("xread", "xrevrange"), p.of(READ, keys.cancels)),
        Grant(("xrange", "xdel"), p.of(BOTH, keys.cancel_requests)),
        Grant(("get", "getex", "set"), p.of(BOTH, keys.request)),
        Grant(("mget", "set", "del"), p.of(BOTH, keys.kept)),
        Grant(("set",), p.of(WRITE, keys.maintain)),
        # The housekeeping counts what comes into each lane and where it is, and makes anew what follows from the lanes.
        Grant(("xinfo|groups", "xinfo|stream", "xlen", "xrevrange", "exists"), p.of(READ, *keys.lanes)),
        Grant(("xgroup|setid",), p.of(WRITE, *keys.lanes)),
        Grant(("type", "unlink"), p.of(BOTH, keys.ready, *derived)),
        Grant(("hkeys",), p.of(READ, keys.served)),
        Grant(("hscan", "hexists"), p.of(READ, keys.tries, keys.tickets, keys.entries)),
        Grant(("hgetall", "hlen"), p.of(READ, keys.counts, keys.entries)),
        Grant(("zscan",), p.of(READ, keys.delayed)),
    ]


def _operator(p: Patterns) -> list[Grant]:
    """A worker's permissions, because repairs use the workers' scripts, and the right to read everything."""
    keys = p.keys
    streams, others = ("xrange", "xrevrange", "xread"), ("type", "pttl", "memory|usage")
    return [
        # SCAN and DBSIZE name no keys, so no rule can limit them to the queue's keys.
        Grant(("ping", "select", "info", "time", "client|id", "scan", "dbsize", *_CLUSTER)),
        *_work(p),
        Grant((*streams, *others), (READ + p.whole,)),
        # trace: how many run before a request
        Grant(("zrank",), p.of(READ, keys.ready)),
        # workers
        Grant(("hmget",), p.of(READ, keys.workers)),
        # queue set
        Grant(("hset",), p.of(BOTH, keys.meta)),
        # tenants
        Grant(("hset", "hgetall"), p.of(BOTH, keys.tenants)),
        Grant(("hgetall",), p.of(READ, keys.served, keys.lane_states)),
        # dead requeue, dead purge
        Grant(("xadd",), p.of(WRITE, *keys.lanes)),
        Grant(("xdel",), p.of(WRITE, keys.dead)),
        Grant(("del",), p.of(WRITE, keys.result, keys.reply, keys.tokens)),
        # audit --repair
        Grant(("pexpire",), p.of(WRITE, keys.maintain)),
        Grant(("rename",), (BOTH + p.whole,)),
        # gateway keys
        Grant(("eval", "evalsha", "hset", "hget", "hgetall", "hkeys", "hdel"), p.beside(BOTH, "keys")),
        Grant(("xadd",), p.beside(WRITE, "key_changes")),
        Grant(("del",), p.beside(WRITE, "left:*")),
        # gateway keys revoke --erase-responses
        Grant(("eval", "evalsha"), p.beside(BOTH, "response:*", "responses:*", "open_responses", "use:*", "loose")),
        Grant(("hget", "hmget", "del"), p.beside(BOTH, "response:*")),
        Grant(("zrange", "zrem"), p.beside(BOTH, "responses:*", "open_responses")),
        Grant(("hget", "hincrby", "hdel"), p.beside(BOTH, "use:*")),
        Grant(("zadd",), p.beside(WRITE, "loose")),
        # gateway webhooks; not their secrets
        Grant(("eval", "evalsha"), p.beside(BOTH, "webhooks:*")),
        Grant(("xrange", "xrevrange", "xdel"), p.beside(BOTH, "webhooks:dead")),
        Grant(("xadd",), p.beside(WRITE, "webhooks:due")),
        Grant(("hexists", "hset"), p.beside(BOTH, "webhooks:messages")),
        Grant(("zrem",), p.beside(WRITE, "webhooks:ended")),
    ]


def _gateway(p: Patterns) -> list[Grant]:
    """A producer's permissions in all lanes, the workers' descriptions, and the gateway's own keys."""
    return [
        *_producer(p, LANES),
        # The reader of token streams is unblocked when one more stream is to be read.
        Grant(("client|unblock",)),
        Grant(("hgetall",), p.of(READ, p.keys.workers)),
        # Weights and limits of tenants that API keys name
        Grant(("hset",), p.of(WRITE, p.keys.tenants)),
        # Bytes that a tenant has waiting
        Grant(("zrange",), p.of(READ, p.keys.ready)),
        Grant(("eval", "evalsha"), p.beside(BOTH, "*")),
        Grant(("hget",), p.beside(READ, "keys")),
        Grant(("xread",), p.beside(READ, "key_changes")),
        Grant(("hmget", "hset", "pexpire"), p.beside(BOTH, "left:*")),
        Grant(("hmget", "hset", "hgetall", "hincrby", "pexpire", "del"), p.beside(BOTH, "reserved:*")),
        Grant(("zadd", "zrem", "zrangebyscore"), p.beside(BOTH, "reservations")),
        Grant(("rpush", "lpop", "pexpire"), p.beside(BOTH, "settled:*")),
        Grant(("rpush", "lpop", "lrem", "pexpire"), p.beside(BOTH, "tries:*")),
        *_files_and_batches(p),
        *_webhooks(p),
    ]


def _files_and_batches(p: Patterns) -> list[Grant]:
    sorted_sets = ("zadd", "zcard", "zrem", "zscore", "zrangebyscore", "zrangebylex", "zrevrangebylex")
    by_tenant, all_tenants = ("files:*", "batches:*", "jobs:*"), ("file_ends", "loose", "open_batches")
    return [
        Grant(
            ("hset", "hget", "hmget", "hgetall", "hincrby", "hdel", "exists", "del", "pexpire"),
            p.beside(BOTH, "file:*", "batch:*", "stats:*", "use:*", "named:*"),
        ),
        Grant(("rpush", "lrange", "exists", "del"), p.beside(BOTH, "parts:*")),
        Grant(sorted_sets, p.beside(BOTH, *by_tenant, *all_tenants)),
        Grant(("get", "getbit", "setbit", "del"), p.beside(BOTH, "done:*")),
        Grant(("hset", "hget", "hmget", "hgetall", "set", "mget", "pexpire", "del"), p.beside(BOTH, "response:*")),
        Grant(("zadd", "zcard", "zrange", "zrem", "pexpire"), p.beside(BOTH, "responses:*")),
        Grant(("zadd", "zrem", "zmscore", "zrangebyscore"), p.beside(BOTH, "open_responses")),
    ]


def _webhooks(p: Patterns) -> list[Grant]:
    """Permissions for deliveries. Only the gateway may read the signing secrets, because it signs."""
    groups = ("xgroup|create", "xgroup|delconsumer", "xinfo|consumers", "xreadgroup", "xpending", "xclaim", "xack")
    return [
        Grant((*groups, "xadd", "xdel", "xread", "xinfo|stream"), p.beside(BOTH, "webhooks:due")),
        Grant(
            ("zadd", "zrem", "zrangebyscore", "zremrangebyrank", "zremrangebyscore", "zscore"),
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
    """Any script on keys of the queue; Redis checks each command inside it by itself."""
    return Grant(("eval", "evalsha"), (BOTH + p.whole,))


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)
