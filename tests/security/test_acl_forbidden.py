"""Forbidden commands of each role, tried for real, plainly and from inside a script: nothing has changed afterwards."""

from __future__ import annotations

import pytest
import redis

from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES
from streamfleet.operator.access_rules import Grant, Patterns, Role, grants, rules
from tests.security.forbidden import attempts
from tests.security.guarded import OTHER, QUEUE, Guarded

# Said by the server of a command, and of one in a script by each release in its own words.
REFUSED = ("NOPERM", "ACL failure in script", "The user executing the script can't")


@pytest.fixture
def lived_in(any_guarded: Guarded) -> Guarded:
    """Two queues with something of each kind in them, and the users of all roles for the first."""
    with any_guarded.admin() as admin:
        for keys in (Keys(QUEUE), Keys(OTHER)):
            for lane in keys.lanes:
                admin.xadd(lane, {"body": "secret"}, id="1-0")
                admin.xgroup_create(lane, "workers", "0")
            admin.xreadgroup("workers", "w1", {keys.lane("high"): ">"})
            admin.hset(keys.result("r-1"), "status", "succeeded")
            admin.set(keys.request("r-1"), "digest high:1-0 me")
            for stream in (keys.dead, keys.reply("me"), keys.reply("other"), keys.cancels, keys.cancel_requests):
                admin.xadd(stream, {"id": "r-1"}, id="1-0")
            for name in (keys.ready("high"), keys.delayed, keys.waiting, keys.watch):
                admin.zadd(name, {"x": 1})
            for name in (keys.tries, keys.counts, keys.lane_states, keys.entries, keys.clock, keys.workers):
                admin.hset(name, "x", "1")
            admin.rpush(keys.wake_up("w1"), "1")
            admin.set(keys.maintain, "w1")
            admin.set(keys.pace, "{}")
    for role in Role:
        any_guarded.enlist(role)
    return any_guarded


def contents(guarded: Guarded) -> dict[bytes, object]:
    """Everything in the server, byte for byte."""
    with redis.Redis.from_url(guarded.server.url) as admin:
        names = sorted(admin.scan_iter())
        return {name: (admin.dump(name), admin.pttl(name) > 0) for name in names}


@pytest.mark.parametrize("role", Role)
def test_what_a_role_must_not_do_is_refused(lived_in: Guarded, role: Role) -> None:
    before = contents(lived_in)
    allowed = []
    for command in attempts(role):
        # A connection each: some of these, were they allowed, would turn it into something else.
        with redis.Redis.from_url(lived_in.url(role), socket_timeout=2) as me:
            if not refused(me, *command):
                allowed.append(" ".join(command))
    assert allowed == []
    assert contents(lived_in) == before


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.WORKER, Role.OPERATOR])
def test_a_script_is_no_way_around(lived_in: Guarded, role: Role) -> None:
    before = contents(lived_in)
    allowed = []
    with redis.Redis.from_url(lived_in.url(role), socket_timeout=2) as me:
        assert me.eval("return redis.call('PING')['ok']", 1, Keys(QUEUE).lane("high")) == b"PONG"
        for command in attempts(role):
            for keys in ((), ("{q}:lane:high",)):
                if not refused(me, "EVAL", "return redis.call(unpack(ARGV))", str(len(keys)), *keys, *command):
                    allowed.append(command)  # noqa: PERF401
        assert refused(me, "EVAL", "return 1", "1", "{other}:lane:high")
        assert refused(me, "EVAL_RO", "return 1", "1", "{q}:lane:high")
    assert allowed == []
    assert contents(lived_in) == before


def refused(me: redis.Redis, *command: str) -> bool:
    """True if the server refuses it because a permission is missing, and for no other reason."""
    try:
        me.execute_command(*command)  # type: ignore[no-untyped-call]
    except redis.exceptions.NoPermissionError:
        return True
    except redis.exceptions.ResponseError as error:
        text = str(error)
        # Some commands no script may send, whoever runs it; a server without them cannot refuse them.
        no_script = command[0] == "EVAL" and "not allowed from script" in text
        return no_script or any(words in text for words in REFUSED)
    return False


