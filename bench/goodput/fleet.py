"""A fleet in virtual time: sessions send their turns, engines work; a contender decides who gets what."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from bench.goodput.engine import Engine
from bench.goodput.work import SPEED, Request, Session
from streamfleet.common.protocol import LANES


class Contender(Protocol):
    """A way to choose. The fleet tells it what happens, and it calls `Fleet.give` and `Fleet.interrupt`."""

    async def begin(self, fleet: Fleet) -> None: ...
    async def sent(self, request: Request) -> None: ...
    async def room(self, engine: Engine) -> None: ...
    async def ended(self, engine: Engine, request: Request, in_time: bool, /) -> None: ...
    async def late(self, request: Request, /) -> None: ...
    async def timer(self, what: Any, /) -> None: ...


class Fleet:
    """The engines, and what happens to them.

    Args:
        contender: decides who gets what.
        sessions: the work.
        workers, slots: number of engines, and of the slots of each.
        seconds, warm_s: length of the run, and of its part that is not counted.

    Attributes:
        requests: all that were sent.
        given: when engines took which request, in order.
    """

    def __init__(
        self, contender: Contender, sessions: Sequence[Session], workers: int, seconds: float, warm_s: float,
        slots: int = SPEED.slots,
    ) -> None:  # fmt: skip
        self.contender, self.seconds, self.warm_s = contender, seconds, warm_s
        self.engines = [Engine(number, SPEED, slots) for number in range(workers)]
        self.now_s, self.requests, self.given = 0.0, list[Request](), list[tuple[float, Request]]()
        self._events: list[tuple[float, int, str, Any]] = []
        self._count, self._plans, self._before = 0, Counter[Engine](), dict[str, float]()
        for session in sessions:
            self.at(session.at_s, "send", (session, 0, 0))
        self.at(warm_s, "warm", None)

    def at(self, at_s: float, what: str, about: Any) -> None:
        """Plan an event."""
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, what, about))

    async def run(self) -> Fleet:
        """Run to the end."""
        await self.contender.begin(self)
        while self._events and self._events[0][0] <= self.seconds:
            self.now_s, _, what, about = heapq.heappop(self._events)
            await getattr(self, f"_{what}")(about)
        self.now_s = self.seconds
        return self

    def give(self, engine: Engine, request: Request) -> None:
        """A worker takes a request."""
        engine.take(request)
        self.given.append((self.now_s, request))
        self._plan(engine)

    def interrupt(self, engine: Engine, request: Request) -> None:
        """A request gives way, and goes on later."""
        engine.abort(request, self.now_s)
        request.interrupted += 1
        self._plan(engine)

    def tokens_per_s(self) -> dict[str, float]:
        """Output tokens a second since the warm-up, by lane."""
        seconds = self.seconds - self.warm_s
        return {lane: (tokens - self._before[lane]) / seconds for lane, tokens in self._made().items()}

    def _made(self) -> dict[str, float]:
        for engine in self.engines:
            engine.until(self.now_s)
        return {lane: sum(engine.tokens[lane] for engine in self.engines) for lane in LANES}

    async def _warm(self, _: None) -> None:
        self._before = self._made()

    async def _send(self, about: tuple[Session, int, int]) -> None:
        session, number, history = about
        deadline_s = self.now_s + session.slack_s + 1.3 * session.turns[number].output * SPEED.full_step
        request = Request(session, number, history, self.now_s, deadline_s)
        self.requests.append(request)
        self.at(deadline_s, "late", request)
        await self.contender.sent(request)

    def _plan(self, engine: Engine) -> None:
        if (read_s := engine.next_prompt(self.now_s)) is not None:
            self.at(read_s, "read", engine)
        self._plans[engine] += 1
        if (end_s := engine.next_end(self.now_s)) is not None:
            self.at(end_s, "end", (engine, self._plans[engine]))

    async def _read(self, engine: Engine) -> None:
        engine.read(self.now_s)
        self._plan(engine)

    async def _end(self, about: tuple[Engine, int]) -> None:
        engine, plan = about
        if self._plans[engine] != plan:
            return
        for request in engine.ended(self.now_s):
            engine.held.discard(request)
            request.over, request.done_s = True, self.now_s
            await self.contender.ended(engine, request, True)
            self._next(request, request.turn.output)
        self._plan(engine)
        await self.contender.room(engine)

    def _next(self, request: Request, output: int) -> None:
        if request.number + 1 < len(request.session.turns):
            history = request.history + request.turn.new + output
            self.at(self.now_s + request.turn.pause_s, "send", (request.session, request.number + 1, history))

    async def _late(self, request: Request) -> None:
        if request.over:
            return
        request.over = True
        engine = next((engine for engine in self.engines if request in engine.held), None)
        if engine is None:
            await self.contender.late(request)
        else:
            engine.abort(request, self.now_s)
            self._plan(engine)
            await self.contender.ended(engine, request, False)
            await self.contender.room(engine)
        self._next(request, 0)

    async def _timer(self, about: Any) -> None:
        await self.contender.timer(about)
