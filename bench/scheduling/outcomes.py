"""What became of requests, as their result hashes say, and what is made of that. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.core.series import thinned

FIELDS = ("status", "lane", "enqueued_ms", "queued_ms", "waited_ms", "finished_ms", "first_token_ms")
"""Of a result hash, as `Outcome.read` takes them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended. Times are Redis's, in epoch ms; spans in ms; None where it did not come so far.

    Attributes:
        status: terminal status; empty when there is no result.
        lane: its lane.
        enqueued_ms: when its entry was added.
        claimed_ms: when a worker took it.
        started_ms: when that worker handed it to the engine.
        finished_ms: when it ended.
        first_token_ms: when its first token came.
    """

    status: str
    lane: str
    enqueued_ms: float
    claimed_ms: float | None
    started_ms: float | None
    finished_ms: float
    first_token_ms: float | None

    @classmethod
    def read(cls, values: Sequence[bytes | None]) -> Outcome:
        """From an HMGET of FIELDS."""
        status, lane = ((value or b"").decode() for value in values[:2])
        enqueued, queued, waited, finished, first = (None if value is None else float(value) for value in values[2:])
        claimed = None if enqueued is None or queued is None else enqueued + queued
        started = None if claimed is None or waited is None else claimed + waited
        first_token = None if started is None or first is None else started + first
        return cls(status, lane, enqueued or 0.0, claimed, started, finished or 0.0, first_token)

    def missed(self, ttl_ms: float | None) -> bool:
        """Whether it came too late: it succeeded after its deadline, or not at all."""
        if self.status != "succeeded":
            return True
        return ttl_ms is not None and self.finished_ms - self.enqueued_ms > ttl_ms


def cdf(values: Sequence[float]) -> list[float]:
    """Sorted and thinned: the n-th of N points is not exceeded by about n/N of the values."""
    return [round(value, 4) for value in thinned(sorted(values))]


def gaps(times_ms: Sequence[float], together_ms: float) -> list[float]:
    """From the beginning of each bunch of times to that of the next, in ms.

    Args:
        times_ms: in any order.
        together_ms: a time so soon after the one before belongs to the same bunch.
    """
    ordered = sorted(times_ms)
    starts = [at for before, at in pairwise([-math.inf, *ordered]) if at - before > together_ms]
    return [later - earlier for earlier, later in pairwise(starts)]


def picks_in_order(outcomes: Sequence[Outcome]) -> list[str]:
    """Lanes of the requests that workers took, in the order of taking, for as long as every lane had some left.

    Args:
        outcomes: of every request of every lane that is looked at.
    """
    picks = sorted((item.claimed_ms, item.lane) for item in outcomes if item.claimed_ms is not None)
    last = {lane: claimed_ms for claimed_ms, lane in picks}
    until_ms = min(last.values(), default=0.0)
    return [lane for claimed_ms, lane in picks if claimed_ms < until_ms]


def shares(picks: Sequence[str]) -> Mapping[str, float]:
    """Per cent of the picks that each lane got."""
    return {lane: 100 * picks.count(lane) / len(picks) for lane in sorted(set(picks))}


def windowed_shares(picks: Sequence[str], lane: str, window: int) -> list[float]:
    """Per cent of a lane in one window of picks after the other; what does not fill a window is left out."""
    full = range(0, len(picks) - window + 1, window)
    return [100 * sum(pick == lane for pick in picks[start : start + window]) / window for start in full]
