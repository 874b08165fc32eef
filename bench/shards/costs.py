"""Costs of each verb on a server, as values: by requests in a call, and by requests in total. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.core.rounds import Sample

VERBS = ("enqueue", "pull", "renew", "complete", "results")
"""Of a request's life; `results` is its notification and its result, read by the caller."""
CALLS = ("heartbeat", "acquire_housekeeping_lock", "empty_pull", "bench", "watch", "notices")
"""Of workers, whatever they run."""
LONE_CALLS = ("heartbeat", "acquire_housekeeping_lock", "empty_pull", "PING")
LONE_VERBS = ("enqueue", "pull", "renew", "complete")
"""Also measured as calls that find the server asleep, with `LONE` before their names."""
FLEET_BODY = 500
"""Bytes of the bodies of requests that come alone, and of the fleets that are measured."""
LONE_PAUSE_S = 0.01
"""Before a lone call: with longer pauses a call costs hardly more."""
LONE, BESIDE = "lone ", ", beside others"
"""Beginning of the names of lone calls; ending of those while another process works, which takes the caches of whoever
sleeps."""


@dataclass(frozen=True)
class CallCost:
    """CPU time of one call.

    Attributes:
        points: measured pairs (requests in the call, µs), sorted by requests.
    """

    points: tuple[tuple[int, float], ...]

    def us(self, requests: int) -> float:
        """Interpolated between the points; beyond the last one extrapolated from the last two."""
        points = self.points
        if len(points) == 1 or requests <= points[0][0]:
            return points[0][1]
        at = next((index for index in range(1, len(points)) if requests <= points[index][0]), len(points) - 1)
        (low, low_us), (high, high_us) = points[at - 1], points[at]
        return low_us + (high_us - low_us) * (requests - low) / (high - low)


@dataclass(frozen=True)
class Growing:
    """CPU time that grows with a number: µs at zero, and µs for each."""

    fixed_us: float
    each_us: float

    def us(self, number: float) -> float:
        return self.fixed_us + self.each_us * number


@dataclass(frozen=True)
class Costs:
    """All that a simulation needs.

    Attributes:
        verbs: costs of each verb of `VERBS`, by its name, for one size of bodies.
        calls: µs of each call of `CALLS`.
        tick: one round of housekeeping, by number of held requests.
        forget: the search for workers that are gone, by number of workers.
        connection_us: µs a second of an open, idle connection.
        alone_us: µs a second of an idle server.
        woken_us: µs more of a call that finds the server asleep, whose caches are cold by then, by its name;
            "PING" is for all calls that are no scripts.
        connections: number of open connections of a worker.
    """

    verbs: Mapping[str, CallCost]
    calls: Mapping[str, float]
    tick: Growing
    forget: Growing
    connection_us: float
    alone_us: float
    woken_us: Mapping[str, float]
    connections: float = field(default=5.0)

    def woken(self, verb: str) -> float:
        """µs more of a call that finds the server asleep."""
        return self.woken_us.get(verb, self.woken_us["PING"])

    def us(self, verb: str, requests: int = 1) -> float:
        """CPU µs of one call."""
        return self.verbs[verb].us(requests) if verb in self.verbs else self.calls[verb]


def case(body: int, batch: int) -> str:
    """Name of a case: bodies of so many bytes, and so many requests in a call."""
    return f"{body} B by {batch}"


def memory_case(body: int) -> str:
    """Name of the case with the memory of requests of so many bytes."""
    return f"memory of {body} B"


def costs_of(
    requests: Mapping[str, Sequence[Sample]],
    upkeep: Mapping[str, Sequence[Sample]],
    body: int,
    batches: Sequence[int],
    beside: str = "",
) -> Costs:
    """Medians of the rounds.

    Args:
        requests: samples by `case`, with "<verb> us" for each request.
        upkeep: samples of all other calls, see `bench.shards.upkeep`.
        body: size of bodies.
        batches: requests in a call.
        beside: `BESIDE` if workers and callers share the server's machine.
    """

    def middle(samples: Sequence[Sample], figure: str) -> float:
        return median(sample[figure] for sample in samples)

    verbs = {
        verb: CallCost(
            tuple((batch, middle(requests[case(body, batch)], f"{verb} us") * batch) for batch in sorted(batches))
        )
        for verb in VERBS
    }
    alone, open_ = middle(upkeep["alone"], "us"), middle(upkeep["connections"], "us")
    pause_us = alone * LONE_PAUSE_S  # the server's own work in a pause is no cost of the call behind it
    few, many = upkeep["tick"], upkeep["tick, many running"]
    none, known = upkeep["forget"], upkeep["forget, many known"]
    calls = {
        name: max(0.0, middle(upkeep[f"{LONE}{name}{beside}"], "us") - pause_us - middle(upkeep[name], "us"))
        for name in LONE_CALLS
    }
    lone = requests[f"{LONE}requests{beside}"]
    of_verbs = {
        verb: max(0.0, middle(lone, f"{verb} us") - pause_us - middle(requests[case(FLEET_BODY, 1)], f"{verb} us"))
        for verb in LONE_VERBS
    }
    return Costs(
        verbs=verbs,
        calls={name: middle(upkeep[name], "us") for name in CALLS},
        tick=growing(middle(few, "us"), middle(many, "us"), middle(many, "number")),
        forget=growing(middle(none, "us"), middle(known, "us"), middle(known, "number")),
        connection_us=max(0.0, open_ - alone) / middle(upkeep["connections"], "number"),
        alone_us=alone,
        woken_us={**calls, **of_verbs, "tick": calls["empty_pull"]},
    )


def growing(none_us: float, many_us: float, number: float) -> Growing:
    """From the cost at zero and at `number`; never below zero, because noise must not make it shrink."""
    return Growing(none_us, max(0.0, many_us - none_us) / number)
