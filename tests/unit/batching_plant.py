"""A queue that is never empty and an engine that batches continuously, on paper: what a latency limit is tried on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from streamfleet.worker.latency_limit import LatencyLimit, Run

Step = Callable[[int], float]
Draw = Callable[[random.Random], int]


def affine(base_s: float, each_s: float) -> Step:
    """A step that costs something by itself, and something for each sequence."""
    return lambda running: base_s + each_s * running


def always(tokens: int) -> Draw:
    return lambda _chance: tokens


def one_of(*tokens: int) -> Draw:
    return lambda chance: chance.choice(tokens)


@dataclass
class Plant:
    """Runs as many requests as the limit allows, step by step.

    Attributes:
        limit: what is tried.
        step_s: seconds of a step with so many sequences.
        draw: tokens of the next request.
        slots: sequences that the engine holds.
        wanted: requests that there are at any moment.
        jitter: relative standard deviation of a step.
        expires_s: age at which a request is given up; its work is then told as `draw`'s largest could be.
        limits: the limit after each request; latencies: (tokens, seconds) of each.
    """

    limit: LatencyLimit
    step_s: Step
    draw: Draw
    slots: int = 256
    wanted: int = 1_000_000
    jitter: float = 0.0
    expires_s: float = float("inf")
    most_tokens: int = 0
    now: float = 1_000.0
    limits: list[int] = field(default_factory=list)
    latencies: list[tuple[int, float]] = field(default_factory=list)
    most_running: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(7)
        self._inside: list[tuple[Run, int, list[int]]] = []

    def run(self, requests: int) -> Plant:
        """Until so many more have ended."""
        until = len(self.limits) + requests
        while len(self.limits) < until:
            self._let_in()
            self.now += self.step_s(len(self._inside)) * max(0.1, self._chance.gauss(1, self.jitter))
            for entry in list(self._inside):
                self._advance(entry)
        return self

    def settled(self) -> list[int]:
        """The limits of the second half."""
        return self.limits[len(self.limits) // 2 :]

    def usual_latency_s(self) -> float:
        """Median run time, in the second half, of requests of the median length."""
        half = self.latencies[len(self.latencies) // 2 :]
        usual = median(tokens for tokens, _ in half)
        return median(seconds for tokens, seconds in half if tokens == usual)

    def _let_in(self) -> None:
        self.limit.bound(self.slots)
        assert 1 <= self.limit.value <= self.slots
        while len(self._inside) < min(self.limit.value, self.wanted):
            tokens = self.draw(self._chance)
            self._inside.append((self.limit.started(self.now), tokens, [tokens]))
        self.most_running = max(self.most_running, len(self._inside))

    def _advance(self, entry: tuple[Run, int, list[int]]) -> None:
        run, tokens, left = entry
        left[0] -= 1
        if left[0] <= 0:
            self.limit.finished(run, tokens, self.now)
        elif self.now - run.began_s >= self.expires_s:
            self.limit.stopped(run, self.most_tokens, self.now)
        else:
            return
        self._inside.remove(entry)
        self.limits.append(self.limit.value)
        self.latencies.append((tokens, self.now - run.began_s))


def right_limit(step_s: Step, usual_tokens: float, target_s: float, slots: int = 256) -> int:
    """Most requests at once with which one of the usual length keeps the target; at least 1."""
    return max([1, *(count for count in range(1, slots + 1) if usual_tokens * step_s(count) <= target_s)])
