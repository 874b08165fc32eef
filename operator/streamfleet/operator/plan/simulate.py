"""A fleet on one queue in virtual time. Pure.

It follows pull.lua and the workers: two idle workers watch, the others are idle waiters. An arrival goes to the
longest watching worker, which keeps its watch while it has room; then the first idle waiter takes its place. A full
worker pulls as soon as it has room. So the load is uneven, as in a real fleet. Requests past their deadline are dropped
at the pick, or ended while they run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from streamfleet.common.protocol import LANES, SHARES, Lane
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.batch import Batch, Job
from streamfleet.operator.plan.profile import EngineProfile

WATCHERS = 2
WHOLE_PICK, MOST_CREDIT = 1000, 2000
"""Credit of a whole pick, and the largest credit that a lane saves."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated fleet.

    Attributes:
        profile: profile of every worker's engine.
        workers: number of workers.
        prefetch, batch_size: settings of the workers.
        shares, patience_s: settings of the queue.
    """

    profile: EngineProfile
    workers: int
    prefetch: int = 2
    batch_size: int = 0
    shares: tuple[int, ...] = SHARES
    patience_s: float = 300.0


@dataclass(slots=True)
class RequestTimes:
    """Outcome of a request; seconds from its arrival, None for steps that it did not reach.

    Attributes:
        waited_s: time until its engine got it.
        first_token_s: time until its first token.
        total_s: time until its answer.
    """

    waited_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run.

    Attributes:
        arrivals: the arrivals.
        times: outcome of each, in the same order.
        ended_s: time of the last end.
        slot_s: busy time of all slots, seconds.
    """

    arrivals: Sequence[Arrival]
    times: Sequence[RequestTimes]
    ended_s: float
    slot_s: float


class Lanes:
    """The waiting requests of all lanes, taken in the order of pull.lua.

    Strict priority between lanes, with a guaranteed share for some: each pick gives every waiting lane its share, and a
    lane that has saved up a whole pick goes first. Within a lane the earliest deadline, then the earlier arrival.

    Args:
        shares: picks per mille guaranteed to each lane.
        patience_s: default deadline for ranking, seconds from enqueueing.
    """

    def __init__(self, shares: Sequence[int], patience_s: float) -> None:
        self._shares, self._patience_s = tuple(shares), patience_s
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in LANES]
        self._credit = [0] * len(LANES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, lane: Lane, place: int, at_s: float, due_s: float | None) -> None:
        """Add a request.

        Args:
            lane: its lane.
            place: value that `pick` returns; it must grow with time.
            at_s: time of its arrival.
            due_s: its deadline; None for none.
        """
        heappush(self._waiting[lane.rank], (at_s + self._patience_s if due_s is None else due_s, place))
        self._count += 1

    def pick(self) -> int:
        """Take the next request; there must be one."""
        chosen = self._choose()
        for lane, waits in enumerate(self._waiting):
            self._credit[lane] = min(self._credit[lane] + self._shares[lane], MOST_CREDIT) if waits else 0
        self._credit[chosen] = max(0, self._credit[chosen] - WHOLE_PICK)
        self._count -= 1
        return heappop(self._waiting[chosen])[1]

    def _choose(self) -> int:
        waiting = [lane for lane, waits in enumerate(self._waiting) if waits]
        owed = [lane for lane in waiting if self._credit[lane] >= WHOLE_PICK]
        return max(owed, key=lambda lane: (self._credit[lane], -lane)) if owed else waiting[0]


class Simulation:
    """One run of a fleet. Call `run` once.

    Args:
        fleet: the fleet.
        arrivals: arrivals sorted by time.
    """

    def __init__(self, fleet: Fleet, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals
        self._pickup_s = fleet.profile.pickup_ms / 1000
        self._workers = [Batch(fleet.profile, fleet.prefetch, fleet.batch_size) for _ in range(fleet.workers)]
        idle = range(fleet.workers)
        self._watch, self._bench = deque(idle[:WATCHERS]), deque(idle[WATCHERS:])
        self._full: set[int] = set()
        self._lanes = Lanes(fleet.shares, fleet.patience_s)
        self._times = [RequestTimes() for _ in arrivals]
        self._events: list[tuple[float, int]] = []
        self._late: list[tuple[float, int, int, Job]] = []
        self._scheduled_s = [float("inf")] * fleet.workers
        self._now_s = 0.0

    def run(self) -> Run:
        """Simulate from the first arrival to the end of the last request."""
        at = 0
        while True:
            comes_s = self._arrivals[at].at_s + self._pickup_s if at < len(self._arrivals) else float("inf")
            happens_s = self._events[0][0] if self._events else float("inf")
            late_s = self._late[0][0] if self._late else float("inf")
            self._now_s = now_s = min(comes_s, happens_s, late_s)
            if now_s == float("inf"):
                break
            if comes_s == now_s:  # before steps of the same time, so that simultaneous arrivals start together
                self._arrive(at)
                at += 1
            elif happens_s == now_s:  # before deadlines of the same time, so that an answer at its deadline is in time
                _, worker = heappop(self._events)
                if self._workers[worker].due_s == now_s:
                    self._advance(worker)
            else:
                self._end_late()
        ends_s = [item.at_s + (each.total_s or 0.0) for item, each in zip(self._arrivals, self._times, strict=True)]
        return Run(
            self._arrivals, self._times, max(ends_s, default=0.0), sum(worker.slot_s for worker in self._workers)
        )

    def _arrive(self, at: int) -> None:
        arrival = self._arrivals[at]
        due_s = None if arrival.deadline_s is None else arrival.at_s + arrival.deadline_s
        self._lanes.add(arrival.lane, at, arrival.at_s, due_s)
        if self._watch:
            self._pull(self._watch.popleft())

    def _pull(self, worker: int) -> None:
        """Take requests while there is room; a worker with room left waits as a watcher or on the bench."""
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
        self._times[place].waited_s = self._now_s - arrival.at_s
        self._workers[worker].give(job, self._now_s)
        if due_s is not None:
            heappush(self._late, (due_s, place, worker, job))

    def _advance(self, worker: int) -> None:
        batch = self._workers[worker]
        done, joined = batch.advance(self._now_s)
        for job in done:
            self._times[job.place].total_s = self._now_s - job.arrival.at_s
        for job in joined:
            self._times[job.place].first_token_s = batch.first_token_s - job.arrival.at_s
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
        """Let a worker pull that was full and has room now; idle workers wait for arrivals."""
        if worker in self._full and self._workers[worker].room > 0:
            self._full.remove(worker)
            self._pull(worker)

    def _schedule(self, worker: int) -> None:
        due_s = self._workers[worker].due_s
        if due_s < self._scheduled_s[worker] or self._scheduled_s[worker] <= self._now_s:
            self._scheduled_s[worker] = due_s
            if due_s < float("inf"):
                heappush(self._events, (due_s, worker))
