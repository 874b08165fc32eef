"""Results of a round, as figures: for each way, and for the pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.core.rounds import Sample, percentile
from bench.engine.batch import Batch

DIRECT, GATEWAY = "direct", "gateway"
WHOLE, FIRST = "whole_ms", "first_ms"


@dataclass(frozen=True)
class Answers:
    """Answers of one way in a round: a batch, single requests, and the same streamed."""

    batch: Batch
    whole: Batch
    streamed: Batch

    def times(self) -> dict[str, list[float]]:
        """Time of each single request's answer, and of its first token; ms."""
        return {
            WHOLE: [row.total_ms for row in self.whole.rows],
            FIRST: [row.first_ms for row in self.streamed.rows if row.first_ms is not None],
        }

    def sample(self) -> dict[str, float]:
        """Name to figure."""
        return {
            "tokens_per_s": self.batch.figures()["tokens_per_s"],
            **{f"{name}_p50": median(values) for name, values in self.times().items()},
            **{f"{name}_p95": percentile(values, 0.95) for name, values in self.times().items()},
            "front_ms": self.whole.front_s * 1000 / len(self.whole.rows),
        }


@dataclass
class Found:
    """Results of all rounds.

    Attributes:
        samples: one for each round of each way; the gateway's has the added time, the median of the round's pairs.
        pairs: for each kind of time, the gateway's minus the direct way's; ms, all rounds.
    """

    samples: Mapping[str, list[Sample]] = field(default_factory=lambda: {DIRECT: [], GATEWAY: []})
    pairs: Mapping[str, list[float]] = field(default_factory=lambda: {WHOLE: [], FIRST: []})

    def add(self, answers: Mapping[str, Answers]) -> None:
        """Add a round."""
        gateway, direct = answers[GATEWAY], answers[DIRECT]
        own, sample = direct.times(), gateway.sample()
        for name, values in gateway.times().items():
            longer = _longer(values, own[name])
            self.pairs[name] += longer
            sample[f"added_{name}"] = median(longer)
        self.samples[DIRECT].append(direct.sample())
        self.samples[GATEWAY].append(sample)


def _longer(mine: Sequence[float], other: Sequence[float]) -> list[float]:
    return [one - two for one, two in zip(mine, other, strict=True)]
