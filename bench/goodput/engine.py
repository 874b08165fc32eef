"""An engine in virtual time: it reads one prompt after the other, decodes in steps, and keeps a prefix cache.

Least recently used first, as vLLM's; by whole sessions and system prompts, not by blocks. The most urgent lane's prompt
is read first, at the end of a step. An interrupted request goes on where it was: its tokens are read again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field

from bench.goodput.work import Request, Speed
from streamfleet.common.protocol import Lane
from streamfleet.worker.engine.base import Capacity

CACHE_TOKENS = 256_000
NEARLY = 1e-6


@dataclass(eq=False)
class Engine:
    """One worker's engine.

    Attributes:
        name: its number.
        speed: its speed.
        slots: sequences that it decodes together.
        held: requests that it has, with those that wait in it.
        reading: the request whose prompt is read.
        waiting: requests whose prompts are not read yet.
        tokens: output tokens so far, by lane.
    """

    name: int
    speed: Speed
    slots: int
    held: set[Request] = field(default_factory=set)
    reading: Request | None = None
    waiting: list[Request] = field(default_factory=list)
    tokens: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _decoding: list[tuple[float, int, Request]] = field(default_factory=list)
    _lanes: Counter[str] = field(default_factory=Counter)
    _steps: float = 0.0
    _at_s: float = 0.0
    _step_ends_s: float = 0.0
    _cache: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _used: int = 0
    _order: int = 0

    def capacity(self) -> Capacity:
        return Capacity(self.slots)

    def found(self, request: Request) -> int:
        """Tokens of its prompt that are in the cache."""
        system, own = f"p{request.session.system}", f"s{request.session.name}"
        if system not in self._cache:
            return 0
        return min(request.prompt, request.session.system_tokens + self._cache.get(own, 0))

    def take(self, request: Request) -> None:
        self.held.add(request)
        self.waiting.append(request)

    def next_prompt(self, now_s: float) -> float | None:
        """Begin to read a prompt; returns when it is read, None if nothing waits or one is being read."""
        self.until(now_s)
        if self.reading is not None or not self.waiting or len(self._decoding) >= self.slots:
            return None
        request = self.reading = min(self.waiting, key=lambda each: Lane(each.session.lane).number)
        self.waiting.remove(request)
        rest = math.ceil(self._steps - NEARLY) - self._steps if self._decoding else 0.0
        self._step_ends_s = now_s + max(0.0, rest) * self.speed.step(len(self._decoding))
        self._decode(max(0.0, rest))
        found = self.found(request)
        request.read, request.cached = request.read + request.prompt, request.cached + found
        self._use(f"p{request.session.system}", request.session.system_tokens)
        self._drop(f"s{request.session.name}")
        request.kept = request.history + request.turn.new + request.turn.output
        self._used += request.kept
        self._shrink()
        return self._step_ends_s + (request.prompt - found) * self.speed.prompt_s

    def read(self, now_s: float) -> None:
        """The prompt is read: it decodes from now on."""
        request, self.reading, self._at_s = self.reading, None, now_s
        if request is not None and request in self.held:
            self._order += 1
            self._lanes[request.session.lane] += 1
            request.decoded_at = self._steps + request.turn.output - request.made
            heapq.heappush(self._decoding, (request.decoded_at, self._order, request))
            if request.first_s is None:
                request.first_s = now_s + self.speed.step(len(self._decoding))

    def next_end(self, now_s: float) -> float | None:
        """Time at which the next request ends if nothing changes; None while it reads, or if none runs."""
        self.until(now_s)
        if not self._decoding:
            return None
        left = self._decoding[0][0] - self._steps
        if self.reading is not None:
            return max(now_s, self._step_ends_s) if left <= NEARLY else None
        return now_s + max(0.0, left) * self.speed.step(len(self._decoding))

    def ended(self, now_s: float) -> list[Request]:
        """Requests that have all their tokens by now."""
        self.until(now_s)
        done = []
        while self._decoding and self._decoding[0][0] <= self._steps + NEARLY:
            done.append(heapq.heappop(self._decoding)[2])
            self._lanes[done[-1].session.lane] -= 1
            self._keep(done[-1], done[-1].kept)
        return done

    def abort(self, request: Request, now_s: float) -> None:
        """Stop a request; it has so many tokens by now."""
        self.until(now_s)
        self.held.discard(request)
        if request in self.waiting:
            self.waiting.remove(request)
        elif request is self.reading:
            self._keep(request, 0)
        else:
            request.made = max(request.made, math.floor(request.turn.output - (request.decoded_at - self._steps)))
            self._lanes[request.session.lane] -= 1
            self._decoding = [row for row in self._decoding if row[2] is not request]
            heapq.heapify(self._decoding)
            self._keep(request, request.history + request.turn.new + request.made)

    def until(self, now_s: float) -> None:
        """Go on to a time."""
        if self.reading is None and self._decoding:
            self._decode((now_s - self._at_s) / self.speed.step(len(self._decoding)))
        self._at_s = now_s

    def _decode(self, steps: float) -> None:
        self._steps += steps
        for lane, number in self._lanes.items():
            self.tokens[lane] += steps * number

    def _keep(self, request: Request, tokens: int) -> None:
        self._used -= request.kept
        request.kept = 0
        if tokens:
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
