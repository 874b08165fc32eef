"""A queue, a fleet that grows and shrinks, and a trace: a simulation event by event. Pure.

Workers are alike and have slots; a request takes its tokens at one speed, independent of the requests beside it. More
urgent lanes go first, within a lane the earliest deadline, as in pull.lua. A request past its deadline is dropped, or
ended if it runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.autoscaling.policies import STEP_S, Scaler, View
from bench.scheduling.traces import Arrival
from streamfleet.common.protocol import LANES
from streamfleet.operator.exporter.view import pressure_s
from streamfleet.operator.snapshot import LaneView

SLOTS = 4
TOKENS_PER_S = 20.0
START_S = 60.0
PATIENCE_MS = 300_000
DEADLINE_FAR_S = 1e12
_RANK = {str(lane): at for at, lane in enumerate(LANES)}


@dataclass(frozen=True, slots=True)
class Moment:
    """State at one time, in seconds from the start."""

    at_s: float
    ready: int
    starting: int
    waiting: int
    missed: int


@dataclass
class Outcome:
    """Result of a policy.

    Attributes:
        requests, missed: totals; a request is missed if its deadline passed before it was done.
        missed_by_lane: the same for each lane.
        worker_s: seconds of all workers together, from their start to their end.
        most: largest number of workers at once.
        moments: one for each `STEP_S`.
    """

    requests: int = 0
    missed: int = 0
    missed_by_lane: dict[str, int] = field(default_factory=dict)
    worker_s: float = 0.0
    most: int = 0
    moments: list[Moment] = field(default_factory=list)

    @property
    def missed_percent(self) -> float:
        return 100 * self.missed / max(1, self.requests)

    @property
    def worker_hours(self) -> float:
        return self.worker_s / 3600


class Fleet:
    """Workers that take `START_S` to start; those told to stop take no more requests and end after their last one."""

    def __init__(self, workers: int) -> None:
        self.ready = workers
        self._starting: list[float] = []
        self.running = 0

    @property
    def having(self) -> int:
        return self.ready + len(self._starting)

    @property
    def free(self) -> int:
        return self.ready * SLOTS - self.running

    def next_ready_s(self) -> float:
        return self._starting[0] if self._starting else float("inf")

    def one_is_ready(self) -> None:
        heapq.heappop(self._starting)
        self.ready += 1

    def resize(self, now_s: float, workers: int) -> None:
        for _ in range(workers - self.having):
            heapq.heappush(self._starting, now_s + START_S)
        # Workers that still start are stopped first: they hold no request.
        for _ in range(self.having - workers):
            if self._starting:
                self._starting.remove(max(self._starting))
            else:
                self.ready -= 1


class Pace:
    """Pace of a queue, as the housekeeping measures it (lua/policies/pace_measure.lua), but at the policy's looks."""

    def __init__(self) -> None:
        self._at_ms = self._taken = 0
        self._waiting = False
        self._took = self._left = 0.0

    def look(self, now_ms: int, taken: int, *, waiting: bool) -> float | None:
        """Requests taken a second, by their number so far; None while it is not known."""
        passed, more = now_ms - self._at_ms, taken - self._taken
        if waiting and self._waiting:
            rate = self._left / self._took if self._took else 1.0
            fade = math.exp(-passed / min(120_000.0, max(10_000.0, 100 / max(rate, 1e-6))))
            self._took, self._left = self._took * fade + passed, self._left * fade + more
        self._at_ms, self._taken, self._waiting = now_ms, taken, waiting
        return max(1.0, self._left) * 1000 / self._took if self._took else None


