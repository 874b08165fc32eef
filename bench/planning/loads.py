"""Loads that are predicted and then run, and their sizes. The measurement has seen none of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamfleet.common.protocol import Lane
from streamfleet.operator.plan.arrivals import Arrival, Traffic

SEED = 7


@dataclass(frozen=True)
class Load:
    """Traffic on a fleet.

    Attributes:
        name: its name.
        workers: number of workers.
        kinds: kinds of arrivals, each at random times of its own.
    """

    name: str
    workers: int
    kinds: tuple[Traffic, ...]

    def arrivals(self, seed: int, seconds: float) -> list[Arrival]:
        """Arrivals of all kinds, for so many seconds; the same for the same seed."""
        found = [
            arrival
            for place, kind in enumerate(self.kinds)
            for arrival in kind.arrivals(seed * 100 + place, round(kind.per_s * seconds * 2) + 50)
            if arrival.at_s < seconds
        ]
        return sorted(found, key=lambda arrival: arrival.at_s)


@dataclass(frozen=True)
class Sizes:
    """Sizes of one measurement.

    Attributes:
        speed: speed of the simulated engine, as a multiple of its profile. Its steps stay above 5 ms, so that each has
            a timer, as in a real engine.
        prompt_tokens, output_tokens, rounds, up_to: sizes of the measured waves.
        seconds: length of each load.
        loads: loads that are predicted and run.
        sized: traffic for which the plan proposes a number of workers, which is then tried.
        late: allowed share of late requests, 0 to 1.
    """

    speed: float
    prompt_tokens: int
    output_tokens: int
    rounds: int
    up_to: int | None
    seconds: float
    loads: tuple[Load, ...]
    sized: Load | None = None
    late: float = 0.02


SHORT = Traffic(7.0, 100, 48, 3.0)
LOADS: Mapping[str, Load] = {
    load.name: load
    for load in (
        Load("half full", 1, (SHORT,)),
        Load("nearly full", 1, (Traffic(13.0, 100, 48, 4.0),)),
        Load("too much", 1, (Traffic(18.0, 100, 48, 3.0),)),
        Load("long answers", 2, (Traffic(14.0, 60, 128, 6.0),)),
        Load(
            "three lanes",
            2,
            (
                Traffic(4.0, 40, 16, 1.0, Lane.CRITICAL),
                Traffic(12.0, 150, 64, 5.0, Lane.NORMAL),
                Traffic(2.0, 100, 128, None, Lane.LOW),
            ),
        ),
        Load("tight deadlines", 3, (Traffic(28.0, 100, 48, 1.2),)),
        Load("long prompts", 4, (Traffic(25.0, 300, 32, 3.0, shape="fixed"),)),
    )
}
SIZED = Load("as many as planned", 0, (Traffic(24.0, 80, 64, 6.0),))
FULL_SIZES = Sizes(4.0, 128, 48, 2, None, 20.0, tuple(LOADS.values()), SIZED)
QUICK_SIZES = Sizes(4.0, 128, 32, 1, None, 8.0, tuple(LOADS[name] for name in ("half full", "too much", "three lanes")))

VLLM_SLOTS = 16
_VLLM_FULL = (
    Load("vLLM, half full", 1, (Traffic(2.2, 64, 32, 6.0),)),
    Load("vLLM, nearly full", 1, (Traffic(3.8, 64, 32, 6.0),)),
)
VLLM_FULL_SIZES = Sizes(1.0, 64, 32, 2, VLLM_SLOTS, 35.0, _VLLM_FULL)
VLLM_QUICK_SIZES = Sizes(1.0, 64, 24, 1, VLLM_SLOTS, 15.0, _VLLM_FULL[:1])


def sizes_of(engine: str, quick: bool) -> Sizes:
    """Sizes of the measurement of an engine."""
    if engine == "vllm":
        return VLLM_QUICK_SIZES if quick else VLLM_FULL_SIZES
    return QUICK_SIZES if quick else FULL_SIZES


def other_runs(load: Load, seconds: float, count: int = 30) -> Sequence[Sequence[Arrival]]:
    """Runs of the same load with other arrivals than the real ones, which nobody knows beforehand."""
    return [load.arrivals(SEED + 1 + at, seconds) for at in range(count)]
