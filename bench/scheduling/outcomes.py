"""Outcomes of requests, read from their result hashes, and statistics of them. Pure."""

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
    """Outcome of one request. Times are Redis's, in epoch ms; durations in ms; None for a step that it did not reach.

    Attributes:
        status: terminal status; empty if there is no result.
        lane: its lane.
        enqueued_ms: time at which its entry was added.
        claimed_ms: time at which a worker claimed it.
        started_ms: time at which that worker handed it to the engine.
        finished_ms: time of its end.
        first_token_ms: time until its first token.
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
        """Returns the outcome in the reply to an HMGET of FIELDS."""
        status, lane = ((value or b"").decode() for value in values[:2])
        enqueued, queued, waited, finished, first = (None if value is None else float(value) for value in values[2:])
        claimed = None if enqueued is None or queued is None else enqueued + queued
        started = None if claimed is None or waited is None else claimed + waited
        first_token = None if started is None or first is None else started + first
        return cls(status, lane, enqueued or 0.0, claimed, started, finished or 0.0, first_token)

    def missed(self, ttl_ms: float | None) -> bool:
        """True if it was late: it succeeded after its deadline, or did not succeed."""
        if self.status != "succeeded":
            return True
        return ttl_ms is not None and self.finished_ms - self.enqueued_ms > ttl_ms


def cdf(values: Sequence[float]) -> list[float]:
    """Sorted and thinned values: about n/N of the values do not exceed the n-th of N points."""
    return [round(value, 4) for value in thinned(sorted(values))]


def gaps(times_ms: Sequence[float], together_ms: float) -> list[float]:
    """Times from the beginning of each group of times to that of the next, in ms.

    Args:
        times_ms: in any order.
        together_ms: longest gap between two times of the same group.
    """
    ordered = sorted(times_ms)
    starts = [at for before, at in pairwise([-math.inf, *ordered]) if at - before > together_ms]
    return [later - earlier for earlier, later in pairwise(starts)]


def picks_in_order(outcomes: Sequence[Outcome]) -> list[str]:
    """Lanes of the claimed requests, in the order of claiming, until one lane runs empty.

    Args:
        outcomes: outcomes of every request of every lane.
    """
    picks = sorted((item.claimed_ms, item.lane) for item in outcomes if item.claimed_ms is not None)
    last = {lane: claimed_ms for claimed_ms, lane in picks}
    until_ms = min(last.values(), default=0.0)
    return [lane for claimed_ms, lane in picks if claimed_ms < until_ms]


def shares(picks: Sequence[str]) -> Mapping[str, float]:
    """Per cent of the picks for each lane."""
    return {lane: 100 * picks.count(lane) / len(picks) for lane in sorted(set(picks))}


def windowed_shares(picks: Sequence[str], lane: str, window: int) -> list[float]:
    """Per cent of a lane in successive windows of picks; the last picks that do not fill a window are left out."""
    full = range(0, len(picks) - window + 1, window)
    return [100 * sum(pick == lane for pick in picks[start : start + window]) / window for start in full]
