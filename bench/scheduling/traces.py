"""Seeded traces of arrivals, and the capacity of a simulated engine. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamfleet.worker.engine.simulated_profile import Profile


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    Attributes:
        at_s: time of arrival, seconds from the start.
        lane: its lane.
        tokens: output tokens that it asks for.
        ttl_ms: time after which its answer is worthless; None for never.
    """

    at_s: float
    lane: str
    tokens: int
    ttl_ms: int | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of request in a trace.

    Attributes:
        weight: frequency relative to the other kinds.
        lane: its lane.
        ttl_s: shortest and longest life; None for requests without a deadline.
        tokens: fewest and most output tokens.
    """

    weight: float
    lane: str
    ttl_s: tuple[float, float] | None
    tokens: tuple[int, int]

    def arrive(self, at_s: float, chance: random.Random) -> Arrival:
        """Returns one arrival of this kind."""
        tokens = chance.randint(*self.tokens)
        ttl_ms = None if self.ttl_s is None else round(chance.uniform(*self.ttl_s) * 1000)
        return Arrival(at_s, self.lane, tokens, ttl_ms)


@dataclass(frozen=True)
class Burst:
    """A period in which the rate is `factor` times the usual one."""

    start_s: float
    end_s: float
    factor: float


BURSTY_KINDS = (
    Kind(0.25, "normal", (1.5, 3.0), (16, 48)),
    Kind(0.35, "normal", (10.0, 20.0), (16, 48)),
    Kind(0.40, "normal", (60.0, 120.0), (16, 48)),
)
"""One lane, so that the order within it decides: a quarter is interactive, the rest can wait."""


def capacity_per_s(profile: Profile, slots: int, tokens: float, prompt_tokens: float) -> float:
    """Requests per second of one engine with all `slots` full, each of so many tokens, with no idle time."""
    request_s = tokens * profile.step_s(slots) / slots + prompt_tokens * profile.prefill_s_per_token
    return 1 / request_s


def bursty(seed: int, seconds: float, capacity: float) -> list[Arrival]:
    """On-off Poisson arrivals: periods of about 3 s at twice the capacity, and of about 7 s at three tenths of it.

    Args:
        seed: seed of all random numbers.
        seconds: length of the trace.
        capacity: requests per second that the fleet can carry.
    """
    chance = random.Random(seed)
    found: list[Arrival] = []
    at_s, busy = 0.0, False
    while at_s < seconds:
        mean_s, rate = (3.0, 2.0 * capacity) if busy else (7.0, 0.3 * capacity)
        until_s = min(seconds, at_s + mean_s * chance.uniform(0.5, 1.5))
        found += _of_kinds(_poisson(chance, at_s, until_s, rate), BURSTY_KINDS, chance)
        at_s, busy = until_s, not busy
    return found


def steady(seed: int, seconds: float, per_s: float, kinds: Sequence[Kind]) -> list[Arrival]:
    """Poisson arrivals at one rate."""
    chance = random.Random(seed)
    return _of_kinds(list(_poisson(chance, 0.0, seconds, per_s)), kinds, chance)


def diurnal(
    seed: int, hours: tuple[float, float], kinds: Sequence[Kind], per_s: float, bursts: Sequence[Burst]
) -> list[Arrival]:
    """A part of a day: quiet at 4 in the morning, busiest at 16, a wave between; bursts on top.

    Args:
        seed: seed of all random numbers.
        hours: first and last hour of the day.
        kinds: kinds of arrivals.
        per_s: mean of the day in requests per second, without bursts.
        bursts: bursts, by seconds of the day.

    Returns:
        Arrivals with times in seconds from the first hour.
    """
    chance = random.Random(seed)
    start_s, end_s = hours[0] * 3600, hours[1] * 3600

    def rate(at_s: float) -> float:
        factor = math.prod(burst.factor for burst in bursts if burst.start_s <= at_s < burst.end_s)
        return per_s * day_wave(at_s / 3600) * factor

    highest = per_s * 1.7 * max([1.0, *(burst.factor for burst in bursts)])
    times = [at_s - start_s for at_s in _thinned(chance, start_s, end_s, highest, rate)]
    return list(_of_kinds(times, kinds, chance))


def day_wave(hour: float) -> float:
    """Relative rate at an hour of the day: mean 1, from 0.3 at 4 to 1.7 at 16."""
    return 1 - 0.7 * math.cos((hour - 4) / 24 * 2 * math.pi)


def day_bursts(seed: int, each_s: float = 300.0, factor: float = 2.5) -> list[Burst]:
    """One burst in every second hour of a day, at a random time."""
    chance = random.Random(seed)
    starts = [hour * 3600 + chance.uniform(0, 7200 - each_s) for hour in range(0, 24, 2)]
    return [Burst(start, start + each_s, factor) for start in starts]


def by_lane(trace: Sequence[Arrival]) -> Mapping[str, int]:
    """Number of arrivals in each lane."""
    lanes: dict[str, int] = {}
    for arrival in trace:
        lanes[arrival.lane] = lanes.get(arrival.lane, 0) + 1
    return lanes


def _poisson(chance: random.Random, start_s: float, end_s: float, rate: float) -> Iterator[float]:
    at_s = start_s + chance.expovariate(rate)
    while at_s < end_s:
        yield at_s
        at_s += chance.expovariate(rate)


def _thinned(
    chance: random.Random, start_s: float, end_s: float, highest: float, rate: Callable[[float], float]
) -> Iterator[float]:
    """A Poisson process with a changing rate: one at the highest rate, of which the right share is kept."""
    for at_s in _poisson(chance, start_s, end_s, highest):
        if chance.random() * highest < rate(at_s):
            yield at_s


def _of_kinds(times: Iterator[float] | Sequence[float], kinds: Sequence[Kind], chance: random.Random) -> list[Arrival]:
    weights = [kind.weight for kind in kinds]
    return [chance.choices(kinds, weights)[0].arrive(at_s, chance) for at_s in times]