SHAPES = {
    "XADD": "* a b", "XREADGROUP": "", "XREAD": "", "XRANGE": "- +", "XREVRANGE": "+ -", "XLEN": "", "XDEL": "1-0",
    "XACK": "workers 1-0", "XPENDING": "workers", "XCLAIM": "workers w 0 1-0", "XTRIM": "MAXLEN 1", "GET": "",
    "GETEX": "", "SET": "x", "DEL": "", "UNLINK": "", "EXISTS": "", "PEXPIRE": "1", "TYPE": "", "PTTL": "", "HGET": "a",
    "HMGET": "a",
    "HGETALL": "", "HSET": "a b", "HSETNX": "a b", "HDEL": "a", "HLEN": "", "HEXISTS": "a", "HINCRBY": "a 1",
    "ZADD": "1 a", "ZCARD": "", "ZCOUNT": "0 1", "ZPOPMIN": "1", "ZRANGE": "0 1", "ZRANGEBYSCORE": "0 1",
    "HSCAN": "0", "ZSCAN": "0", "RENAME": "", "ZREM": "a", "ZREMRANGEBYSCORE": "0 1", "ZSCORE": "a", "LLEN": "",
    "ZRANK": "a", "ZMSCORE": "a", "ZLEXCOUNT": "- +", "ZRANGEBYLEX": "- +", "ZREMRANGEBYLEX": "- +",
    "RPUSH": "a", "BLPOP": "1", "EVAL": "", "HKEYS": "", "ZRANDMEMBER": "1",
}  # fmt: skip
SPECIAL = {
    "XREADGROUP": "XREADGROUP GROUP workers w STREAMS {key} >",
    "XREAD": "XREAD STREAMS {key} 0",
    "EVAL": "EVAL script 1 {key}",
    "RENAME": "RENAME {key} {key}",
}
SUBCOMMANDS = {
    "XGROUP|CREATE": "XGROUP CREATE {key} workers 0",
    "XGROUP|DELCONSUMER": "XGROUP DELCONSUMER {key} workers w",
    "XGROUP|SETID": "XGROUP SETID {key} workers 0",
    "XGROUP|DESTROY": "XGROUP DESTROY {key} workers",
    "XINFO|GROUPS": "XINFO GROUPS {key}",
    "XINFO|STREAM": "XINFO STREAM {key}",
    "XINFO|CONSUMERS": "XINFO CONSUMERS {key} workers",
    "MEMORY|USAGE": "MEMORY USAGE {key}",
}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("queue", [QUEUE, "odd*[a]?\\^(b)"])
def test_what_is_allowed_is_what_was_granted(guarded: Guarded, role: Role, queue: str) -> None:
    """Each command on each key, as the server itself judges it: the grants, and not one more."""
    guarded.enlist(role, queue)
    keys = all_keys(queue)
    granted = {
        (command.upper(), key)
        for grant in grants(role, Patterns(Keys(queue)))
        for command in grant.commands
        for key in keys[queue]
        if covers(grant, key, queue)
    }
    lines = {name: SPECIAL.get(name, f"{name} {{key}} {rest}") for name, rest in SHAPES.items()} | SUBCOMMANDS
    pairs = [(name, key) for name in lines for some in keys.values() for key in some]
    with guarded.admin() as admin, admin.pipeline(transaction=False) as pipe:
        for name, key in pairs:
            words = [key if word == "{key}" else word for word in lines[name].split()]
            pipe.execute_command("ACL", "DRYRUN", role, *words)
        answers = pipe.execute()
    found = {pair for pair, answer in zip(pairs, answers, strict=True) if answer in ("OK", b"OK", True)}
    assert found == {(name, key) for name, key in granted if name in lines}
    assert {name for name, _ in granted} <= {*lines, "EVALSHA"}, "a command that this table does not know"


def all_keys(queue: str) -> dict[str, list[str]]:
    """Every kind of key of the queue, and of others that look nearly the same."""
    names = [queue, OTHER, f"{queue}x", f"x{queue}"] + (["oddZZaX^(b)", "odd*aZ^(b)"] if queue != QUEUE else [])
    found = {}
    for name in names:
        keys = Keys(name)
        single = [keys.wake, keys.lane_states, keys.entries, keys.clock, keys.pace, keys.dead_parts]
        single += [keys.dead, keys.tries, keys.delayed, keys.waiting, keys.watch, keys.counts]
        single += [
            keys.cancels,
            keys.cancel_requests,
            keys.workers,
            keys.maintain,
            keys.tickets,
            keys.served,
            keys.tenants,
            keys.sessions,
            keys.loads,
        ]
        made = [keys.result("r"), keys.request("r"), keys.reply("r"), keys.wake_up("r")]
        found[name] = [
            *keys.lanes,
            *(key + more for key in map(keys.ready, LANES) for more in ("", ":t:a", ":ht:1", ":firsts", ":past")),
            *map(keys.turns, LANES),
            *single,
            *made,
            keys.lane("other"),
            f"x{keys.dead}",
        ]
    return found


def covers(grant: Grant, key: str, queue: str) -> bool:
    """True if a grant names the key, or its family. Without the server's help, and without globs."""
    base = Keys(queue).base
    for pattern in grant.keys:
        name = pattern.partition("~")[2].partition("}:")[2]
        if key == base + name or (name.endswith("*") and key.startswith(base + name[:-1])):
            return True
    return False


@pytest.mark.parametrize("prefix", ["", "app*:"])
def test_all_queues_are_those_of_the_prefix_only(any_guarded: Guarded, prefix: str) -> None:
    url = any_guarded.enlist_with(Role.PRODUCER, rules(Role.PRODUCER, Patterns(Keys("*", prefix), every=True)))
    with redis.Redis.from_url(url) as me:
        for queue in ("q", "other", "odd*[a]"):
            assert me.xadd(Keys(queue, prefix).lane("high"), {"body": "{}"})
            assert refused(me, "XADD", f"app-elsewhere{{{queue}}}:lane:high", "*", "body", "x")
            assert refused(me, "XRANGE", Keys(queue, prefix).lane("high"), "-", "+")


def test_an_operator_of_all_queues_reads_no_signing_secrets(any_guarded: Guarded) -> None:
    url = any_guarded.enlist(Role.OPERATOR, "*", every=True)
    with redis.Redis.from_url(url) as me:
        assert me.hgetall(Keys("gateway").workers) == {}, "a queue may be called so"
        assert refused(me, "HGETALL", "{gateway}/webhooks:secrets")
        assert refused(me, "RENAME", "{gateway}/webhooks:secrets", "{gateway}:mine")
