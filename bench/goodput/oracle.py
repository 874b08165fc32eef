"""A router that pushes, without Redis: it knows each cache, each load and each length."""

from __future__ import annotations

import heapq
from typing import Any

from bench.goodput.engine import Engine
from bench.goodput.fleet import Fleet
from bench.goodput.work import SPEED, Request
from streamfleet.worker.credit import PREFETCH

PROMPT_WEIGHT = 25.0
"""Weight of a second of reading against one of waiting; it finds most in caches with it."""


class Oracle:
    """A queue for each worker, by deadline: the least of waiting and reading; an idle worker takes back what is quicker
    with it.
    """

    async def begin(self, fleet: Fleet) -> None:
        self._fleet, self._count = fleet, 0
        self._queues: dict[Engine, list[tuple[float, int, Request]]] = {engine: [] for engine in fleet.engines}
        self._work = dict.fromkeys(fleet.engines, 0.0)
        self._costs: dict[Request, tuple[Engine, float]] = {}

    async def sent(self, request: Request) -> None:
        def cost(engine: Engine) -> float:
            return self._work[engine] + PROMPT_WEIGHT * self._reading(engine, request)

        engine = min(self._fleet.engines, key=cost)
        self._count += 1
        heapq.heappush(self._queues[engine], (request.deadline_s, self._count, request))
        self._placed(engine, request)
        await self.room(engine)

    async def room(self, engine: Engine) -> None:
        queue, took = self._queues[engine], False
        while self._room(engine) > 0 and queue:
            request = heapq.heappop(queue)[2]
            if not request.over:
                self._fleet.give(engine, request)
                took = True
        if self._room(engine) > 0 and not took and (more := self._from_others(engine)):
            self._fleet.give(engine, more)

    async def ended(self, _: Engine, request: Request, __: bool) -> None:
        self._left(request)

    async def late(self, request: Request) -> None:
        self._left(request)

    async def timer(self, _: Any) -> None:
        return

    def _room(self, engine: Engine) -> int:
        return engine.slots + PREFETCH - len(engine.held)

    def _reading(self, engine: Engine, request: Request) -> float:
        return (request.prompt - engine.found(request)) * SPEED.prompt_s

    def _placed(self, engine: Engine, request: Request) -> None:
        cost = self._reading(engine, request) + request.turn.output / SPEED.tokens_per_s
        self._costs[request] = engine, cost
        self._work[engine] += cost

    def _left(self, request: Request) -> None:
        if (known := self._costs.pop(request, None)) is not None:
            self._work[known[0]] -= known[1]

    def _from_others(self, engine: Engine) -> Request | None:
        """A request that an idle worker takes from the longest queue, if it is done sooner here."""
        other = max(self._queues, key=lambda each: len(self._queues[each]))
        queue = self._queues[other]
        while queue and queue[0][2].over:
            heapq.heappop(queue)
        if not queue or other is engine or self._room(other) > 0:
            return None
        request = queue[0][2]
        more = self._reading(engine, request) - self._reading(other, request)
        if self._work[other] - self._work[engine] - PROMPT_WEIGHT * more <= 0.2:
            return None
        heapq.heappop(queue)
        self._left(request)
        self._placed(engine, request)
        return request
