"""One shard and its workers in virtual time: calls, their cost on the server, and the waits of requests.

The server does one call after the other. Workers behave as in worker/: two idle ones watch, the others wait without
looking, and the emptiest is woken first, or watches without a pull where nothing waits; a full one pulls again when an
outcome is written; outcomes that wait for a running write go together; leases are renewed four times a lease, young
ones not. Pure: the same load, costs and seed give the same outcome.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from bench.core.rounds import percentile
from bench.shards.costs import Costs
from streamfleet.worker.housekeeping import FORGET_PAUSE_MS, TICK_S, asking_pause_s
from streamfleet.worker.lease import AT_ONCE, CANCELS_BLOCK_MS, CANCELS_GAP_S, QUIET_SHARE, RENEWALS_PER_LEASE, YOUNG
from streamfleet.worker.pull import AT_ONCE as PULL_AT_ONCE
from streamfleet.worker.pull import IDLE_WAITER_MS

WATCHERS = 2
LINK_S = 0.0002
"""Between a process and the server, one way."""
ASLEEP_S = 0.0033
"""A server that has slept so long pays 63 % (1 - 1/e) of what waking costs: measured with pauses of 0.3 to 16 ms."""
FILL_STEP = 2
"""Requests that a worker may hold beyond the emptiest idle waiter before it leaves the watch to it; as filling.lua."""
SPREAD = 0.5
"""Requests run half as long to half as long again."""


@dataclass(frozen=True)
class Load:
    """Load of one shard.

    Attributes:
        workers: number of workers.
        slots: requests that each worker holds.
        run_s: mean run time of a request.
        rate_per_s: arriving requests per second, one by one or `together` in one call.
        lease_s: the lease.
        together: requests in one enqueue call.
        fresh: true if the workers have just started, so that none has waited long enough to look by itself.
    """

    workers: int
    slots: int
    run_s: float
    rate_per_s: float
    lease_s: float = 10.0
    together: int = 1
    fresh: bool = False


@dataclass(frozen=True)
class Outcome:
    """Result of a simulation.

    Attributes:
        cpu_percent: per cent of the server's core; more than 100 means that it falls behind.
        share: share of all CPU time, by verb, and for `connections` and `alone`.
        calls_per_s: calls per second, by verb.
        ended_per_s: ended requests per second.
        pickup_ms: p50 and p99 of the time from a request's entry to its worker; None if no request came.
        pulled, completed: mean number of requests in a call of each.
    """

    cpu_percent: float
    share: dict[str, float]
    calls_per_s: dict[str, float]
    ended_per_s: float
    pickup_ms: tuple[float, float] | None
    pulled: float
    completed: float

    @property
    def scripts_per_s(self) -> float:
        """Script calls per second: all calls except blocking reads and a caller's reads."""
        return sum(rate for verb, rate in self.calls_per_s.items() if verb not in NO_SCRIPTS)


NO_SCRIPTS = frozenset({"bench", "watch", "notices", "results"})
TICK_SCRIPTS = 9
"""Script calls of one round of housekeeping (worker/housekeeping.py)."""


@dataclass
class Worker:
    """One worker; `taken`: when it took what still runs; `on` tells if it is an idle waiter, a watcher, or neither."""

    held: int = 0
    taken: dict[int, float] = field(default_factory=dict)
    done: int = 0
    completing: bool = False
    pulling: bool = False
    on: str = ""
    sat_down: int = 0
    said_s: float = -1e9


@dataclass
class Spending:
    """The server's work since counting began."""

    us: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)


