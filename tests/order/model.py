"""The order, part 5: which waiting request a worker takes next. Read this first; `rules.py` lists all rules by name.

An entry waits for nobody (home 0), for a worker (its home), or is held for the worker that interrupted it. A lane in
which a request of a tenant waits is shared: tenants take turns. Any other goes by rank. Times are epoch ms.

    model = Model()
    model.now = now    # before each call but `take`
    model.became_ready([Entry(lane=3, id=(now, 1), rank=now + 300_000, enqueued=now, tenant="acme")])
    taken = model.take(worker, lanes=(1, 2, 3, 4), n=8, now=now)       # Taken(runs, dropped, soonest)
    model.ended(3, (now, 1), Use(prompt=10, output=20, counted=True, succeeded=True))

The caller tells what becomes of requests, which workers are gone (`free_home`), and what operators set (`set_tenant`,
`paused`). Parts can be used alone: lanes.py chooses lanes, tenants.py charges, homes.py finds homes, picks.py picks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.order.lanes import LANES, SHARES, Shares
from tests.order.picks import SCAN, D, Entry, Lane, Pick
from tests.order.tenants import NO_LIMIT, Charge, Tenant, Use, cost_of, half_octave, limit_class, stays_of

__all__ = ["NO_LIMIT", "Charge", "Entry", "Model", "Taken", "Tenant", "Use"]
MOST_CREDIT = 4096  # tokens by which a newcomer starts below the level
BEFORE_EQUALS = 1 / 1024  # the same without credit, so that names do not decide
CREDIT_EVERY = 3_600_000
FIRST_ROUND, MOST_IN_A_ROUND = 4, 128  # a worker takes in rounds, each four times as large as the one before
UNKNOWN = 128  # as if so many had history, where none of these has
NEXT = 16  # tenants that are next in turn, of which those with history are counted
MOST_NAMES, MOST_BYTES, OTHER = 2000, 256, "other"
Key = tuple[int, tuple[int, int]]
Needs = Mapping[tuple[str, str], int]


@dataclass
class Taken:
    """Requests that a worker takes: to run, to be ended instead; and ms until it may take more."""

    runs: list[Entry] = field(default_factory=list)
    dropped: list[Entry] = field(default_factory=list)
    soonest: int | None = None


class Model:
    """A queue's order. `now`: epoch ms, set by the caller; `paused`: lanes from which nothing is taken."""

    def __init__(self, shares: Sequence[int] = SHARES) -> None:
        self.now = 0
        self.lanes = {number: Lane() for number in LANES}
        self.shares = Shares(shares)
        self.paused: set[int] = set()
        self.tenants: dict[str, Tenant] = {}
        self.running: dict[Key, Entry] = {}

    def tenant(self, name: str) -> Tenant:
        return self.tenants.setdefault(name, Tenant())

    def name_of(self, given: str) -> str:
        """The name under which a tenant is counted: anybody may XADD any tenant."""
        odd = len(given.encode()) > MOST_BYTES or any(ord(c) < 32 or ord(c) == 127 for c in given)
        known = sum(1 for name, tenant in self.tenants.items() if name and not _is_set(tenant))
        full = given not in self.tenants and known >= MOST_NAMES
        return OTHER if given and (odd or full) else given  # rule: names_beyond_a_number_are_other

    # What happens to requests
    def became_ready(self, entries: Iterable[Entry]) -> None:
        for e in entries:
            self._place(e)

    def left(self, lane: int, entry_id: tuple[int, int]) -> Entry:
        """A request ends while it waits."""
        e = self.lanes[lane].waiting.pop(entry_id)
        self.tenant(e.tenant).tokens += e.charge.kept
        self._turns_follow(self.lanes[lane], {e.tenant})
        return e

    def ended(self, lane: int, entry_id: tuple[int, int], use: Use) -> Entry:
        """A run ends, and its request with it."""
        e = self.running.pop((lane, entry_id))
        charge, tenant = e.charge, self.tenant(e.tenant)
        tenant.tokens += charge.kept
        if charge.runs:
            cost = cost_of(charge, use)
            tenant.tokens += cost
            tenant.requests += 1
            self._settle(e, cost)
            if use.prompt is not None and use.succeeded:
                tenant.learn(e.size, e.limit, use.prompt, use.output)
        return e

    def handed_back(
        self, lane: int, entry_id: tuple[int, int], *, generated: int | None = None, failed: bool = False,
        held: int | None = None, home: int = 0, until: int = 0, ready: bool = True,
    ) -> Entry:  # fmt: skip
        """A run ends, and its request waits again.

        Args:
            lane, entry_id: the request.
            generated: tokens of output that stay charged; None if they were lost with the worker.
            failed: the attempt failed; `held` is then as in `Use`.
            held: output tokens that its time in the engine was worth.
            home: the worker that it waits for, 0 for none.
            until: it is held for that worker until then, because it gave way.
            ready: False if it waits for its next attempt: then `became_ready` follows.
        """
        e = self.running.pop((lane, entry_id))
        if e.charge.runs:
            if generated is None and not failed:
                self.tenant(e.tenant).lost += e.charge.run
            stays = stays_of(e.charge, generated=generated, failed=failed, held=held)  # rule: lost_is_free
            self._settle(e, stays)
            e.charge = Charge(kept=e.charge.kept + stays)  # rule: kept_once
        e.home, e.until, e.came_back = home, until, True  # rule: back_at_its_old_rank
        if ready:
            self._place(e)
        return e

    def free_home(self, worker: int) -> None:
        """A worker is gone, or leaves."""
        for lane in self.lanes.values():
            for e in lane.waiting.values():
                if e.home == worker and not e.until:
                    e.home = 0  # rule: dead_home_frees

    def set_tenant(self, name: str, weight: float | None = None, limit: int | None = None) -> None:
        """An operator sets a tenant's weight, or how many of it may run at once (NO_LIMIT: any number)."""
        tenant = self.tenant(name)
        tenant.weight = tenant.weight if weight is None else weight
        tenant.limit = tenant.limit if limit is None else limit
        for lane in self.lanes.values():
            self._turns_follow(lane, {name})
        self._enter_where_it_waits(name)

    # Turns
    def _place(self, e: Entry) -> None:
        lane = self.lanes[e.lane]
        was_shared = lane.shared
        lane.waiting[e.id] = e
        if e.until:
            return
        if e.tenant and not was_shared and lane.of(""):
            self._enter(lane, "")  # rule: nobodys_enter_at_the_level
        if e.tenant or was_shared:  # rule: nobodys_are_one_tenant
            came = not e.came_back  # rule: what_comes_back_brings_no_credit
            self._enter(lane, e.tenant, sum(self.tenant(e.tenant).estimate(e.size, e.limit)) if came else 0)

    def _enter(self, lane: Lane, name: str, cost: float = 0) -> None:
        """A tenant takes turns from now on. `cost`: of its new request; 0 if it has none."""
        tenant, level = self.tenant(name), lane.level
        if name in lane.in_turn or not tenant.may_run:
            return
        start = self._start(lane, tenant, cost) if name and cost else level  # rule: nobodys_get_no_credit
        lane.tokens[name] = max(0, lane.tokens.get(name, 0), start)  # rule: no_other_credit
        if lane.tokens[name] < level - BEFORE_EQUALS:
            tenant.credited = self.now
        lane.in_turn.add(name)

    def _start(self, lane: Lane, tenant: Tenant, cost: float) -> float:
        """Tokens at which a tenant with a new request starts, if it has no more."""
        if not tenant.has_history:
            return self._start_of_new(lane, min(MOST_CREDIT, cost) / tenant.weight)  # rule: no_credit_without_history
        if self.now < tenant.credited + CREDIT_EVERY:  # rule: credit_once_an_hour
            return lane.level - BEFORE_EQUALS  # rule: before_those_at_the_level
        return lane.level - min(MOST_CREDIT, cost) / tenant.weight  # rule: newcomer_starts_a_request_below

    def _start_of_new(self, lane: Lane, cost: float) -> float:
        """The same of a name without history, and moves the start of the next one."""
        names = sorted(lane.in_turn, key=lambda name: (lane.tokens[name], name.encode()))
        names = names[:NEXT]  # rule: history_of_the_next_in_turn
        known = sum(1 for name in names if not name or self.tenant(name).has_history)
        known = known or UNKNOWN  # rule: new_names_among_themselves_are_close
        start = max(lane.level, lane.new)
        lane.new = start + cost / known  # rule: new_names_one_behind_another
        return start

    def _enter_where_it_waits(self, name: str) -> None:
        for lane in self.lanes.values():
            if lane.shared and lane.of(name):
                self._enter(lane, name)  # rule: after_its_limit_no_credit

    def _turns_follow(self, lane: Lane, names: Iterable[str]) -> None:
        """A tenant with nothing waiting is out of turn (one at its limit since a pick); so is "" where it is alone."""
        for name in names:
            if not lane.of(name):
                lane.in_turn.discard(name)
        if not lane.shared:
            lane.in_turn.discard("")

    def _settle(self, e: Entry, cost: int) -> None:
        """A run is charged `cost` in place of what it was charged before."""
        lane, tenant, charge = self.lanes[e.lane], self.tenant(e.tenant), e.charge
        more = (cost - charge.run) / charge.weight  # rule: settled_by_the_weight_of_the_pick
        lane.tokens[e.tenant] = max(0, lane.tokens.get(e.tenant, 0) + more)
        tenant.charged += cost  # rule: summed_up_at_the_end
        charge.runs = False
        was_full = not tenant.may_run
        tenant.running -= charge.counted
        if was_full and tenant.may_run:
            self._enter_where_it_waits(e.tenant)

    # What a worker takes
    def take(
        self, worker: int, lanes: Sequence[int], n: int, now: int, *, rooms: Sequence[int] | None = None,
        owed: Sequence[int] | None = None, needs: Needs | None = None,
    ) -> Taken:  # fmt: skip
        """A worker takes requests.

        Args:
            worker: its number; 0 for one that is no home.
            lanes: those that it takes from.
            n: most requests.
            now: epoch ms.
            rooms, owed: as `lanes.Shares.choose` takes them; by default n of each of `lanes`.
            needs: ms that requests of a `length_class` need at least, where deadlines are judged.
        """
        self.now, taken, credit = now, Taken(), list(self.shares.credit)
        rooms = rooms or [n if number in lanes else 0 for number in self.lanes]
        waiting = [len(lane.waiting) if number not in self.paused else 0 for number, lane in self.lanes.items()]
        most = FIRST_ROUND
        while len(taken.runs) < n and len(taken.dropped) < n + SCAN:
            wanted = min(n - len(taken.runs), most)
            picks = self.shares.choose(wanted, waiting, rooms, owed or rooms, len(taken.runs))
            if not any(picks):
                break
            for number, some in enumerate(picks, 1):
                found = self._take_lane(number, worker, some, now, needs or {}, taken) if some else 0
                # What is left may not run now.
                waiting[number - 1] = 0 if found < some else waiting[number - 1] - some
            most = min(4 * most, MOST_IN_A_ROUND)
        if not taken.runs and not taken.dropped:
            self.shares.credit = credit
        if len(taken.runs) == n:
            taken.soonest = None
        return taken

    def _take_lane(self, number: int, worker: int, n: int, now: int, needs: Needs, taken: Taken) -> int:
        lane = self.lanes[number]
        for e in lane.rows(lambda e: e.until <= now, held=True):
            del lane.waiting[e.id]
            e.until = e.home = 0  # rule: then_it_waits_for_nobody
            self._place(e)
        pick = Pick(lane, self.tenant, worker, n, now)
        if lane.shared:
            pick.nearly_late()
            pick.own()
            pick.turns()
        else:
            pick.by_rank()
        pick.held()
        for e in pick.picked:
            late = e.deadline is not None and e.deadline <= now  # rule: expired_is_not_started
            if late or self.out_of_reach(e, now, needs):
                pick.put_back(e)
                taken.dropped.append(e)
            else:
                pick.charge(e)
                self.running[e.lane, e.id] = e
                taken.runs.append(e)
        names = {e.tenant for e in pick.picked}
        self._turns_follow(lane, names)
        lane.in_turn |= {name for name in names if lane.shared and lane.of(name) and self.tenant(name).may_run}
        if pick.soonest is not None:
            taken.soonest = min(pick.soonest, pick.soonest if taken.soonest is None else taken.soonest)
        return len(pick.picked)

    def length_class(self, e: Entry) -> tuple[str, str]:
        """A class of output: what its tenant's requests with such a limit have had, else the limit; and the tenant."""
        if not any(self.tenants):
            return limit_class(e.limit), e.tenant
        return str(half_octave(self.tenant(e.tenant).estimate(e.size, e.limit)[1])), e.tenant

    def out_of_reach(self, e: Entry, now: int, needs: Needs) -> bool:
        """True for a request that is ended because it cannot be done in time."""
        if e.deadline is None or e.came_back:
            return False  # rule: judged_once_before_its_first_run
        return e.deadline - now < needs.get(self.length_class(e), 0)  # rule: out_of_reach_is_not_started

    # What tests compare
    def takeable(self, worker: int, lanes: Sequence[int], now: int) -> dict[Entry, int]:
        """Waiting requests that this worker may run, each with the ms until then; looks are not bounded."""
        waiting = [e for lane in lanes if lane not in self.paused for e in self.lanes[lane].waiting.values()]
        some = [e for e in waiting if self.tenant(e.tenant).may_run]
        at_once = [e for e in some if e.home in (0, worker) or e.until]
        left = {e: max(0, e.enqueued + D - now) for e in some}  # rule: nobody_idle_beside_work
        return left | dict.fromkeys(at_once, 0)

    def could_take(self, worker: int, lanes: Sequence[int], now: int) -> int | None:
        """After how many ms this worker may take something that waits, if nothing else happens; None for never."""
        return min(self.takeable(worker, lanes, now).values(), default=None)

    def states(self) -> dict[str, Any]:
        """Everything that a comparison needs: tenants, lanes, credits of lanes, and charges of requests."""
        entries = [e for lane in self.lanes.values() for e in lane.waiting.values()] + list(self.running.values())
        return {
            "tenants": {name: vars(tenant) for name, tenant in self.tenants.items()},
            "lanes": {number: {**vars(lane), "level": lane.level} for number, lane in self.lanes.items()},
            "credit": self.shares.credit,
            "charges": {(e.lane, e.id): e.charge for e in entries if e.charge.runs or e.charge.kept},
        }


def _is_set(tenant: Tenant) -> bool:
    return tenant.weight != 1 or tenant.limit != NO_LIMIT
