"""Commands that each role is refused, as redis-cli takes them, with `; ` between them. {q} is the role's queue."""

from __future__ import annotations

from streamfleet.operator.access_rules import Role

Command = tuple[str, ...]

EVERYBODY = """
KEYS *; RANDOMKEY; FLUSHALL; FLUSHDB; SWAPDB 0 1; CONFIG GET *; CONFIG SET maxmemory 1; CONFIG REWRITE; ACL LIST
ACL WHOAMI; ACL SETUSER me on nopass ~* +@all; CLIENT LIST; CLIENT KILL ID 1; CLIENT PAUSE 100; MONITOR
SUBSCRIBE news; PUBLISH news x; SCRIPT FLUSH; SCRIPT LOAD x; SCRIPT KILL; MODULE LIST
SAVE; BGSAVE; BGREWRITEAOF; LASTSAVE; SHUTDOWN NOSAVE; REPLICAOF NO ONE; SLOWLOG GET; LATENCY RESET; CLUSTER RESET
FUNCTION LOAD x; FUNCTION LIST; FUNCTION DELETE x; FUNCTION FLUSH; FCALL x 1 {q}:lane:high; FCALL_RO x 1 {q}:lane:high
COMMAND; MULTI; ROLE; SYNC; RENAME {q}:lane:high {other}:lane:high; RENAME {other}:lane:high {q}:reply:me
COPY {q}:lane:high {q}:reply:me; MOVE {q}:lane:high 1; SORT {q}:bench; DUMP {q}:lane:high; RESTORE {q}:reply:me 0 x
OBJECT ENCODING {q}:lane:high; EXPIRE {q}:lane:high 1; XTRIM {q}:lane:high MAXLEN 0; DEL {q}:lane:high
UNLINK {q}:lane:high; XSETID {q}:lane:high 9999999999999-0; XGROUP DESTROY {q}:lane:high workers
XAUTOCLAIM {q}:lane:high workers w2 0 0; DEL {q}:dead; DEL {q}:ready:high; DEL {q}:maintain; DEL {q}:cancel_requests
DEL {q}:tries; DEL {q}:counts; HDEL {q}:result:r-1 status; PERSIST {q}:result:r-1; APPEND {q}:request:r-1 x
GETSET {q}:request:r-1 x; XADD {q}:lane:other * body x; XADD {q}x:lane:high * body x; XADD x{q}:lane:high * body x
XADD {qq}:lane:high * body x; XADD {other}:lane:high * body x; XRANGE {other}:lane:high - +
XREAD STREAMS {other}:lane:high 0; XLEN {other}:lane:high; HGETALL {other}:result:r-1
HSETNX {other}:result:r-2 status x; GET {other}:request:r-1; XREAD STREAMS {other}:reply:me 0
XPENDING {other}:lane:high workers; DEL {other}:reply:me; XADD {other}:cancel_requests * id r-1
XREVRANGE {other}:dead + -
"""

BUT_OPERATORS = """
SCAN 0; DBSIZE; RENAME {q}:lane:high {q}:lane:low; ZSCAN {q}:ready:high 0; HEXISTS {q}:workers x; MEMORY USAGE {q}:tries
"""

