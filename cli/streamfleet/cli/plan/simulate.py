"""A fleet on one queue in virtual time. Pure.

As the pull script and the workers do it: two idle workers watch, the others sit on a bench; an arrival goes to the one
that has watched for longest, which keeps its watch as long as it has room; then the first of the bench takes its place.
A worker that was full pulls as soon as it has room. So the workers are not evenly full, neither here nor there. What is
past its deadline is dropped when it is picked, or ended where it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from streamfleet.cli.plan.arrivals import Arrival
from streamfleet.cli.plan.batch import Batch, Job
from streamfleet.cli.plan.lanes import Lanes
from streamfleet.cli.plan.profile import EngineProfile

WATCHERS = 2


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated.

    Attributes:
        profile: of every worker's engine.
        workers: how many.
        prefetch, batch_size: settings of the workers.
        shares, patience_s: settings of the queue.
    """

    profile: EngineProfile
    workers: int
    prefetch: int = 2
    batch_size: int = 0
    shares: tuple[int, int, int, int] = (0, 0, 100, 50)
    patience_s: float = 300.0


@dataclass(slots=True)
class Fate:
    """What became of a request; spans in seconds from its arrival, None where it did not come so far.

    Attributes:
        waited_s: until its engine got it.
        first_token_s: until its first token.
        total_s: until it was answered.
    """

    waited_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run.

    Attributes:
        arrivals: what came.
        fates: what became of each, in the same order.
        ended_s: when the last had ended.
        slot_s: seconds of slots in which something ran.
    """

    arrivals: Sequence[Arrival]
    fates: Sequence[Fate]
    ended_s: float
    slot_s: float


class Simulation:
    """One run of a fleet. `run` it once.

    Args:
        fleet: who works.
        arrivals: in order of time.
    """

    def __init__(self, fleet: Fleet, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals
        self._pickup_s = fleet.profile.pickup_ms / 1000
        self._workers = [Batch(fleet.profile, fleet.prefetch, fleet.batch_size) for _ in range(fleet.workers)]
        idle = range(fleet.workers)
        self._watch, self._bench = deque(idle[:WATCHERS]), deque(idle[WATCHERS:])
        self._full: set[int] = set()
        self._lanes = Lanes(fleet.shares, fleet.patience_s)
        self._fates = [Fate() for _ in arrivals]
        self._events: list[tuple[float, int]] = []
        self._late: list[tuple[float, int, int, Job]] = []
        self._scheduled_s = [float("inf")] * fleet.workers
        self._now_s = 0.0

    def run(self) -> Run:
        """From the first arrival until the last request has ended."""
        at = 0
        while True:
            comes_s = self._arrivals[at].at_s + self._pickup_s if at < len(self._arrivals) else float("inf")
            happens_s = self._events[0][0] if self._events else float("inf")
            late_s = self._late[0][0] if self._late else float("inf")
            self._now_s = now_s = min(comes_s, happens_s, late_s)
            if now_s == float("inf"):
                break
            if comes_s == now_s:  # before steps of the same moment: what comes together begins together
                self._arrive(at)
                at += 1
            elif happens_s == now_s:  # before a deadline of the same moment: an answer in time is in time
                _, worker = heappop(self._events)
                if self._workers[worker].due_s == now_s:
                    self._advance(worker)
            else:
                self._end_late()
        ends_s = [item.at_s + (fate.total_s or 0.0) for item, fate in zip(self._arrivals, self._fates, strict=True)]
        return Run(
            self._arrivals, self._fates, max(ends_s, default=0.0), sum(worker.slot_s for worker in self._workers)
        )

    def _arrive(self, at: int) -> None:
        arrival = self._arrivals[at]
        due_s = None if arrival.deadline_s is None else arrival.at_s + arrival.deadline_s
        self._lanes.add(arrival.lane, at, arrival.at_s, due_s)
        if self._watch:
            self._pull(self._watch.popleft())

    def _pull(self, worker: int) -> None:
        """Take what there is room for; whoever has room left waits for more, in the place that is free."""
        batch = self._workers[worker]
        room = batch.room
        while room > 0 and self._lanes:
            self._claim(worker)
            room = batch.room
        self._schedule(worker)
        if room <= 0:
            self._full.add(worker)
        elif len(self._watch) < WATCHERS:
            self._watch.append(worker)
        else:
            self._bench.append(worker)
        if len(self._watch) < WATCHERS and self._bench:
            self._watch.append(self._bench.popleft())

    def _claim(self, worker: int) -> None:
        place = self._lanes.pick()
        arrival = self._arrivals[place]
        due_s = None if arrival.deadline_s is None else arrival.at_s + arrival.deadline_s
        if due_s is not None and due_s <= self._now_s:
            return
        job = Job(place, arrival, arrival.prompt_tokens + arrival.output_tokens)
        self._fates[place].waited_s = self._now_s - arrival.at_s
        self._workers[worker].give(job, self._now_s)
        if due_s is not None:
            heappush(self._late, (due_s, place, worker, job))

    def _advance(self, worker: int) -> None:
        batch = self._workers[worker]
        done, joined = batch.advance(self._now_s)
        for job in done:
            self._fates[job.place].total_s = self._now_s - job.arrival.at_s
        for job in joined:
            self._fates[job.place].first_token_s = batch.first_token_s - job.arrival.at_s
        if done:
            self._has_room(worker)
        self._schedule(worker)

    def _end_late(self) -> None:
        _, _, worker, job = heappop(self._late)
        if not job.gone:
            self._workers[worker].take_out(job, self._now_s)
            self._has_room(worker)
            self._schedule(worker)

    def _has_room(self, worker: int) -> None:
        """One that was full looks for more; the others wait to be told."""
        if worker in self._full and self._workers[worker].room > 0:
            self._full.remove(worker)
            self._pull(worker)

    def _schedule(self, worker: int) -> None:
        due_s = self._workers[worker].due_s
        if due_s < self._scheduled_s[worker] or self._scheduled_s[worker] <= self._now_s:
            self._scheduled_s[worker] = due_s
            if due_s < float("inf"):
                heappush(self._events, (due_s, worker))
