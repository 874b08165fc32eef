"""A fleet on one queue in virtual time. Pure.

It follows pull.lua and the workers: two idle workers watch, the others wait. An arrival goes to the
longest watching worker, which keeps its watch while it has room; then the first that waits takes its place. A full
worker pulls as soon as it has room. So the load is uneven, as in a real fleet. Requests past their deadline are dropped
at the pick, or ended while they run.

A worker's engine is that of `SimulatedEngine`: requests join and leave between steps, the prompts of joining requests
are read first (which delays all others), and the profile gives the duration of a step for each number of requests.
Between two joins or leaves nothing changes, so all steps in between are computed at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from streamfleet.common.protocol import LANES, SHARES, Lane
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.worker.credit import PREFETCH, Demand, Load, Typical, credit
from streamfleet.worker.engine.base import NO_DEADLINE_S, Capacity

WATCHERS = 2
WHOLE_PICK, MOST_CREDIT = 1000, 2000
"""Credit of a whole pick, and the largest credit that a lane saves."""
NEVER_S = math.inf
_EDGE = 1e-9
"""Tolerance for the end of a step, in steps."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated fleet.

    Attributes:
        profile: profile of every worker's engine.
        workers: number of workers.
        prefetch: number of requests that a worker holds beyond the slots.
        batch_size: setting of the workers.
        shares, patience_s: settings of the queue.
    """

    profile: EngineProfile
    workers: int
    prefetch: int = PREFETCH
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
        self._watch, self._waiting_workers = deque(idle[:WATCHERS]), deque(idle[WATCHERS:])
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
        """Take requests while there is room; a worker with room left waits as a watcher or by name."""
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
            self._waiting_workers.append(worker)
        if len(self._watch) < WATCHERS and self._waiting_workers:
            self._watch.append(self._waiting_workers.popleft())

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


@dataclass(slots=True)
class Job:
    """A request that a worker holds; times are seconds from the start.

    Attributes:
        place: index of its arrival.
        arrival: the arrival.
        tokens: tokens of KV cache that it needs in the end.
        joined: it runs; before, it waits in the engine.
        gone: it ended or was taken out.
    """

    place: int
    arrival: Arrival
    tokens: int
    joined: bool = False
    gone: bool = False

    @property
    def priority(self) -> tuple[int, int]:
        """Rank inside the engine, as of `EngineRequest`: lane, then deadline in seconds."""
        due_s = self.arrival.deadline_s
        return self.arrival.lane.rank, NO_DEADLINE_S if due_s is None else int(self.arrival.at_s + due_s)


class Batch:
    """A simulated worker.

    Args:
        profile: profile of its engine.
        prefetch: number of requests that it holds beyond the slots.
        batch_size: largest number of requests at once; 0 leaves it to the engine.

    Attributes:
        due_s: time of its next event; infinite while it is empty.
        slot_s: busy time of all its slots, up to the last `advance`.
    """

    def __init__(self, profile: EngineProfile, prefetch: int, batch_size: int) -> None:
        self.due_s = NEVER_S
        self.slot_s = 0.0
        self._profile, self._prefetch, self._batch_size = profile.engine, prefetch, batch_size
        self._capacity = Capacity(profile.engine.slots, profile.kv_tokens, profile.engine.max_model_len)
        self._typical = Typical()
        self._waiting: list[tuple[tuple[int, int], int, Job]] = []
        self._running: list[tuple[int, int, Job]] = []
        self._given = 0
        self._held = self._held_tokens = 0
        self._joined = self._joined_tokens = 0
        self._steps = 0
        self._steps_s: dict[int, float] = {}
        self._began_s = self._first_s = 0.0
        self._step_s = 1.0

    @property
    def room(self) -> int:
        """Number of requests that it would pull now."""
        load = Load(self._held, self._held, self._held_tokens)
        return credit(
            self._capacity,
            load,
            typical_tokens=self._typical.tokens,
            prefetch=self._prefetch,
            most=self._batch_size,
        )

    def give(self, job: Job, now_s: float) -> None:
        """Give it a request, which joins after the current step if there is a slot."""
        self._typical.saw(Demand(1, job.tokens))
        self._held += 1
        self._held_tokens += job.tokens
        self._given += 1
        heappush(self._waiting, (job.priority, self._given, job))
        if not self._running:
            self.due_s = now_s
        elif self._fits(job):
            self.due_s = min(self.due_s, self._step_end_s(now_s))

    def take_out(self, job: Job, now_s: float) -> None:
        """Remove a request at its deadline, waiting or running; the others continue with the next step."""
        self._leave(job)
        if job.joined:
            self.due_s = min(self.due_s, self._step_end_s(now_s))

    def advance(self, now_s: float) -> tuple[list[Job], list[Job]]:
        """Compute the steps up to `now_s`, which is `due_s`.

        Returns:
            The answered requests, and those that joined.
        """
        if self._running:
            taken = round((now_s - self._began_s - self._first_s) / self._step_s)
            self._steps += taken
            self.slot_s += self._joined * (now_s - self._began_s)
        done = []
        while self._running and (self._running[0][2].gone or self._running[0][0] <= self._steps):
            job = heappop(self._running)[2]
            if not job.gone:
                self._leave(job)
                done.append(job)
        joining = self._join()
        if not self._running:
            self.due_s = NEVER_S
            return done, joining
        self._began_s = now_s
        self._first_s = sum(job.arrival.prompt_tokens for job in joining) * self._profile.prefill_s_per_token
        self._step_s = self._seconds_of_a_step(max(1, self._joined))
        self.due_s = self._end_of(self._running[0][0] - self._steps)
        return done, joining

    def _seconds_of_a_step(self, running: int) -> float:
        """Duration of a step with so many requests, cached."""
        if running not in self._steps_s:
            self._steps_s[running] = self._profile.step_s(running)
        return self._steps_s[running]

    @property
    def first_token_s(self) -> float:
        """Time of the first token of the requests that joined last."""
        return self._end_of(1)

    def _join(self) -> list[Job]:
        """Let waiting requests join while they fit, most urgent first; none overtakes one that does not fit."""
        joining = []
        while self._waiting:
            job = self._waiting[0][2]
            if not job.gone:
                if self._joined and not self._fits(job):
                    break
                job.joined = True
                self._joined += 1
                self._joined_tokens += job.tokens
                heappush(self._running, (self._steps + job.arrival.output_tokens, job.place, job))
                joining.append(job)
            heappop(self._waiting)
        return joining

    def _fits(self, job: Job) -> bool:
        fits_tokens = self._joined_tokens + job.tokens <= self._profile.kv_tokens
        return self._joined < self._profile.slots and fits_tokens

    def _leave(self, job: Job) -> None:
        job.gone = True
        self._held -= 1
        self._held_tokens -= job.tokens
        if job.joined:
            self._joined -= 1
            self._joined_tokens -= job.tokens

    def _step_end_s(self, now_s: float) -> float:
        """End of the current step; the first step after a join includes the reading of prompts."""
        return self._end_of(max(1, math.ceil((now_s - self._began_s - self._first_s) / self._step_s - _EDGE)))

    def _end_of(self, step: int) -> float:
        return self._began_s + self._first_s + step * self._step_s