class Simulation:
    """One simulated run.

    Args:
        trace: arrivals.
        scaler: chooses the number of workers.
        workers: number of workers at the start.
    """

    def __init__(self, trace: Sequence[Arrival], scaler: Scaler, workers: int) -> None:
        self._trace, self._scaler, self._fleet = trace, scaler, Fleet(workers)
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in LANES]  # most urgent first
        self._ends: list[float] = []
        self._pace = Pace()
        self._taken = 0
        self._outcome = Outcome(requests=len(trace))

    def run(self) -> Outcome:
        """Run from the first arrival until the last request has ended."""
        looked_s = 0.0
        for now_s in self._times():
            self._account(now_s - looked_s)
            self._look(now_s)
            looked_s = now_s
        return self._outcome

    def _times(self) -> Iterator[float]:
        """Yields each time at which the policy looks, after all events up to then."""
        at, look_s = 0, STEP_S
        trace, fleet = self._trace, self._fleet
        while at < len(trace) or self._ends or any(self._waiting):
            comes_s = trace[at].at_s if at < len(trace) else float("inf")
            ends_s = self._ends[0] if self._ends else float("inf")
            now_s = min(comes_s, ends_s, fleet.next_ready_s(), look_s)
            if now_s == look_s:
                yield look_s
                look_s += STEP_S
            elif now_s == ends_s:
                heapq.heappop(self._ends)
                fleet.running -= 1
            elif now_s == comes_s:
                self._arrive(at)
                at += 1
            else:
                fleet.one_is_ready()
            self._dispatch(now_s)

    def _arrive(self, at: int) -> None:
        arrival = self._trace[at]
        life_ms = PATIENCE_MS if arrival.ttl_ms is None else arrival.ttl_ms
        heapq.heappush(self._waiting[_RANK[arrival.lane]], (_enqueued_ms(arrival) + life_ms, at))

    def _dispatch(self, now_s: float) -> None:
        while self._fleet.free > 0 and (lane := next(filter(None, self._waiting), None)):
            _, at = heapq.heappop(lane)
            self._taken += 1
            arrival = self._trace[at]
            due_s = DEADLINE_FAR_S if arrival.ttl_ms is None else arrival.at_s + arrival.ttl_ms / 1000
            end_s = now_s + arrival.tokens / TOKENS_PER_S
            if end_s > due_s:
                self._outcome.missed += 1
                by_lane = self._outcome.missed_by_lane
                by_lane[arrival.lane] = by_lane.get(arrival.lane, 0) + 1
            if due_s > now_s:
                self._fleet.running += 1
                heapq.heappush(self._ends, min(end_s, due_s))

    def _account(self, passed_s: float) -> None:
        # A worker that is told to stop is paid for until its requests are done.
        busy = -(-self._fleet.running // SLOTS)
        self._outcome.worker_s += passed_s * max(self._fleet.having, busy)

    def _look(self, now_s: float) -> None:
        fleet, outcome = self._fleet, self._outcome
        view = self._view(now_s)
        fleet.resize(now_s, self._scaler.workers(now_s, fleet.having, view))
        outcome.most = max(outcome.most, fleet.having)
        waiting = view.outstanding - view.running
        outcome.moments.append(Moment(now_s, fleet.ready, fleet.having - fleet.ready, waiting, outcome.missed))

    def _view(self, now_s: float) -> View:
        """Returns the policy's view, by the exporter's own arithmetic."""
        waiting = sum(map(len, self._waiting))
        outstanding = waiting + self._fleet.running
        now_ms = round(now_s * 1000)
        per_second = self._pace.look(now_ms, self._taken, waiting=waiting > 0)
        late = pressure_s(list(self._lanes(now_ms)), per_second) if per_second else {}
        return View(
            self._fleet.ready,
            SLOTS,
            self._fleet.running,
            outstanding,
            outstanding / per_second if per_second else None,
            max(late.values(), default=None),
        )

    def _lanes(self, now_ms: int) -> Iterator[LaneView]:
        for lane, heap in zip(LANES, self._waiting, strict=True):
            in_order, size = sorted(heap), len(heap)
            places = sorted({step * (size - 1) // 16 for step in range(17)}) if heap else []
            ranked = [(place, *in_order[place]) for place in places]
            own = [(place, (ms - now_ms) / 1000) for place, ms, at in ranked if self._trace[at].ttl_ms is not None]
            yield LaneView(lane, size, size, 0, 0, None, None, deadlines=own, staged=size)


def _enqueued_ms(arrival: Arrival) -> int:
    return round(arrival.at_s * 1000)
