"""Routers that push, without Redis: a static hash, and an oracle that knows each cache, each load and each length."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import Any

from bench.locality.engine import Engine
from bench.locality.fleet import Fleet
from bench.locality.work import Request

PROMPT_WEIGHT = 25.0
"""Weight of a second of reading against one of waiting; the oracle finds most with it."""


class Push:
    """A queue for each worker, by deadline; dead workers are known after a lease, as in the queue."""

    def __init__(self) -> None:
        self._queues: dict[Engine, list[tuple[float, int, Request]]] = {}
        self._count = 0

    async def begin(self, fleet: Fleet) -> None:
        self.fleet, self.known = fleet, dict.fromkeys(fleet.engines, True)
        self._queues = {engine: [] for engine in fleet.engines}

    def choose(self, request: Request) -> Engine:
        raise NotImplementedError

    def placed(self, engine: Engine, request: Request) -> None:
        """A request waits for a worker from now on."""

    def left(self, request: Request) -> None:
        """It waits or runs no more."""

    def take_from_others(self, _: Engine) -> Request | None:
        """A request that an idle worker takes from another."""
        return None

    async def sent(self, request: Request) -> None:
        engine = self.choose(request)
        self._count += 1
        heapq.heappush(self._queues[engine], (request.deadline_s, self._count, request))
        self.placed(engine, request)
        await self.room(engine)

    async def room(self, engine: Engine) -> None:
        queue, took = self._queues[engine], False
        while engine.room > 0 and queue:
            request = heapq.heappop(queue)[2]
            if not request.over:
                self.fleet.give(engine, request)
                took = True
        if engine.room > 0 and not took and (more := self.take_from_others(engine)):
            self.fleet.give(engine, more)

    async def ended(self, _: Engine, request: Request, __: bool) -> None:
        self.left(request)

    async def late(self, _: Request) -> None:
        return

    async def lost(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.known[engine] = engine.alive
        queue, self._queues[engine] = self._queues[engine], []
        for request in [*(row[2] for row in queue), *requests]:
            if not request.over:
                await self.sent(request)

    async def back(self, engine: Engine) -> None:
        self.known[engine] = True
        await self.room(engine)

    async def timer(self, _: Any) -> None:
        return


class StaticHash(Push):
    """A session's worker is the first in an order of its own that is known to live; nobody else takes its requests."""

    def choose(self, request: Request) -> Engine:
        order = list(self.fleet.engines)
        random.Random(request.session.name).shuffle(order)
        return next((engine for engine in order if self.known[engine]), order[0])


class Oracle(Push):
    """The least of waiting and reading, by exact knowledge; an idle worker takes back what is quicker with it."""

    async def begin(self, fleet: Fleet) -> None:
        await super().begin(fleet)
        self._work = dict.fromkeys(fleet.engines, 0.0)
        self._costs: dict[Request, tuple[Engine, float]] = {}

    def _cost(self, engine: Engine, request: Request) -> tuple[float, float]:
        speed = self.fleet.speed
        reading = (request.prompt - engine.found(request)) * speed.prompt_s
        return reading, request.turn.output * speed.full_step / speed.slots

    def choose(self, request: Request) -> Engine:
        alive = [engine for engine in self.fleet.engines if engine.alive] or self.fleet.engines
        return min(alive, key=lambda each: self._work[each] + PROMPT_WEIGHT * self._cost(each, request)[0])

    def placed(self, engine: Engine, request: Request) -> None:
        cost = sum(self._cost(engine, request))
        self._costs[request] = engine, cost
        self._work[engine] += cost

    def left(self, request: Request) -> None:
        if (known := self._costs.pop(request, None)) is not None:
            self._work[known[0]] -= known[1]

    async def late(self, request: Request) -> None:
        self.left(request)

    def take_from_others(self, engine: Engine) -> Request | None:
        other = max(self._queues, key=lambda each: len(self._queues[each]))
        queue = self._queues[other]
        while queue and queue[0][2].over:
            heapq.heappop(queue)
        if not queue or other is engine or other.room > 0:
            return None
        request = queue[0][2]
        cost = sum(self._cost(engine, request))
        gain = self._work[other] - self._work[engine] - PROMPT_WEIGHT * (cost - self._costs[request][1])
        if other.alive and gain <= 0.2:
            return None
        heapq.heappop(queue)
        self.left(request)
        self._costs[request] = engine, cost
        self._work[engine] += cost
        return request

    async def lost(self, engine: Engine, requests: Sequence[Request]) -> None:
        for request in [*(row[2] for row in self._queues[engine]), *requests]:
            self.left(request)
        await super().lost(engine, requests)
