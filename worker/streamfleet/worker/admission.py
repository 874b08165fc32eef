"""Admission: how many requests to pull, and which of the pulled ones fit into the engine.

The puller asks for room before each pull. The executor hands in each claimed request, and later its outcome, from which
the estimates learn. Nothing here touches Redis; of the engine, only its capacity is read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import structlog

from streamfleet.common import metrics
from streamfleet.common.numbers import BYTES_PER_TOKEN, MOST_TOKENS, output_limit
from streamfleet.common.protocol import LANES, Lane, Request, Status, decode
from streamfleet.common.results import tokens_used
from streamfleet.common.settings import WorkerSettings
from streamfleet.worker.batching import policy_of
from streamfleet.worker.cost.check import checked_demand, for_engine
from streamfleet.worker.cost.limits import CostLimits
from streamfleet.worker.credit import (
    POOLING,
    PREFETCH,
    Demand,
    Load,
    Typical,
    credit,
    missing_for,
    unreserved,
    within,
    without_reserve,
)
from streamfleet.worker.engine.base import Capacity, Engine
from streamfleet.worker.giving_way import URGENT, Running, can_give, choose
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from streamfleet.worker.outcome import Finished, Outcome, Postponed
from streamfleet.worker.service_times import ServiceTimes

log = structlog.get_logger(__name__)
BORROWED_AFTER_S = 60.0
AT_ONCE_S = 0.25
"""An engine that fails a request, or refuses it, within this time has hardly begun with it."""
READ_AGAIN = 0.1
"""Part that is lost of a run that another one can go on with: it reads all again, some ten times as fast."""
SECOND_PART = 8
"""A patient lane before the last one leaves the reserve divided by this: 1 of 40 slots, 2.5 % of its work at most."""


class Admission:
    """Compares the demand of requests, of all queues that the engine serves, with the capacity of the engine.

    Patient lanes leave a reserve free, and give way where an urgent request finds no room all the same: continuous
    batching alone, because the other policies limit how many run together for reasons of their own.

    Args:
        engine: tells its capacity.
        in_flight: the load on it; gets a request's demand once that is known.
        settings: batching, the reserve and the cost limits of one request.

    Attributes:
        free: number of requests for which slots were free at the last look at the rooms.
        owed: for each lane, number of those that it may take by its guaranteed share of picks, against the reserve.
        policy: decides when pulled requests start.
        times: how long requests take whose deadlines are judged.
        patient: number of the first lane that leaves the reserve free; one more than the last if none does.
    """

    def __init__(self, engine: Engine, in_flight: InFlight, settings: WorkerSettings) -> None:
        self._engine, self._in_flight = engine, in_flight
        self._limits, self._prefetch, self._batch_size = CostLimits.of(settings), PREFETCH, settings.batch_size
        self._typical, self.times = Typical(), ServiceTimes()
        self._patient_lanes = settings.patient_lanes if settings.batching == "continuous" else ()
        self.patient = min((lane.number for lane in self._patient_lanes), default=len(LANES) + 1)
        self._reserve_percent = settings.reserve
        self.free, self.owed = 0, (0,) * len(LANES)
        self._needed_at: list[float | None] = [None] * len(LANES)  # by a more urgent lane
        self._blocked_at: float | None = None
        self.policy = policy_of(settings, self._prefetch)

    @property
    def slots(self) -> int:
        """Most requests that may run together; at least 1."""
        slots = self._engine.capacity().slots
        return min(slots, self._batch_size or slots) or 1

    @property
    def expected(self) -> Demand:
        """Demand of a claimed request, as a guess until it is decoded."""
        return Demand(1, int(self._typical.tokens))

    def rooms(self, awaited_tokens: int, now: float) -> tuple[int, ...]:
        """Number of requests to pull now, for each lane: it is taken from until so many of all lanes are pulled.

        Args:
            awaited_tokens: KV tokens of a request that did not fit, and for which room is made; 0 for none.
            now: monotonic seconds.
        """
        next_tokens = max(self._typical.tokens, awaited_tokens)
        capacity, load, most = self._engine.capacity(), self._in_flight.load(), self._batch_size
        whole = beyond = self.policy.room(capacity, load, next_tokens)
        self.free, self.owed = whole, (whole,) * len(LANES)
        if not self._patient_lanes:
            return self.owed
        if busy := self._in_flight.active_in(self._patient_lanes):
            # A request beyond the slots would wait inside the engine until another one ends.
            whole = credit(capacity, load, typical_tokens=next_tokens, prefetch=0, most=most)
        urgent = self._urgent_room(now) if busy else whole
        self._count_blocked(now, blocked=busy > 0 and urgent == 0)
        rooms, owed = [urgent if lane in URGENT else whole for lane in LANES], [whole] * len(LANES)
        if 0 in rooms[: self.patient - 1]:  # a patient request beyond the slots would take the next one that comes free
            beyond = 0
        for lane in self._patient_lanes:
            if not self._borrows(lane, now):  # its room is never more than that of a more urgent lane
                beyond = min(beyond, self._room_of(lane, capacity, load, next_tokens))
            rooms[lane.number - 1] = beyond
            left = without_reserve(self.slots, self._reserve_percent, self._part(lane))
            held = self._in_flight.active_in(LANES[lane.number - 1 :])
            owed[lane.number - 1] = min(whole, max(0, left - held))
        self.free, self.owed = whole, tuple(owed)
        return tuple(rooms)

    def _room_of(self, lane: Lane, capacity: Capacity, load: Load, next_tokens: float) -> int:
        """Room of a patient lane, which leaves its part of the reserve."""
        percent, part = self._reserve_percent, self._part(lane)
        left, most = unreserved(capacity, percent, part), self._batch_size
        # Prefetched requests would fill the few slots that a part of the reserve has.
        prefetch = 0 if part > 1 and left.slots < capacity.slots else self._prefetch
        most = most and without_reserve(most, percent, part)
        return credit(left, load, typical_tokens=next_tokens, prefetch=prefetch, most=most)

    def claimed(self, lanes: Collection[Lane], now: float) -> None:
        """Record claims, at monotonic seconds: while more urgent lanes have work, a patient lane borrows nothing."""
        first = min((lane.number for lane in lanes), default=len(LANES))
        self._needed_at[first:] = [now] * (len(LANES) - first)

    def _part(self, lane: Lane) -> int:
        """Divisor of the reserve that a patient lane leaves."""
        return 1 if lane is LANES[-1] else SECOND_PART

    def _borrows(self, lane: Lane, now: float) -> bool:
        """True if a patient lane uses its reserve too, because no more urgent lane has needed it for long."""
        needed_at = self._needed_at[lane.number - 1]
        if needed_at is None:
            self._needed_at[lane.number - 1] = needed_at = now
        return now - needed_at >= BORROWED_AFTER_S

    def _urgent_room(self, now: float) -> int:
        """Number of urgent requests that can start beside patient ones, or one in the place of some of these.

        A patient request that did not fit, and for which room is made, holds up no urgent one.
        """
        capacity, load, tokens = self._engine.capacity(), self._in_flight.load(), self._typical.tokens
        room = credit(capacity, load, typical_tokens=tokens, prefetch=0, most=self._batch_size)
        if room:
            return room
        missing = missing_for(capacity, load, Demand(1, int(tokens)), most=self._batch_size)
        return int(can_give(missing, (running for _, running in self._may_give_way(now))))

    def _count_blocked(self, now: float, *, blocked: bool) -> None:
        if self._blocked_at is not None:
            metrics.URGENT_BLOCKED.inc(max(0.0, now - self._blocked_at))
        self._blocked_at = now if blocked else None

    def admit(self, request: InFlightRequest, now: float, max_body_bytes: int) -> Request | None:
        """Returns the decoded request; None if it does not fit into the engine, now that its size is known.

        An urgent request that does not fit takes the room of patient ones, which are stopped.

        Args:
            request: the request.
            now: monotonic seconds.
            max_body_bytes: largest body of its queue.

        Raises:
            InvalidRequest: it cannot be decoded, or asks for too much.
        """
        claim = request.claim
        lease = claim.lease
        decoded = decode(claim.fields, lease.lane, lease.stream_id, max_body_bytes, request.enqueued_ms)
        if decoded.deadline_ms is not None:  # by Redis's clock until the claim, by ours since then
            request.late_at = request.claimed_at + (decoded.deadline_ms - request.claimed_ms) / 1000
        capacity, size, ratio = self._engine.capacity(), len(claim.fields[b"body"]), self._typical.prompt_ratio
        # Only requests that may run count: one absurd body must not make the next hundred requests look large.
        usual = round(self._typical.output)
        demand = checked_demand(
            decoded.body, size, self._limits, capacity.max_model_len, decoded.endpoint, ratio, usual
        )
        demand = within(demand, capacity.slots)
        urgent = lease.lane in URGENT and lease.lane.number < self.patient
        if urgent:
            for other in self._who_gives_way(self._in_flight.admitted(), demand, now):
                log.info("gave_way", entry=other.lease.entry, to=lease.entry)
                self._in_flight.give_way(other)
        elif lease.lane in self._patient_lanes and not request.owed and not self._borrows(lease.lane, now):
            capacity = unreserved(capacity, self._reserve_percent, self._part(lease.lane))
        if not self._in_flight.admit(request, demand, capacity, self._prefetch, urgent=urgent):
            log.debug("request_does_not_fit", tokens=request.demand.tokens, sequences=request.demand.sequences)
            return None
        self._typical.saw(request.demand)
        return decoded

    def _who_gives_way(self, load: Load, demand: Demand, now: float) -> Sequence[InFlightRequest]:
        """Requests that have to stop so that this demand fits beside the rest of this load; none if it fits already."""
        missing = missing_for(self._engine.capacity(), load, demand, most=self._batch_size)
        if missing.requests <= 0 and missing.sequences <= 0 and missing.tokens <= 0:
            return ()
        return choose(dict(self._may_give_way(now)), missing)

    def _may_give_way(self, now: float) -> Iterator[tuple[InFlightRequest, Running]]:
        """Running requests of patient lanes, without those that came by the share of their lane."""
        for request in self._in_flight.active_on_engine():
            if request.started_at is None or request.stop_reason is not None or request.owed:
                continue
            if request.lease.lane in self._patient_lanes:
                lost_s = now - request.started_at
                lost_s *= READ_AGAIN if request.asked and request.asked.continuable else 1.0
                run_s, slack_s = self._typical.run_s(request.demand), request.late_at - now
                yield (
                    request,
                    Running(request.lease.lane, request.demand, request.claim.interrupted, run_s, lost_s, slack_s),
                )

    def for_engine(self, decoded: Request) -> dict[str, Any]:
        """Returns the body that the engine gets. Raises InvalidRequest, as `check.for_engine` does."""
        return for_engine(decoded.body, decoded.endpoint, self._limits, self._engine.capacity().max_model_len)

    def learn(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Adjust the estimates and the batching by the outcome of a request that was started, in monotonic seconds."""
        if isinstance(outcome, Finished) and outcome.response:  # if a run was ended early, some engines only guess
            self._typical.counted(request.demand, tokens_used(outcome.usage, "prompt_tokens"))
            asked, generated = request.asked, tokens_used(outcome.usage, "completion_tokens")
            if asked is not None and output_limit(asked.body, asked.endpoint) is None:
                self._typical.generated(generated, request.demand.sequences)
            if request.started_at is not None and asked is not None and asked.endpoint not in POOLING:
                # A server that does not count answers about as much text as it generates.
                made = len(outcome.response) // BYTES_PER_TOKEN if generated is None else generated
                made -= outcome.resumed_tokens
                self._typical.took(now - request.started_at, made, request.demand.sequences)
        self._charge(request, outcome, now)
        self._learn_time(request, outcome, now)
        self.policy.ended(request, outcome, now)

    def _charge(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Set what an outcome is charged for its time in the engine, where nobody has counted its tokens."""
        asked = request.asked
        if asked is None or request.started_at is None:
            return
        run_s = now - request.started_at
        limit = output_limit(asked.body, asked.endpoint)
        most = self._engine.capacity().max_model_len or MOST_TOKENS if limit is None else limit
        held = self._typical.made_in(run_s, most, request.demand.sequences)
        if isinstance(outcome, Finished):
            if outcome.usage and not asked.guessed:
                return
            refused = outcome.http_status < HTTPStatus.INTERNAL_SERVER_ERROR or run_s < AT_ONCE_S
            unknown = outcome.status is Status.FAILED and math.isinf(held)
            outcome.held = 0.0 if unknown and refused else held  # most are refused at once
        elif isinstance(outcome, Postponed):
            seen = max(asked.made, tokens_used(asked.usage or {}, "completion_tokens") or 0) - asked.resumed_tokens
            counted = seen > 0 if asked.usage is None else not asked.guessed
            if counted:
                outcome.held = seen or None
            elif run_s >= AT_ONCE_S:
                outcome.held = max(seen, held)

    def _learn_time(self, request: InFlightRequest, outcome: Outcome, now: float) -> None:
        """Learn the time from the claim of a whole run, or of one that was stopped because its deadline passed."""
        if not (request.claim.length and isinstance(outcome, Finished)) or outcome.resumed_tokens:
            return
        in_vain = outcome.status is Status.EXPIRED and request.stop_reason is StopReason.LATE
        if in_vain or outcome.response:
            self.times.took(request.claim.length, now - request.claimed_at, in_vain=in_vain)
