"""An engine in virtual time: it reads one prompt after the other, decodes in steps, and keeps a prefix cache.

Least recently used first, as vLLM's; by whole sessions and system prompts, not by blocks.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from bench.locality.work import Request, Speed

CACHE_TOKENS = 256_000
PREFETCH = 2


@dataclass(eq=False)
class Engine:
    """One worker with its engine.

    Attributes:
        name: its number.
        speed: its speed.
        held: requests that it has, with those that wait in it.
        alive: false while it is dead.
        life: number of its start.
    """

    name: int
    speed: Speed
    held: set[Request] = field(default_factory=set)
    alive: bool = True
    life: int = 0
    reading: Request | None = None
    waiting: list[Request] = field(default_factory=list)
    _decoding: list[tuple[float, int, Request]] = field(default_factory=list)
    _steps: float = 0.0
    _at_s: float = 0.0
    _cache: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _used: int = 0
    _order: int = 0

    @property
    def room(self) -> int:
        return self.speed.slots + PREFETCH - len(self.held) if self.alive else 0

    def found(self, request: Request) -> int:
        """Tokens of its prompt that are in the cache."""
        system, own = f"p{request.session.system}", f"s{request.session.name}"
        if system not in self._cache:
            return 0
        history = min(self._cache.get(own, 0), request.history) if request.history else 0
        return request.session.system_tokens + history

    def take(self, request: Request) -> None:
        self.held.add(request)
        self.waiting.append(request)

    def next_prompt(self, now_s: float) -> float | None:
        """Begin to read a prompt; returns when it is read, None if nothing waits or one is being read."""
        self._pass(now_s)
        while self.reading is None and self.waiting and len(self._decoding) < self.speed.slots:
            request = self.waiting.pop(0)
            if request not in self.held:
                continue
            request.cached, self.reading = self.found(request), request
            self._use(f"p{request.session.system}", request.session.system_tokens)
            self._drop(f"s{request.session.name}")
            request.kept = request.history + request.turn.new + request.turn.output
            self._used += request.kept
            self._shrink()
            return now_s + (request.prompt - request.cached) * self.speed.prompt_s
        return None

    def read(self, now_s: float) -> None:
        """The prompt is read: it decodes from now on."""
        request, self.reading, self._at_s = self.reading, None, now_s
        if request is not None and request in self.held:
            self._order += 1
            request.decoded_at = self._steps + request.turn.output
            heapq.heappush(self._decoding, (request.decoded_at, self._order, request))
            if request.first_s is None:
                request.first_s = now_s + self.speed.step(len(self._decoding))

    def next_end(self, now_s: float) -> float | None:
        """Time at which the next request ends if nothing changes; None while it reads, or if none runs."""
        self._pass(now_s)
        if self.reading is not None or not self._decoding:
            return None
        return now_s + max(0.0, self._decoding[0][0] - self._steps) * self.speed.step(len(self._decoding))

    def ended(self, now_s: float) -> list[Request]:
        """Requests that have all their tokens by now."""
        self._pass(now_s)
        done = []
        while self._decoding and self._decoding[0][0] <= self._steps + 1e-6:
            done.append(heapq.heappop(self._decoding)[2])
            self._keep(done[-1], done[-1].kept)
        return done

    def abort(self, request: Request, now_s: float) -> None:
        """Its deadline has passed."""
        self._pass(now_s)
        self.held.discard(request)
        if request in self.waiting:
            self.waiting.remove(request)
        elif request is self.reading:
            self._keep(request, 0)
        else:
            self._decoding = [row for row in self._decoding if row[2] is not request]
            heapq.heapify(self._decoding)
            self._keep(request, request.history + request.turn.new)

    def die(self) -> list[Request]:
        """Everything in it is gone; returns what it held."""
        lost = [*self.held]
        self.alive, self.reading, self.life = False, None, self.life + 1
        self._used = 0
        for part in (self.held, self.waiting, self._decoding, self._cache):
            part.clear()
        return lost

    def _pass(self, now_s: float) -> None:
        if self.reading is None and self._decoding:
            self._steps += (now_s - self._at_s) / self.speed.step(len(self._decoding))
        self._at_s = now_s

    def _keep(self, request: Request, tokens: int) -> None:
        self._used -= request.kept
        request.kept = 0
        if tokens and not request.session.shared:
            self._use(f"s{request.session.name}", tokens)
            self._shrink()

    def _use(self, name: str, tokens: int) -> None:
        self._drop(name)
        self._cache[name] = tokens
        self._used += tokens

    def _drop(self, name: str) -> None:
        self._used -= self._cache.pop(name, 0)

    def _shrink(self) -> None:
        while self._used > CACHE_TOKENS and self._cache:
            name, tokens = next(iter(self._cache.items()))
            over = self._used - CACHE_TOKENS
            if tokens <= over or name[0] == "p":
                self._drop(name)
            else:
                self._cache[name] -= over
                self._used -= over
