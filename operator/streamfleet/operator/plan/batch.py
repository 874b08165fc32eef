"""One worker in virtual time: its held requests, and its engine's running batch, step by step. Pure.

The engine is that of `SimulatedEngine`: requests join and leave between steps, the prompts of joining requests are read
first (which delays all others), and the profile gives the duration of a step for each number of requests. Between two
joins or leaves nothing changes, so all steps in between are computed at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.worker.credit import Demand, Load, Typical, credit
from streamfleet.worker.engine.base import NO_DEADLINE_S, Capacity

NEVER_S = math.inf
_EDGE = 1e-9
"""Tolerance for the end of a step, in steps."""


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
