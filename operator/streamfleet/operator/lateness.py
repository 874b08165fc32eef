"""Finds the reason why a lane is late or will be late, from a snapshot. Pure.

A lane is late if the deadline of its next request has passed. It will be late if, at the pace of the queue, the work
ahead of a request takes longer than its deadline allows. Some places spread over the ready set are checked; ahead of
a place are the requests before it in its lane, and all ready requests of the lanes above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamfleet.common.durations import in_words
from streamfleet.common.protocol import Lane
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.snapshot import LaneView, Snapshot

REASONS_NAMED = 3


class Cause(StrEnum):
    """Cause that holds up a lane."""

    EMPTY = "empty"
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    NONE_READY = "none_ready"
    ONLY_DELAYED = "only_delayed"
    ON_TIME = "on_time"
    HIGHER_LANES = "higher_lanes"
    SLOTS_BUSY = "slots_busy"
    NOTHING_WRONG = "nothing_wrong"


QUIET = frozenset({Cause.EMPTY, Cause.ON_TIME})
"""Causes that are not reported."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of one lane.

    Attributes:
        lane: the lane.
        late: the deadline of its next request has passed.
        will_be: a deadline will be missed at the pace of the queue, or no worker can run the lane.
        cause: the cause.
        text: the cause for people; may be empty.
    """

    lane: Lane
    late: bool
    will_be: bool
    cause: Cause
    text: str = ""

    def line(self) -> str:
        """One line for people, without the lane's name."""
        state = "late: " if self.late else "will be late: " if self.will_be else ""
        return state + self.text


def lateness(snapshot: Snapshot) -> list[Lateness]:
    """Judge every lane, most urgent first. While the pace of the queue is unknown, only passed deadlines count."""
    return [_judge(snapshot, lane) for lane in snapshot.lanes]


def _judge(snapshot: Snapshot, lane: LaneView) -> Lateness:
    late = lane.nearest_s is not None and lane.nearest_s < 0
    if lane.ready + (lane.delayed or 0) == 0:
        return Lateness(lane.lane, late=False, will_be=False, cause=Cause.EMPTY)
    stuck = _paused(lane) or _nobody(snapshot.workers)
    if stuck is not None:
        return Lateness(lane.lane, late, not late, *stuck)
    if lane.ready == 0:
        return Lateness(lane.lane, late=False, will_be=False, cause=Cause.ONLY_DELAYED, text=_only_delayed(lane))
    will_be = not late and _too_long(snapshot, lane)
    if not late and not will_be:
        return Lateness(lane.lane, late=False, will_be=False, cause=Cause.ON_TIME)
    return Lateness(lane.lane, late, will_be, *_crowded(snapshot, lane))


def _paused(lane: LaneView) -> tuple[Cause, str] | None:
    if lane.paused_s is None:
        return None
    since = in_words(lane.paused_s)
    return Cause.PAUSED, f"it has been paused for {since}: `streamfleet resume {lane.lane}` lets it go on"


def _nobody(workers: Sequence[WorkerView]) -> tuple[Cause, str] | None:
    alive = [worker for worker in workers if worker.alive]
    if not alive:
        silent = f" ({len(workers)} silent)" if workers else ""
        return Cause.NO_WORKER, f"no worker is alive{silent}: start one with `streamfleet worker`"
    if any(worker.takes_requests for worker in alive):
        return None
    counted = Counter(worker.why_not for worker in alive).most_common()
    told = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in counted[:REASONS_NAMED])
    more = "; …" if len(counted) > REASONS_NAMED else ""
    return Cause.NONE_READY, f"{_workers(len(alive))} alive, none ready: {told}{more}"


def _only_delayed(lane: LaneView) -> str:
    running = f", {lane.running} running" if lane.running else ""
    return f"only delayed ones wait here: {lane.delayed} until their next try is due{running}"


def _too_long(snapshot: Snapshot, lane: LaneView) -> bool:
    rate = snapshot.pace_per_s
    if rate is None:
        return False
    above = sum(other.ready for other in _above(snapshot, lane))
    places = lane.due or ([(0, lane.nearest_s)] if lane.nearest_s is not None else [])
    return any(rate * left_s < _in_turn(snapshot, lane, above, place + 1) for place, left_s in places)


def _in_turn(snapshot: Snapshot, lane: LaneView, above: int, own: int) -> float:
    """Number of requests that run until `own` of a lane have run, while `above` wait in more urgent lanes."""
    share = snapshot.shares[lane.lane.rank] / 1000
    return own + (min(above, own / share - own) if share else above)


def _crowded(snapshot: Snapshot, lane: LaneView) -> tuple[Cause, str]:
    rate = snapshot.pace_per_s
    able = [worker for worker in snapshot.workers if worker.takes_requests]
    running, slots = sum(worker.running for worker in able), sum(worker.slots or 0 for worker in able)
    above = [other for other in _above(snapshot, lane) if other.ready]
    waiting = sum(other.ready for other in above)
    speed = f", {rate:.1f} requests/s" if rate else ""
    busy = 0 < slots <= running
    if waiting and busy:
        named = ", ".join(f"{other.lane} {other.ready}" for other in above)
        share = snapshot.shares[lane.lane.rank]
        sure = f"{share / 10:g} % of the turns are its own" if share else "it gets a turn when they are empty"
        taken = f"higher lanes take the turns: {named} ready there"
        return Cause.HIGHER_LANES, f"{taken}; {sure} (STREAMFLEET_SHARES){speed}"
    if busy:
        ahead = f", so {in_words((waiting + lane.ready) / rate)} of work ahead" if rate else ""
        return Cause.SLOTS_BUSY, f"all slots are busy: running {running} of {slots}{speed}{ahead}; add workers"
    free = f"{_workers(len(able))} ready, running {running} of {slots} slots{speed}"
    return Cause.NOTHING_WRONG, f"nothing wrong that Redis can tell: {free}; if it stays, their KV caches are full"


def _above(snapshot: Snapshot, lane: LaneView) -> list[LaneView]:
    """The more urgent lanes that are not paused."""
    return [other for other in snapshot.lanes if other.lane.rank < lane.lane.rank and other.paused_s is None]


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
