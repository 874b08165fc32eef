"""A fleet in virtual time: sessions send their turns, engines work, workers die and come back; a contender decides who
gets what.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.core.rounds import percentile
from bench.locality.engine import Engine
from bench.locality.work import FLOOD, Request, Session, Speed

LEASE_S, DOWN_S, DEATHS_A_MINUTE = 11.0, 25.0, 0.1


class Contender(Protocol):
    """A way to choose. The fleet tells it what happens, and it calls `Fleet.give`."""

    async def begin(self, fleet: Fleet) -> None: ...
    async def sent(self, request: Request) -> None: ...
    async def room(self, engine: Engine) -> None: ...
    async def ended(self, engine: Engine, request: Request, in_time: bool, /) -> None: ...
    async def late(self, request: Request, /) -> None: ...
    async def lost(self, engine: Engine, requests: Sequence[Request]) -> None: ...
    async def back(self, engine: Engine) -> None: ...
    async def timer(self, what: Any, /) -> None: ...


@dataclass
class Figures:
    """Sums over a run behind its warm-up."""

    requests: int = 0
    missed: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    in_time: int = 0
    first_s: list[float] = field(default_factory=list)
    small_s: list[float] = field(default_factory=list)
    """As `first_s`, of tenants that flood nobody, and with the time until what was never answered was given up."""
    passed_s: list[float] = field(default_factory=list)
    sessions_s: list[tuple[float, float]] = field(default_factory=list)
    """Begin and duration of each session that has ended, s."""
    by_worker: dict[int, int] = field(default_factory=dict)

    def of(self, seconds: float) -> dict[str, float]:
        """The figures that are compared."""
        loads = sorted(self.by_worker.values()) or [0]
        return {
            "cached": self.cached / max(1, self.prompt),
            "missed": self.missed / max(1, self.requests),
            "tokens a second": self.output / seconds,
            "tokens in time a second": self.in_time / seconds,
            "first token p50, s": percentile(self.first_s or [0.0], 0.5),
            "first token p99, s": percentile(self.first_s or [0.0], 0.99),
            "small first token p99, s": percentile(self.small_s or [0.0], 0.99),
            "hottest worker": loads[-1] / max(1, sum(loads) / len(loads)),
            "passed over, longest s": max(self.passed_s, default=0.0),
        }


class Fleet:
    """The engines, and what happens to them.

    Args:
        contender: decides who gets what.
        sessions: the work.
        workers: number of workers.
        speed: speed of each.
        seconds, warm_s: length of the run, and of its part that is not counted.
        deaths: true if workers die.
    """

    def __init__(
        self, contender: Contender, sessions: Sequence[Session], workers: int, speed: Speed, seconds: float,
        warm_s: float, *, deaths: bool,
    ) -> None:  # fmt: skip
        self.contender, self.speed, self.seconds, self.warm_s = contender, speed, seconds, warm_s
        self.engines = [Engine(number, speed) for number in range(workers)]
        self.now_s, self.figures = 0.0, Figures()
        self._events: list[tuple[float, int, str, Any]] = []
        self._count, self._plans = 0, dict[Engine, int]()
        chance = random.Random(7)
        for session in sessions:
            self.at(session.at_s, "send", (session, 0, 0))
        for engine in self.engines if deaths else ():
            self.at(chance.expovariate(DEATHS_A_MINUTE / 60), "die", engine)

    def at(self, at_s: float, what: str, about: Any) -> None:
        """Plan an event."""
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, what, about))

    async def run(self) -> dict[str, float]:
        """Run to the end; returns the figures."""
        await self.contender.begin(self)
        while self._events and self._events[0][0] <= self.seconds:
            self.now_s, _, what, about = heapq.heappop(self._events)
            await getattr(self, f"_{what}")(about)
        return self.figures.of(self.seconds - self.warm_s)

    def give(self, engine: Engine, request: Request) -> None:
        """A worker takes a request."""
        engine.take(request)
        self._plan(engine)

    @property
    def _counts(self) -> bool:
        return self.now_s >= self.warm_s

    async def _send(self, about: tuple[Session, int, int]) -> None:
        session, number, history = about
        deadline_s = self.now_s + session.slack_s + 1.3 * session.turns[number].output * self.speed.full_step
        request = Request(session, number, history, self.now_s, deadline_s)
        self.figures.requests += self._counts
        self.at(deadline_s, "late", request)
        await self.contender.sent(request)

    def _plan(self, engine: Engine) -> None:
        if (read_s := engine.next_prompt(self.now_s)) is not None:
            request = engine.reading
            assert request is not None
            if self._counts:
                self.figures.prompt += request.prompt
                self.figures.cached += request.cached
            self.at(read_s, "read", (engine, engine.life))
        self._plans[engine] = self._plans.get(engine, 0) + 1
        if (end_s := engine.next_end(self.now_s)) is not None:
            self.at(end_s, "end", (engine, self._plans[engine]))

    async def _read(self, about: tuple[Engine, int]) -> None:
        engine, life = about
        if engine.life != life:
            return
        request = engine.reading
        engine.read(self.now_s)
        if request is not None and request.first_s is not None and self._counts:
            self.figures.first_s.append(request.first_s - request.sent_s)
            self._waited(request, request.first_s)
        self._plan(engine)

    def _waited(self, request: Request, until_s: float) -> None:
        if request.session.tenant != FLOOD:
            self.figures.small_s.append(until_s - request.sent_s)

    async def _end(self, about: tuple[Engine, int]) -> None:
        engine, plan = about
        if self._plans.get(engine) != plan:
            return
        for request in engine.ended(self.now_s):
            engine.held.discard(request)
            request.over = True
            if self._counts:
                self.figures.output += request.turn.output
                self.figures.in_time += request.turn.output
                self.figures.by_worker[engine.name] = self.figures.by_worker.get(engine.name, 0) + request.turn.output
            await self.contender.ended(engine, request, True)
            self._next(request, True)
        self._plan(engine)
        await self.contender.room(engine)

    def _next(self, request: Request, answered: bool) -> None:
        if request.number + 1 < len(request.session.turns):
            history = request.history + request.turn.new + (request.turn.output if answered else 0)
            self.at(self.now_s + request.turn.pause_s, "send", (request.session, request.number + 1, history))
        else:
            self.figures.sessions_s.append((request.session.at_s, self.now_s - request.session.at_s))

    async def _late(self, request: Request) -> None:
        if request.over:
            return
        request.over = True
        self.figures.missed += self._counts
        if request.first_s is None and self._counts:
            self._waited(request, self.now_s)
        engine = next((engine for engine in self.engines if request in engine.held), None)
        if engine is None:
            await self.contender.late(request)
        else:
            engine.abort(request, self.now_s)
            self._plan(engine)
            await self.contender.ended(engine, request, False)
            await self.contender.room(engine)
        self._next(request, False)

    async def _die(self, engine: Engine) -> None:
        lost = engine.die()
        self._plans[engine] = self._plans.get(engine, 0) + 1
        self.at(self.now_s + LEASE_S, "lease", (engine, lost))
        self.at(self.now_s + DOWN_S, "up", engine)

    async def _lease(self, about: tuple[Engine, list[Request]]) -> None:
        engine, lost = about
        await self.contender.lost(engine, [request for request in lost if not request.over])

    async def _up(self, engine: Engine) -> None:
        engine.alive = True
        self.at(
            self.now_s + random.Random(f"{engine.name} {engine.life}").expovariate(DEATHS_A_MINUTE / 60), "die", engine
        )
        await self.contender.back(engine)

    async def _timer(self, about: Any) -> None:
        await self.contender.timer(about)