class Shard:
    """One simulated run.

    Args:
        load: load of the shard.
        costs: costs of each call.
        seed: seed of all random numbers.
    """

    def __init__(self, load: Load, costs: Costs, seed: int = 1) -> None:
        self._load, self._costs, self._chance = load, costs, random.Random(seed)
        self._workers = [Worker() for _ in range(load.workers)]
        self._bench: list[
            tuple[int, int, int, int]
        ] = []  # held, order, who, number of the wait: those past are left over
        self._watching: deque[int] = deque()
        self._watches = 0
        self._waiting: deque[float] = deque()
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = count()
        self._free_s = 0.0
        self._served_s: dict[str, float] = {}
        self._spent = Spending()
        self._pickups_s: list[float] = []
        self._ended = 0

    def run(self, seconds: float, warm_s: float) -> Outcome:
        """Count for so long, after a warm-up of `warm_s`.

        Args:
            seconds: virtual time that counts.
            warm_s: virtual time before it.
        """
        self._begin()
        counted = False
        while self._events and self._events[0][0] < warm_s + seconds:
            now, _, kind, who, number = heapq.heappop(self._events)
            if not counted and now >= warm_s:
                counted = True
                self._spent, self._pickups_s, self._ended = Spending(), [], 0
            getattr(self, f"_on_{kind}")(now, who, number)
        return self._outcome(seconds)

    # -- the server ----------------------------------------------------------------------------------------

    def _call(self, now: float, verb: str, requests: int = 1, us: float | None = None) -> float:
        """Send a call now; returns the time at which its answer is back."""
        return self._serve(now + LINK_S, verb, requests, us) + LINK_S

    def _serve(self, now: float, verb: str, requests: int = 1, us: float | None = None) -> float:
        """Give the server work from now on; returns the time at which it is done."""
        cost_us = self._costs.us(verb, requests) if us is None else us
        # Code and data that all calls share are cold after any pause; a verb's own are after a pause of that verb.
        woken, shared = self._costs.woken(verb), self._costs.woken("PING")
        own_s = self._served_s.get(verb.removeprefix("empty_"), -math.inf)
        cost_us += min(woken, shared) * _cold(now - self._free_s) + max(0.0, woken - shared) * _cold(now - own_s)
        self._served_s[verb.removeprefix("empty_")] = now
        self._free_s = max(now, self._free_s) + cost_us / 1e6
        self._spent.us[verb] += cost_us
        self._spent.calls[verb] += 1
        self._spent.requests[verb] += requests
        return self._free_s

    def _at(self, when: float, kind: str, who: int = 0, number: int = 0) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, who, number))

    # -- the start: as many requests run as the load keeps running -----------------------------------------

    def _begin(self) -> None:
        load, chance = self._load, self._chance
        running = min(round(load.rate_per_s * load.run_s), load.workers * load.slots)
        for who, worker in enumerate(self._workers):
            waited = 1.0 if load.fresh else chance.random()
            worker.held = min(load.slots, running)
            running -= worker.held
            for _ in range(worker.held):
                self._run(-chance.uniform(0, load.run_s), who, chance.uniform(0, load.run_s))
            self._at(chance.uniform(0, load.lease_s / RENEWALS_PER_LEASE), "renew", who)
            self._at(waited * CANCELS_BLOCK_MS / 1000, "notices", who)
            self._at(chance.uniform(0, asking_pause_s(load.workers, 0.5)), "ask", who)
            worker.said_s = -chance.uniform(0, load.lease_s)
            if worker.held < load.slots:
                self._sit_down(0.0, who, waited * IDLE_WAITER_MS / 1000)
        self._at(chance.uniform(0, TICK_S), "tick")
        if load.rate_per_s > 0:
            self._at(chance.expovariate(load.rate_per_s / load.together), "arrive")

    def _sit_down(self, now: float, who: int, wait_s: float = IDLE_WAITER_MS / 1000) -> None:
        """Make the worker watch if fewer than two do; otherwise make it an idle waiter."""
        worker = self._workers[who]
        worker.sat_down += 1
        emptiest = self._emptiest()
        makes_way = emptiest is not None and self._workers[emptiest].held + FILL_STEP <= worker.held
        if self._watches < WATCHERS and not makes_way:
            self._watch(who)
        else:
            worker.on = "bench"
            self._wait(who)
            self._at(now + wait_s, "bored", who, worker.sat_down)

    def _watch(self, who: int) -> None:
        self._watches += 1
        self._workers[who].on = "watch"
        self._watching.append(who)

    def _wait(self, who: int) -> None:
        worker = self._workers[who]
        heapq.heappush(self._bench, (worker.held, next(self._order), who, worker.sat_down))

    def _emptiest(self) -> int | None:
        """The idle waiter that holds the fewest, of these the one that waits for longest; None if nobody waits."""
        while self._bench:
            held, _, who, sat_down = self._bench[0]
            worker = self._workers[who]
            if worker.on == "bench" and (worker.held, worker.sat_down) == (held, sat_down):
                return who
            heapq.heappop(self._bench)
        return None

    # -- requests ------------------------------------------------------------------------------------------

    def _on_arrive(self, now: float, _: int, __: int) -> None:
        load = self._load
        self._at(now + self._chance.expovariate(load.rate_per_s / load.together), "arrive")
        back = self._call(now, "enqueue", load.together)
        self._at(back - LINK_S, "enter", 0, load.together)

    def _on_enter(self, now: float, _: int, number: int) -> None:
        self._waiting.extend([now] * number)
        for _each in range(min(number, len(self._watching))):
            self._wake(now, self._watching.popleft())

    def _wake(self, now: float, who: int) -> None:
        """Wake a waiting worker, which then pulls. A watch lasts until the pull ends it."""
        worker = self._workers[who]
        verb, worker.on = worker.on, f"{worker.on}, woken"
        self._at(self._serve(now, verb) + LINK_S, "pull", who)

    def _on_pull(self, now: float, who: int, _: int) -> None:
        worker = self._workers[who]
        worker.pulling = True
        wanted = min(self._load.slots - worker.held, PULL_AT_ONCE)
        here = min(wanted, len(self._waiting))
        verb = "pull" if here else "empty_pull"
        self._at(self._call(now, verb, max(1, here)) - LINK_S, "pulled", who, wanted)

    def _on_pulled(self, now: float, who: int, wanted: int) -> None:
        worker = self._workers[who]
        if worker.on.startswith("watch"):
            self._watches -= 1
        worker.on, worker.pulling = "", False
        got = min(wanted, len(self._waiting))
        for _ in range(got):
            self._pickups_s.append(now + LINK_S - self._waiting.popleft())
            run_s = self._load.run_s * self._chance.uniform(1 - SPREAD, 1 + SPREAD)
            self._run(now, who, now + LINK_S + run_s)
        worker.held += got
        if worker.held < self._load.slots:
            if self._waiting:
                self._at(now + LINK_S, "pull", who)
            else:
                self._sit_down(now, who)
        self._leave_tokens(now, bool(self._waiting) and got > 0)

    def _leave_tokens(self, now: float, work_left: bool) -> None:
        if work_left and self._watching:
            self._wake(now, self._watching.popleft())
        emptiest = self._emptiest() if work_left or self._watches < WATCHERS else None
        if emptiest is None:
            return
        if not self._waiting and self._watches + 1 == WATCHERS:
            self._watch(emptiest)  # without a pull
            self._serve(now, "bench")
        else:
            self._wake(now, emptiest)

    def _on_bored(self, now: float, who: int, sat_down: int) -> None:
        """Make a worker look by itself after its longest wait."""
        worker = self._workers[who]
        if worker.on == "bench" and worker.sat_down == sat_down:
            self._wake(now, who)

    def _run(self, taken_s: float, who: int, until_s: float) -> None:
        serial = next(self._order)
        self._workers[who].taken[serial] = taken_s
        self._at(until_s, "finish", who, serial)

    def _on_finish(self, now: float, who: int, serial: int) -> None:
        worker = self._workers[who]
        del worker.taken[serial]
        worker.done += 1
        if not worker.completing:
            self._complete(now, who)

    def _complete(self, now: float, who: int) -> None:
        worker = self._workers[who]
        number, worker.done, worker.completing = worker.done, 0, True
        self._at(self._call(now, "complete", number), "completed", who, number)

    def _on_completed(self, now: float, who: int, number: int) -> None:
        worker = self._workers[who]
        full = worker.held >= self._load.slots
        worker.held -= number
        worker.completing = False
        if worker.on == "bench":
            self._wait(who)
        self._ended += number
        self._call(now, "results", number)
        if worker.done:
            self._complete(now, who)
        if full and not worker.pulling and not worker.on:
            self._on_pull(now, who, 0)

    # -- what comes by the clock ---------------------------------------------------------------------------

    def _on_renew(self, now: float, who: int, _: int) -> None:
        worker, lease_s = self._workers[who], self._load.lease_s
        back, interval_s = now, lease_s / RENEWALS_PER_LEASE
        due = sum(taken_s <= now - YOUNG * interval_s for taken_s in worker.taken.values())
        for first in range(0, due, AT_ONCE):
            back = self._call(back, "renew", min(AT_ONCE, due - first))
        if now - worker.said_s > lease_s * QUIET_SHARE:
            back = self._call(back, "heartbeat")
            worker.said_s = now
        self._at(back + interval_s, "renew", who)

    def _on_notices(self, now: float, who: int, _: int) -> None:
        back = self._call(now, "notices")
        self._at(back + CANCELS_BLOCK_MS / 1000 + CANCELS_GAP_S, "notices", who)

    def _on_ask(self, now: float, who: int, _: int) -> None:
        back = self._call(now, "acquire_housekeeping_lock")
        self._at(back + asking_pause_s(self._load.workers, self._chance.random()), "ask", who)

    def _on_tick(self, now: float, _: int, __: int) -> None:
        held = sum(worker.held for worker in self._workers)
        self._call(now, "tick", us=self._costs.tick.us(held))
        self._at(now + TICK_S, "tick")

    # -- the end -------------------------------------------------------------------------------------------

    def _outcome(self, seconds: float) -> Outcome:
        load, costs, spent = self._load, self._costs, self._spent
        us = {verb: total / seconds for verb, total in spent.us.items()}
        us["forget"] = costs.forget.us(load.workers) / (FORGET_PAUSE_MS / 1000)
        us["connections"] = costs.connection_us * costs.connections * load.workers
        us["alone"] = costs.alone_us
        total_us = sum(us.values())
        calls = {verb: number / seconds for verb, number in spent.calls.items()}
        calls["tick"] = calls.get("tick", 0.0) * TICK_SCRIPTS
        return Outcome(
            cpu_percent=total_us / 1e4,
            share={verb: each / total_us for verb, each in sorted(us.items(), key=lambda item: -item[1])},
            calls_per_s=calls,
            ended_per_s=self._ended / seconds,
            pickup_ms=_both(self._pickups_s),
            pulled=_mean(spent, "pull"),
            completed=_mean(spent, "complete"),
        )


def _cold(pause_s: float) -> float:
    """Part of what waking costs that is due after a pause."""
    return -math.expm1(min(0.0, -pause_s) / ASLEEP_S)


def _both(pickups_s: Sequence[float]) -> tuple[float, float] | None:
    if not pickups_s:
        return None
    return percentile(pickups_s, 0.5) * 1000, percentile(pickups_s, 0.99) * 1000


def _mean(spent: Spending, verb: str) -> float:
    return spent.requests[verb] / spent.calls[verb] if spent.calls[verb] else 0.0


def simulate(load: Load, costs: Costs, seconds: float, seed: int = 1) -> Outcome:
    """Simulate one load, and count from when it is steady."""
    return Shard(load, costs, seed).run(seconds, warm_s=min(4.0, seconds))
