"""A fleet of engines in virtual time, in front of a queue: the real scripts on a real Redis, or an oracle.

An engine decodes all its sequences step by step, and a step takes longer with more of them. While it reads a prompt, it
decodes nothing. A request that is still running at its deadline is stopped. A freed slot pulls at
once. Redis takes no time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

SLOTS = 32
STEP_MS, SEQUENCE_MS, PROMPT_MS = 8.0, 0.5, 0.1
"""A step, what each sequence adds to it, and a token of a prompt."""


def step_ms(sequences: int) -> float:
    """Duration of a step."""
    return STEP_MS + SEQUENCE_MS * sequences


WORK_MS = step_ms(SLOTS) / SLOTS
"""Time of a whole engine that a token takes, with all slots taken."""


@dataclass(eq=False, slots=True)
class Ask:
    """A request.

    Attributes:
        number: its name.
        at: time of its arrival, ms.
        prompt, output, limit: tokens; the output is known to nobody but the oracle.
        deadline: ms; infinite for none.
        lane: its lane.
        tenant: its tenant; empty for none.
        picked, done: times; None before.
    """

    number: int
    at: float
    prompt: int
    output: int
    limit: int
    deadline: float = math.inf
    lane: str = "normal"
    tenant: str = ""
    picked: float | None = None
    done: float | None = None

    @property
    def work_ms(self) -> float:
        """Time of a whole engine that it takes."""
        return self.prompt * PROMPT_MS + self.output * WORK_MS

    def run_ms(self, sequences: int) -> float:
        """Its own time in an engine that runs so many sequences."""
        return self.prompt * PROMPT_MS + self.output * step_ms(sequences)

    @property
    def in_time(self) -> bool:
        return self.done is not None and self.done <= self.deadline


class Queue(Protocol):
    """Source from which the engines pull."""

    async def add(self, ask: Ask, now: float) -> None: ...

    async def pull(self, engine: int, room: int, now: float) -> Sequence[Ask]: ...

    async def ended(self, engine: int, ask: Ask, now: float, *, in_vain: bool) -> None:
        """A run has ended, or was stopped at its deadline."""
        ...

    async def keep_house(self, now: float) -> None:
        """Called once a second."""
        ...


@dataclass(slots=True)
class Engine:
    """One engine.

    Attributes:
        at: time of its state.
        reads_ms: time that it has yet to read prompts.
        decoded: tokens that a sequence has decoded that was there from the beginning.
        running: for each ask the number of these at which it ends.
    """

    number: int
    at: float = 0.0
    reads_ms: float = 0.0
    decoded: float = 0.0
    running: list[tuple[float, int, Ask]] = field(default_factory=list)

    def until(self, now: float) -> None:
        reads_ms = min(self.reads_ms, now - self.at)
        self.reads_ms -= reads_ms
        if self.running:
            self.decoded += (now - self.at - reads_ms) / step_ms(len(self.running))
        self.at = now

    def start(self, ask: Ask) -> None:
        self.reads_ms += ask.prompt * PROMPT_MS
        heapq.heappush(self.running, (self.decoded + ask.output, ask.number, ask))

    @property
    def ends_at(self) -> float:
        """Time of the next end, if nothing else happens."""
        if not self.running:
            return math.inf
        left = max(0.0, self.running[0][0] - self.decoded)
        return self.at + self.reads_ms + left * step_ms(len(self.running))

    @property
    def late_at(self) -> float:
        return min((ask.deadline for _, _, ask in self.running), default=math.inf)

    def take(self, ask: Ask) -> None:
        self.running = [row for row in self.running if row[2] is not ask]
        heapq.heapify(self.running)


async def run(queue: Queue, engines: int, asks: Iterable[Ask], start: float) -> None:
    """Let the engines serve all asks, which are in order of their arrival from `start` on, ms."""
    fleet = [Engine(number, at=start) for number in range(engines)]
    coming = list(asks)
    at, house_at = 0, start

    async def fill(engine: Engine, now: float) -> None:
        while (room := SLOTS - len(engine.running)) > 0:
            pulled = await queue.pull(engine.number, room, now)
            if not pulled:
                return
            for ask in pulled:
                ask.picked = now
                engine.start(ask)

    while at < len(coming) or any(engine.running for engine in fleet):
        arrives = coming[at].at if at < len(coming) else math.inf
        busiest = min(fleet, key=lambda engine: min(engine.ends_at, engine.late_at))
        now = min(arrives, house_at, busiest.ends_at, busiest.late_at)
        for engine in fleet:
            engine.until(now)
        if now == house_at:
            await queue.keep_house(now)
            house_at += 1_000
        elif now == arrives:
            await queue.add(coming[at], now)
            at += 1
            await fill(min(fleet, key=lambda engine: len(engine.running)), now)
        else:
            late = now == busiest.late_at
            ask = next(row[2] for row in busiest.running if not late or row[2].deadline <= now)
            busiest.take(ask)
            ask.done = None if late else now
            await queue.ended(busiest.number, ask, now, in_vain=late)
            await fill(busiest, now)
