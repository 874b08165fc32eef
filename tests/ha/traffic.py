"""Users who enqueue and wait, and a log of what they were told: the side of a history that a judge can trust."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field

from streamfleet.common.errors import RequestLost, ResultTimeout, StreamfleetError
from streamfleet.common.results import Result
from streamfleet.producer import Ask, Client, Handle
from tests.integration.worker_process import chat

TENANTS = (None, "a", "b")
"""Tenants of the users, by turns."""


@dataclass
class Log:
    """Everything that the users know. Times are monotonic seconds.

    Attributes:
        accepted: id to when its enqueueing was acknowledged.
        answered: id to the result that its user got.
        answered_at: id to when.
        told: id to when its user was told that Redis lost it.
        errors: what enqueueing raised, by name; each was tried again with the same ids.
        unsure: ids whose enqueueing was given up unacknowledged at the end.
    """

    accepted: dict[str, float] = field(default_factory=dict)
    answered: dict[str, Result] = field(default_factory=dict)
    answered_at: dict[str, float] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    unsure: set[str] = field(default_factory=set)

    def gap_s(self, times: dict[str, float], since: float) -> float:
        """Longest silence that began after `since` or was under way then, in seconds."""
        marks = [since, *sorted(at for at in times.values() if at > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(marks)), default=float("inf"))


class Traffic:
    """Users of one client, each with a handful of requests at a time.

    Args:
        client: open, with notifications.
        users: how many.
        batch: requests of each at a time.
        answer_s: how long a user waits for an answer before going on without it.
        seconds: how long one request runs.
    """

    def __init__(
        self, client: Client, *, users: int, batch: int, answer_s: float = 10.0, seconds: float = 0.02
    ) -> None:
        self.log = Log()
        self._client, self._batch, self._answer_s, self._body = client, batch, answer_s, chat(seconds)
        prefix, numbers = secrets.token_hex(4), itertools.count(1)
        self._ids = (f"{prefix}-{number}" for number in numbers)
        self._stopping = False
        self._users = [
            asyncio.create_task(self._user(TENANTS[number % 3], f"s{number}" if number % 2 else None))
            for number in range(users)
        ]

    async def stop(self) -> None:
        """Let every user finish what it has begun."""
        self._stopping = True
        await asyncio.gather(*self._users)

    def check(self) -> None:
        """Raise what a user broke on."""
        for user in self._users:
            if user.done() and not user.cancelled():
                user.result()

    async def _user(self, tenant: str | None, session: str | None) -> None:
        while not self._stopping:
            each = range(self._batch)
            asks = [Ask(body=self._body, id=next(self._ids), tenant=tenant, session=session) for _ in each]
            handles = await self._enqueue(asks)
            with contextlib.suppress(ResultTimeout):
                await self._wait(handles)

    async def _wait(self, handles: list[Handle]) -> None:
        try:
            async for result in self._client.as_completed(handles, timeout=self._answer_s):
                self.log.answered[result.id] = result
                self.log.answered_at[result.id] = time.monotonic()
        except RequestLost as lost:
            self.log.told |= dict.fromkeys(lost.ids, time.monotonic())

    async def _enqueue(self, asks: list[Ask]) -> list[Handle]:
        """Nothing where it was given up at the end."""
        while True:
            try:
                handles = await self._client.enqueue_many(asks)
            except StreamfleetError as error:
                if not error.retryable:
                    raise
                self.log.errors[type(error).__name__] += 1
                if self._stopping:
                    self.log.unsure |= {str(ask.id) for ask in asks}
                    return []
            else:
                self.log.accepted |= dict.fromkeys((str(ask.id) for ask in asks), time.monotonic())
                return handles
