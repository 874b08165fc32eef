"""What each verb costs a server, as values: by how many requests a call has, and how many there are in all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.core.rounds import Sample

VERBS = ("enqueue", "pull", "renew", "complete", "results")
"""Of a request's life; `results` is its notification and its result, read by the caller."""
CALLS = ("check_in", "take_turn", "empty_pull", "bench", "watch", "notices")
"""Of workers, whatever they run."""


@dataclass(frozen=True)
class CallCost:
    """CPU of one call.

    Attributes:
        points: (requests in the call, µs), by requests; measured.
    """

    points: tuple[tuple[int, float], ...]

    def us(self, requests: int) -> float:
        """Between the points on a straight line; beyond the last as between the last two."""
        points = self.points
        if len(points) == 1 or requests <= points[0][0]:
            return points[0][1]
        at = next((index for index in range(1, len(points)) if requests <= points[index][0]), len(points) - 1)
        (low, low_us), (high, high_us) = points[at - 1], points[at]
        return low_us + (high_us - low_us) * (requests - low) / (high - low)


@dataclass(frozen=True)
class Growing:
    """CPU of something that grows with what there is: µs for nothing, and for each."""

    fixed_us: float
    each_us: float

    def us(self, number: float) -> float:
        return self.fixed_us + self.each_us * number


@dataclass(frozen=True)
class Costs:
    """All that a simulation needs.

    Attributes:
        verbs: of each verb of `VERBS`, by its name, for one size of bodies.
        calls: µs of each call of `CALLS`.
        tick: one round of housekeeping, by requests that are held.
        forget: looking for workers that are gone, by workers.
        connection_us: a second, of an open connection that does nothing.
        alone_us: a second, of a server that does nothing.
        connections: that a worker has open.
    """

    verbs: Mapping[str, CallCost]
    calls: Mapping[str, float]
    tick: Growing
    forget: Growing
    connection_us: float
    alone_us: float
    connections: float = field(default=5.0)

    def us(self, verb: str, requests: int = 1) -> float:
        """Of one call."""
        return self.verbs[verb].us(requests) if verb in self.verbs else self.calls[verb]


def case(body: int, batch: int) -> str:
    """Name of a case: bodies of so many bytes, so many requests in a call."""
    return f"{body} B by {batch}"


def memory_case(body: int) -> str:
    """Name of the case that has the memory of requests of so many bytes."""
    return f"memory of {body} B"


def costs_of(
    requests: Mapping[str, Sequence[Sample]], upkeep: Mapping[str, Sequence[Sample]], body: int, batches: Sequence[int]
) -> Costs:
    """Medians of the rounds.

    Args:
        requests: samples by `case`, with "<verb> us" for each request.
        upkeep: samples of everything else, see `bench.shards.upkeep`.
        body: which size of bodies.
        batches: requests in a call.
    """

    def middle(samples: Sequence[Sample], figure: str) -> float:
        return median(sample[figure] for sample in samples)

    verbs = {
        verb: CallCost(
            tuple((batch, middle(requests[case(body, batch)], f"{verb} us") * batch) for batch in sorted(batches))
        )
        for verb in VERBS
    }
    few, many = upkeep["tick"], upkeep["tick, many running"]
    none, known = upkeep["forget"], upkeep["forget, many known"]
    alone, open_ = middle(upkeep["alone"], "us"), middle(upkeep["connections"], "us")
    return Costs(
        verbs=verbs,
        calls={name: middle(upkeep[name], "us") for name in CALLS},
        tick=growing(middle(few, "us"), middle(many, "us"), middle(many, "number")),
        forget=growing(middle(none, "us"), middle(known, "us"), middle(known, "number")),
        connection_us=max(0.0, open_ - alone) / middle(upkeep["connections"], "number"),
        alone_us=alone,
    )


def growing(none_us: float, many_us: float, number: float) -> Growing:
    """From what it takes with none and with so many; noise must not make it shrink."""
    return Growing(none_us, max(0.0, many_us - none_us) / number)
