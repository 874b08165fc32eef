"""The real scripts on a real Redis, in virtual time: with sessions, and as today, by deadline.

Workers pull when they have room, wait as they are told to, and are woken as Redis says: by arrivals and the wake
stream, and their own lists. The housekeeping runs once a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from math import inf
from typing import Any

from bench.locality.engine import Engine
from bench.locality.fleet import Fleet
from bench.locality.work import Request
from streamfleet.common.broker.types import Claim, Completion, Home, Role
from streamfleet.common.connection import Connection
from streamfleet.common.keys import GROUP, NOBODY, Keys
from streamfleet.common.limits import QueueLimits, Switch
from streamfleet.common.protocol import Status
from streamfleet.worker.housekeeping import SERVICES
from streamfleet.worker.pull import HANDED_MS
from streamfleet.worker.services.turn import take_turn
from tests.broker import Broker

LANE, SYSTEM_BYTES = "normal", 1_100


class Scripts:
    """A queue and its workers.

    Args:
        url: the server.
        sessions: true if requests name their sessions, and share beginnings of prompts.
        rank_by_program: the queue's setting.
    """

    def __init__(self, url: str, *, sessions: bool, rank_by_program: Switch = "off") -> None:
        self._connection, self._sessions, self._rank_by_program = Connection(url), sessions, rank_by_program
        self._keys = Keys(f"sessions-{rank_by_program}" if sessions else "none")
        self._requests: dict[str, Request] = {}
        self._claims: dict[Request, Claim] = {}
        self._roles: dict[Engine, Role] = {}
        self._arrived = False
        self.sent_count = 0
        self.pull_s: list[float] = []

    @property
    def _broker(self) -> Broker:
        now_ms = self._start_ms + round(self.fleet.now_s * 1000)
        limits = QueueLimits(now_ms=now_ms, rank_by_program=self._rank_by_program)
        return Broker(self._connection, self._keys, limits)

    async def begin(self, fleet: Fleet) -> None:
        self.fleet, self._start_ms = fleet, round(time.time() * 1000)
        await self._broker.ensure_groups()
        fleet.at(1.0, "timer", None)
        for engine in fleet.engines:
            await self._pull(engine)

    async def sent(self, request: Request) -> None:
        name, self.sent_count = f"r{self.sent_count}", self.sent_count + 1
        self._requests[name] = request
        now_ms = self._start_ms + round(self.fleet.now_s * 1000)
        body: dict[str, Any] = {"prompt": "hi", "max_tokens": 512}
        fields: tuple[Any, ...] = ("id", name)
        if request.deadline_s < inf:
            fields += ("deadline", self._start_ms + round(request.deadline_s * 1000))
        if self._sessions:
            body["prompt"] = f"{request.session.system:04d}" * (SYSTEM_BYTES // 4)
            fields += ("session", request.session.name)
        if request.session.tenant:
            fields += ("tenant", request.session.tenant)
        words = ("XADD", self._keys.lane(LANE), f"{now_ms}-*", *fields, "body", json.dumps(body))
        await self._connection.command(*words)
        self._arrived = True
        await self._wake()

    async def room(self, engine: Engine) -> None:
        if engine not in self._roles:  # others wait until they are woken
            await self._pull(engine)
            await self._wake()

    async def _pull(self, engine: Engine, *, owing: bool = False) -> None:
        self._roles.pop(engine, None)  # who waits longest is woken first, as Redis does
        self._arrived = False
        while (room := engine.room) > 0 or owing:
            began = time.perf_counter()
            pulled = await self._broker.pull(
                f"w{engine.name}", room, owing=owing,
                home=Home(str(engine.life), len(engine.held)),
            )  # fmt: skip
            self.pull_s.append(time.perf_counter() - began)
            owing = False
            for claim in pulled.claims:
                request = self._requests[claim.lease.request_id]
                self._claims[request] = claim
                if claim.passed_ms is not None:
                    self.fleet.figures.passed_s.append(claim.passed_ms / 1000)
                self.fleet.give(engine, request)
            if pulled.role is not Role.NONE:
                self._roles[engine] = pulled.role
                if pulled.role is Role.WATCHER:
                    self._watch(engine, 5.0 if pulled.soonest_ms is None else pulled.soonest_ms / 1000 + 0.001)
                return

    def _watch(self, engine: Engine, seconds: float) -> None:
        self._roles[engine] = Role.WATCHER
        self.fleet.at(self.fleet.now_s + seconds, "timer", (engine, len(self.pull_s)))

    async def _wake(self) -> None:
        """Let those pull that Redis wakes, until it wakes nobody."""
        while True:
            waiting = [each for each in self._roles if each.alive]
            watchers = [each for each in waiting if self._roles[each] is Role.WATCHER]
            waiters = [each for each in waiting if self._roles[each] is Role.WAITER]
            if watchers:
                words = ("XREADGROUP", "GROUP", GROUP, NOBODY, "NOACK", "STREAMS", self._keys.wake, ">")
                if self._arrived or await self._connection.command(*words):
                    await self._pull(watchers[0], owing=True)
                    continue
            if not waiters:
                return
            lists = [self._keys.wake_up(f"w{each.name}") for each in waiters]
            found = await self._connection.pipeline([("LPOP", key) for key in lists])
            woken = {each: token for each, token in zip(waiters, found, strict=True) if token}
            if not woken:
                return
            for engine, token in woken.items():
                if token == b"watch":
                    self._watch(engine, HANDED_MS / 1000)
                else:
                    await self._pull(engine, owing=True)

    async def ended(self, engine: Engine, request: Request, in_time: bool) -> None:
        claim = self._claims.pop(request)
        status = Status.SUCCEEDED if in_time else Status.EXPIRED
        await self._broker.complete(f"w{engine.name}", [Completion(claim.lease, status, {"response": "{}"}, "")])
        del self._requests[claim.lease.request_id]

    async def late(self, _: Request) -> None:
        return  # the housekeeping ends it

    async def lost(self, engine: Engine, requests: Sequence[Request]) -> None:
        leases = [self._claims.pop(request).lease for request in requests if request in self._claims]
        await self._broker.release(f"w{engine.name}", leases)
        await self._wake()

    async def back(self, engine: Engine) -> None:
        await self._pull(engine)
        await self._wake()

    async def timer(self, about: Any) -> None:
        if about is None:
            await self._broker.tend_waiting()
            await self._broker.expire()
            await take_turn(self._broker, SERVICES)
            await self._broker.pull("w0", 0)
            self.fleet.at(self.fleet.now_s + 1.0, "timer", None)
        elif self._roles.get(about[0]) is Role.WATCHER and about[0].alive:
            await self._pull(about[0], owing=True)
        await self._wake()

    async def close(self) -> None:
        await self._connection.close()
