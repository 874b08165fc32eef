"""Translates errors of Redis and redis-py into streamfleet's own."""

from __future__ import annotations

import asyncio

import redis.exceptions

from streamfleet.common.connection.login import ProviderFailed
from streamfleet.common.connection.options import distrust
from streamfleet.common.errors import (
    BrokerOutOfMemory,
    BrokerUnavailable,
    NotPermitted,
    SettingsError,
    StreamfleetError,
)

LOST = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError, asyncio.TimeoutError)
FAILURES = (*LOST, redis.exceptions.RedisError)
# Temporary refusals, after which waiting is better than failing. The last two occur in scripts in a cluster: an
# undeclared key has moved to another node, or the cluster goes down meanwhile.
_PASSING = (
    "MISCONF ",
    "NOREPLICAS ",
    " is busy running a ",
    "UNBLOCKED force",
    "access a non local key in a cluster node",
    "while the cluster is down",
)
_CODES = {
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.ReadOnlyError: "READONLY",
}
# The server's own code, and the differing texts of Redis 6.2, 7 and 8 for a command inside a script.
_RULES = "`streamfleet acl --queue NAME` prints the rules of a queue for each role"
_FORBIDDEN = ("NOPERM", "ACL failure in script", "The user executing the script can't")


class MissingGroup(StreamfleetError):
    """The consumer group or its stream is gone, and must be recreated."""


class Refused(SettingsError):
    """The server refuses the user or password; another one may help."""


class Distrusted(Refused):
    """This side refuses the server's certificate; another file of authorities may help."""


def translated(error: Exception, address: str, clustered: bool) -> Exception:
    """The error to raise in place of redis-py's; the same error if its cause is the caller's command.

    Args:
        error: the error that was raised.
        address: the deployment's address, without password.
        clustered: True if the URL is a cluster's.
    """
    if isinstance(error, redis.exceptions.AuthenticationError):
        does = "does not get" if isinstance(error, ProviderFailed) else "refuses"
        return Refused(f"Redis at {address} {does} the user or password: {error}")
    if (refused := distrust(error)) is not None:
        return Distrusted(f"REDIS_URL {address}: {refused}")
    if isinstance(error, redis.exceptions.BusyLoadingError):
        return BrokerUnavailable(f"Redis at {address} is still loading its data")
    if isinstance(error, LOST):
        return BrokerUnavailable(f"no answer from Redis at {address}: {reason(error)}")
    if _code(error) in ("MOVED", "ASK"):
        return _elsewhere(error, address, clustered)
    return _refusal(error, address) if isinstance(error, redis.exceptions.ResponseError) else error


def another_type(address: str) -> BrokerUnavailable:
    """Error for a shared key that was overwritten with another type; retryable, so that workers wait for the repair."""
    told = "`streamfleet audit` names it, and `streamfleet audit --repair` renames it"
    return BrokerUnavailable(f"a key on Redis at {address} is of another type than streamfleet's: {told}")


def points_elsewhere(error: BaseException) -> bool:
    """True if the server may no longer be the right one: it is gone, moved, demoted or cut off from the others."""
    if isinstance(error, redis.exceptions.ResponseError):
        return _code(error) in ("MOVED", "CLUSTERDOWN", "READONLY")
    return isinstance(error, FAILURES)


def reason(error: BaseException) -> str:
    """Reason for which a connection was lost, as text."""
    if isinstance(error, (asyncio.TimeoutError, redis.exceptions.TimeoutError)) and not str(error):
        return "timed out"
    return str(error) or type(error).__name__


def _code(error: BaseException) -> str:
    """The first word of a refusal. Some releases of redis-py remove known words from the text and use error classes."""
    known = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return next(known, "") or str(error).partition(" ")[0]


def _elsewhere(error: Exception, address: str, clustered: bool) -> Exception:
    """Error for MOVED and ASK. ASK is not followed: while a slot is on two nodes, neither has all keys of a script."""
    if clustered:
        does, where = "has moved" if _code(error) == "MOVED" else "is moving", str(error).rpartition(" ")[2]
        return BrokerUnavailable(f"Redis at {address} {does} the queue's slot to {where}")
    nodes = address.rpartition("://")[2].partition("/")[0]
    return SettingsError(
        f"REDIS_URL {address} is a node of a Redis Cluster, and the queue lives on another: "
        f"write redis+cluster://{nodes} (rediss+cluster:// with TLS)"
    )


def _refusal(error: redis.exceptions.ResponseError, address: str) -> Exception:
    text = str(error)

    def says(*words: str) -> bool:
        return any(word in text for word in words)

    result: Exception = error
    if says("NOGROUP", "No such key", "UNBLOCKED the stream key"):
        result = MissingGroup(text)
    elif says("DB index is out of range", "SELECT is not allowed"):
        result = SettingsError(f"REDIS_URL {address}: the server has no database (db) of this number: {text}")
    elif "unknown command" in text.lower():
        what = text.partition(", with args")[0]  # the arguments would quote a request
        result = SettingsError(
            f"Redis at {address} lacks a command ({what}): it is older than 6.2, or the command was renamed, or it is "
            "a Sentinel (then write redis+sentinel://host:26379/service)"
        )
    elif isinstance(error, redis.exceptions.OutOfMemoryError) or says("OOM", "used memory > 'maxmemory'"):
        why = "is at its memory limit and refuses new requests; raise maxmemory"
        result = BrokerOutOfMemory(f"Redis at {address} {why}")
    elif isinstance(error, redis.exceptions.ReadOnlyError) or says("READONLY", "MASTERDOWN"):
        result = BrokerUnavailable(f"Redis at {address} is a replica: {text}")
    elif isinstance(error, redis.exceptions.NoPermissionError) or says(*_FORBIDDEN):
        result = NotPermitted(f"the user of REDIS_URL {address} lacks a permission: {text.strip()}; {_RULES}")
    elif says("WRONGTYPE") and says("script"):
        result = another_type(address)
    elif _code(error) in ("TRYAGAIN", "CLUSTERDOWN") or says(*_PASSING):
        result = BrokerUnavailable(f"Redis at {address} refuses for now: {text}")
    return result