BY_ROLE = {
    Role.PRODUCER: """
XTRIM {q}:dead MAXLEN 0; XRANGE {q}:lane:high - +; XREVRANGE {q}:lane:high + -; XREAD STREAMS {q}:lane:high 0
XINFO STREAM {q}:lane:high FULL; XREADGROUP GROUP workers w2 STREAMS {q}:lane:high >
XREADGROUP GROUP workers w1 STREAMS {q}:lane:high 0; XCLAIM {q}:lane:high workers w2 0 1-0 JUSTID
XDEL {q}:lane:high 1-0; XACK {q}:lane:high workers 1-0; XGROUP CREATE {q}:lane:high mine 0
XGROUP DELCONSUMER {q}:lane:high workers w1; XGROUP SETID {q}:lane:high workers $; HSCAN {q}:tries 0
XINFO STREAM {q}:lane:high FULL; XINFO CONSUMERS {q}:lane:high workers; XREVRANGE {q}:dead + -
XRANGE {q}:dead - +; XREAD STREAMS {q}:dead 0; XADD {q}:dead * _id x; XDEL {q}:dead 1-0
HSET {q}:result:r-1 status failed; HSETNX {q}:result:r-2 status succeeded; DEL {q}:result:r-1
PEXPIRE {q}:result:r-1 1; XADD {q}:reply:other * id r-1 status succeeded; PEXPIRE {q}:reply:other 1
XRANGE {q}:reply:other - +; ZADD {q}:ready:high 0 A1-A0; ZREM {q}:ready:high x; ZRANGE {q}:ready:high 0 -1
ZPOPMIN {q}:ready:high; ZADD {q}:delayed 0 x; HGETALL {q}:tries; HSET {q}:tries x 9; HINCRBY {q}:counts succeeded 1
HGETALL {q}:workers; HSET {q}:workers w9 {}; HSET {q}:lanes credit:low 1000; RPUSH {q}:bench 1; BLPOP {q}:bench 0.01
XADD {q}:wake * t 1; ZADD {q}:watch 1 w9; SET {q}:maintain x; XADD {q}:cancels * id r-1; XREAD STREAMS {q}:cancels 0
XRANGE {q}:cancel_requests - +; XDEL {q}:cancel_requests 1-0; XREAD STREAMS {q}:cancel_requests 0; DEL {q}:request:r-1
EXPIRE {q}:request:r-1 1; INFO; CLIENT UNBLOCK 1; XADD {q}:tokens:r-1 * end succeeded; DEL {q}:tokens:r-1
XTRIM {q}:tokens:r-1 MAXLEN 0; PEXPIRE {q}:tokens:r-1 1; XREAD STREAMS {other}:tokens:r-1 0
HGETALL {q}:lanes; HGETALL {q}:entries; HSET {q}:entries enqueued:1|1-0 1; HGET {q}:clock turn; HSET {q}:clock turn 1
SET {q}:pace {}; HGET {q}:dead_parts bytes
""",
    Role.WORKER: """
XADD {q}:lane:high * body x; DEL {q}:result:r-1; XRANGE {q}:dead - +; XDEL {q}:dead 1-0
XREAD STREAMS {q}:reply:me 0; DEL {q}:reply:me; XADD {q}:cancel_requests * id r-1; DEL {q}:cancels; GET {q}:maintain
SET {q}:lane:high x; DEL {q}:workers; WAIT 0 0; XREAD STREAMS {q}:tokens:r-1 0; DEL {q}:tokens:r-1
XRANGE {q}:tokens:r-1 - +; XADD {other}:tokens:r-1 * end succeeded
""",
    Role.OPERATOR: """
DEL {q}:request:r-1; SET {q}:result:r-1 x; SET {q}:lane:high x; SET {q}:counts x; XADD {q}:cancel_requests * id r-1
HSCAN {other}:result:r-1 0; TYPE {other}:lane:high; PTTL {other}:result:r-1; MEMORY USAGE {other}:lane:high
XGROUP SETID {other}:lane:high workers $; XADD {q}:lane:mine * body x; DEL {q}:cancels; CLIENT UNBLOCK 1; WAIT 0 0
HGET {gateway}/webhooks:secrets t1; HGETALL {gateway}/webhooks:secrets; HSET {gateway}/webhooks:secrets t1 x
""",
    Role.GATEWAY: """
XRANGE {q}:lane:high - +; XREADGROUP GROUP workers w2 STREAMS {q}:lane:high >; HSET {q}:result:r-1 status failed
XREVRANGE {q}:dead + -; HSET {q}:workers w9 {}; HGETALL {q}:tries; HGETALL {gateway}/keys; HSET {gateway}/keys x {}
HDEL {gateway}/keys x; DEL {gateway}/keys; DEL {gateway}/left:x; GET {gateway}x:keys; DEL {q}:request:r-1; INFO
XADD {gateway}/key_changes * changed 1; DEL {gateway}/key_changes; XRANGE {gateway}/key_changes - +
XRANGE {gateway}/webhooks:dead - +; DEL {gateway}/webhooks:secrets; DEL {gateway}/webhooks:dead
XADD {q}:dead * _id x; ZADD {q}:ready:high 0 A1-A0; XADD {q}:tokens:r-1 * end succeeded; HGETALL {other}:workers
""",
    Role.AUTOSCALER: """
XTRIM {q}:dead MAXLEN 0; EVAL 'return 1' 0; EVALSHA x 0; XRANGE {q}:lane:high - +
XADD {q}:lane:high * body x; XLEN {q}:dead; INFO; TIME; HGETALL {q}:result:r-1
HGETALL {q}:workers; HGETALL {q}:counts; XINFO STREAM {q}:lane:high
XINFO CONSUMERS {q}:lane:high workers; GET {q}:request:r-1; XREAD STREAMS {q}:lane:high 0; ZCARD {q}:ready:high
XLEN {q}:reply:me; CLIENT UNBLOCK 1; XREAD STREAMS {q}:tokens:r-1 0
""",
}


def attempts(role: Role) -> list[Command]:
    """The commands that a role tries in vain."""
    texts = [EVERYBODY, BY_ROLE[role]] + ([] if role is Role.OPERATOR else [BUT_OPERATORS])
    return [
        tuple(word.strip("'") for word in _words(line))
        for text in texts
        for part in text.strip().splitlines()
        for line in part.split("; ")
    ]


def _words(line: str) -> list[str]:
    before, quote, rest = line.partition("'")
    if not quote:
        return line.split()
    inside, _, after = rest.partition("'")
    return [*before.split(), inside, *after.split()]
