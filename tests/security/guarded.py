"""A real server with the users of each role, and brokers that log in as one of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio

from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.operator.access_rules import Grant, Patterns, Role, grants, rules
from tests.broker import Broker
from tests.support.redis_server import RedisServer

QUEUE, OTHER = "q", "other"
PASSWORD = "let-me-in"
NOW = 1_700_000_000_000
"""Time that the scripts see, epoch ms, where a test moves it by hand."""


@dataclass(frozen=True)
class Guarded:
    """A server whose default user, for the tests alone, may do everything."""

    server: RedisServer

    def admin(self) -> redis.Redis:
        return redis.Redis.from_url(self.server.url, decode_responses=True)

    def url(self, role: Role | str) -> str:
        """URL at which a user of the role logs in."""
        return f"redis://{role}:{PASSWORD}@127.0.0.1:{self.server.port}/0"

    def enlist(self, role: Role, queue: str = QUEUE, *, every: bool = False) -> str:
        """Make the role's user, as `streamfleet acl` says; its URL."""
        return self.enlist_with(role, rules(role, Patterns(Keys(queue), every)))

    def enlist_with(self, role: Role, words: Sequence[str]) -> str:
        """Make the role's user with rules of the test's own; its URL."""
        with self.admin() as admin:
            admin.execute_command("ACL", "SETUSER", role, "reset", *words, f">{PASSWORD}")
        return self.url(role)

    @contextlib.asynccontextmanager
    async def broker(self, url: str = "", queue: str = QUEUE, now_ms: int | None = None) -> AsyncIterator[Broker]:
        """A queue's operations, as the user of the URL; by default as one who may do everything."""
        connection = Connection(url or self.server.url, patience_s=0)
        broker = Broker(connection, Keys(queue), QueueLimits(now_ms=now_ms, result_ttl_ms=60_000))
        try:
            yield broker
        finally:
            await broker.close()

    def emptied(self) -> Guarded:
        with self.admin() as admin:
            admin.flushall()
            admin.script_flush()
            admin.execute_command("ACL", "LOG", "RESET")
        return self


def rendered(some: Sequence[Grant]) -> list[str]:
    """Rules made of grants, as `rules` makes them."""
    first, *others = some
    return ["on", "-@all", *first.words(), *(f"({' '.join(grant.words())})" for grant in others)]


def narrowed(role: Role) -> list[tuple[str, list[str]]]:
    """The rules of a role with one command, or one key, of one grant taken away: what, and the rules.

    Lanes are alike, so that the last of them stands for all.
    """
    found = []
    whole = grants(role, Patterns(Keys(QUEUE)))
    others = {Role.OPERATOR: Role.WORKER, Role.GATEWAY: Role.PRODUCER}
    work = grants(others[role], Patterns(Keys(QUEUE))) if role in others else []
    for index, grant in enumerate(whole):
        if grant in work:
            continue  # what an operator has in common with workers, they need; and so gateways and producers
        less: list[tuple[str, Grant]] = []
        if len(grant.commands) > 1:
            less += [(c, Grant(tuple(x for x in grant.commands if x != c), grant.keys)) for c in grant.commands]
        if len(grant.keys) > 1:
            keys = [key for key in grant.keys if not re.search(r":(lane|ready):(critical|high|normal)(:firsts)?$", key)]
            less += [(k, Grant(grant.commands, tuple(x for x in grant.keys if x != k))) for k in keys]
        if len(grant.commands) == 1 and len(grant.keys) <= 1:
            less.append((grant.commands[0], Grant((), grant.keys)))
        found += [(f"{index}:{what}", rendered([*whole[:index], part, *whole[index + 1 :]])) for what, part in less]
    return found


async def allowed(broker: Broker, *words: Any) -> None:
    """Send a command; only a missing permission matters.

    Raises:
        NotPermitted: Redis refuses the user.
    """
    with contextlib.suppress(redis.exceptions.ResponseError):
        await broker.connection.command(*words)
