"""The order, part 4: what one worker picks of one lane, rule by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.order.tenants import NO_LIMIT, Charge, Tenant

D = 1000  # what waits for another worker is left to it for so long
W = 1000  # in a lane without tenants: it goes first only if it ranks so much earlier,
NEAR = 3000  # and its rank is so near,
LONG = 10_000  # or it has waited for so long
LATE = 3000  # nearly late: the deadline is closer than that
URGENT = 10_000  # has to run soon: another's wait for its home does not count any more
AHEAD = 6  # requests of its size that a tenant may be ahead of the level, and go out of turn; `rules.py` says why not 3
TURN_AFTER = 3000  # in its tenant's turn, what waits for another worker is taken after so long,
TURN_LATER = 10_000  # and counts as so much later than its rank
DEAD = 2000  # a worker that is gone is no home after so long at most; the caller calls free_home by then
HELD, HELD_PART = 10_000, 4  # what gave way is held for so long, but at most this part of the time to its deadline
DEEP = 16  # how many are looked at beyond the number that is wanted, of a worker, a tenant or homes
SCAN = 64  # tenants in turn that are looked at in vain
PATIENCE = 300_000


def rank_of(enqueued: int, deadline: int | None, patience: int = PATIENCE) -> int:
    default = enqueued + patience
    return default if deadline is None else deadline + (deadline == default)  # rule: rank_is_deadline_or_patience


def held_until(now: int, deadline: int | None) -> int:
    """Until when a request that gave way, and can be continued, is held for its worker."""
    left = HELD if deadline is None else (deadline - now) // HELD_PART
    return now + min(HELD, left)  # rule: held_for_a_while


@dataclass(eq=False)
class Entry:
    """A request in a lane.

    Attributes:
        rank: `rank_of`, or earlier as a turn of a program.
        enqueued: when it was enqueued, or staged where its id is ahead of the clock.
        deadline: after it the request is worthless.
        size: bytes of its body.
        limit: the limit of output that it asks for; None for none.
        until: it is held for worker `home` until then; 0 if it is not held.
        came_back: it ran before.
    """

    lane: int
    id: tuple[int, int]
    rank: int
    enqueued: int
    deadline: int | None = None
    tenant: str = ""
    home: int = 0
    size: int = 0
    limit: int | None = None
    until: int = 0
    came_back: bool = False
    charge: Charge = field(default_factory=Charge)

    @property
    def key(self) -> tuple[int, tuple[int, int]]:
        return self.rank, self.id  # rule: equal_ranks_in_order_of_arrival


@dataclass
class Lane:
    """Waiting requests, held ones included; tokens for its weight of each tenant that waited here; tenants in turn."""

    waiting: dict[tuple[int, int], Entry] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)
    in_turn: set[str] = field(default_factory=set)
    reached: float = 0
    """Most tokens that a tenant had before a pick in its turn."""
    new: float = 0
    """Tokens at which the next name without history starts."""

    def rows(self, wanted: Callable[[Entry], bool] = lambda _: True, *, held: bool = False) -> list[Entry]:
        """Waiting entries by rank; either those that are held, or the others."""
        return sorted((e for e in self.waiting.values() if bool(e.until) == held and wanted(e)), key=lambda e: e.key)

    def of(self, tenant: str) -> list[Entry]:
        return self.rows(lambda e: e.tenant == tenant)

    @property
    def shared(self) -> bool:
        return any(e.tenant and not e.until for e in self.waiting.values())  # rule: shared_while_a_tenant_waits

    @property
    def level(self) -> float:
        """Tokens of the tenant in turn that has least, but no less than the last one had that was picked in turn."""
        least = min((self.tokens[name] for name in self.in_turn), default=0.0)  # rule: level_of_those_in_turn
        return max(self.reached, least)


class Pick:
    """Picks of one worker in one lane."""

    def __init__(self, lane: Lane, tenant: Callable[[str], Tenant], worker: int, n: int, now: int) -> None:
        self.lane, self.tenant, self.worker, self.n, self.now = lane, tenant, worker, n, now
        self.shared = lane.shared
        self.picked: list[Entry] = []
        self.soonest: int | None = None
        self.costs: dict[tuple[int, int], float] = {}
        self.own_rows: list[Entry] = []

    @property
    def room(self) -> int:
        return self.n - len(self.picked)

    def waited(self, e: Entry, ms: int) -> bool:
        return e.enqueued + ms <= self.now

    def mine(self, e: Entry) -> bool:
        return 0 < self.worker == e.home

    def foreign(self, e: Entry) -> bool:
        return e.home > 0 and not self.mine(e)

    def free(self, e: Entry) -> bool:
        return not self.foreign(e) or self.waited(e, D)  # rule: left_to_its_home_for_a_second

    def is_here(self, e: Entry) -> bool:
        return e.id in self.lane.waiting

    def come_again(self, rows: Iterable[Entry]) -> None:
        """None of these may be taken now; says when the first may."""
        times = [e.enqueued + D - self.now for e in rows if not self.waited(e, D)]
        self.soonest = min([*times, *([] if self.soonest is None else [self.soonest])], default=None)

    def cost(self, e: Entry) -> float:
        tenant = self.tenant(e.tenant)
        return sum(tenant.estimate(e.size, e.limit)) if e.tenant else tenant.usual  # rule: unread_costs_the_usual

    def few_ahead(self, e: Entry) -> bool:
        tenant = self.tenant(e.tenant)
        ahead = self.lane.tokens.get(e.tenant, 0) - self.lane.level
        return tenant.may_run and ahead <= AHEAD * self.cost(e) / tenant.weight  # rule: few_ahead

    def out(self, e: Entry) -> None:
        """Picks an entry, and charges its tenant."""
        del self.lane.waiting[e.id]
        self.picked.append(e)
        if not e.tenant and not self.shared:
            return  # rule: nobodys_are_charged_where_a_lane_is_shared
        tenant, cost = self.tenant(e.tenant), self.cost(e)
        counted = tenant.limit < NO_LIMIT  # rule: limit_counts_since_there_is_one
        e.charge = Charge(weight=tenant.weight, kept=e.charge.kept, runs=True, counted=counted)
        self.costs[e.id] = cost
        tokens = self.lane.tokens.get(e.tenant, 0)
        self.lane.tokens[e.tenant] = tokens + cost / tenant.weight  # rule: weight
        tenant.running += counted
        if not tenant.may_run:
            self.lane.in_turn.discard(e.tenant)

    def charge(self, e: Entry) -> None:
        """It runs, and its body is read: now its cost is known."""
        if e.id not in self.costs:
            return
        tenant = self.tenant(e.tenant)
        prompt, output = tenant.estimate(e.size, e.limit)
        more = (prompt + output - self.costs[e.id]) / e.charge.weight
        self.lane.tokens[e.tenant] = max(0, self.lane.tokens[e.tenant] + more)
        if not e.tenant:
            tenant.usual += (prompt + output - tenant.usual) / 8
        e.charge.prompt, e.charge.output = prompt, output

    def put_back(self, e: Entry) -> None:
        """It is ended without a run: nobody is charged."""
        tenant = self.tenant(e.tenant)
        tenant.tokens += e.charge.kept
        if e.id in self.costs:
            tokens = self.lane.tokens[e.tenant] - self.costs[e.id] / e.charge.weight  # rule: what_did_not_run_is_free
            self.lane.tokens[e.tenant] = max(0, tokens)
            tenant.running -= e.charge.counted
            e.charge.runs = False

    # A lane without tenants
    def firsts(self) -> list[Entry]:
        """Among requests without a tenant, the first of each home, by rank and name."""
        firsts: dict[int, Entry] = {}
        for e in self.lane.rows(lambda e: e.home > 0 and not e.tenant):
            firsts.setdefault(e.home, e)
        return sorted(firsts.values(), key=lambda e: (e.rank, str(e.home)))

    def foreign_firsts(self) -> list[Entry]:
        return [e for e in self.firsts() if self.foreign(e)][:DEEP]

    def by_rank(self) -> None:
        rows = self.lane.rows(lambda e: not self.foreign(e))  # rule: own_and_nobodys_by_rank
        held = self.lane.rows(self.mine, held=True)
        rows += [e for e in held if self.tenant(e.tenant).may_run]  # rule: held_is_its_workers_own
        rows.sort(key=lambda e: e.key)
        late = next((e for e in self.foreign_firsts() if self.free(e)), None)
        if rows and late and late.rank + W < rows[0].rank:
            near = late.rank <= self.now + NEAR  # rule: near_ones_of_another_home_first
            if near or self.waited(late, LONG):  # rule: long_waiting_ones_of_another_home_first
                self.out(late)
        for e in rows:
            if self.room and self.tenant(e.tenant).may_run:
                self.out(e)
        while self.room:
            late = next((e for e in self.foreign_firsts() if self.free(e)), None)
            if not late:
                self.come_again(self.foreign_firsts())
                return
            self.out(late)  # rule: with_room_left_what_waited_for_others

    # A shared lane
    def nearly_late(self) -> None:
        """At most one request of each of the DEEP tenants whose first real deadlines come next."""
        near: dict[str, list[Entry]] = {}
        for name in {e.tenant for e in self.lane.waiting.values() if e.deadline}:
            rows = self.lane.of(name) if name else self.lane.rows(lambda e: not e.tenant and not e.home) + self.firsts()
            rows = [e for e in rows if e.deadline and self.now < e.deadline <= self.now + LATE]
            if rows:
                near[name] = [e for e in rows if not e.home][:1] + [e for e in rows if e.home][:DEEP]
                near[name].sort(key=lambda e: e.key)
        names = sorted(near, key=lambda name: (near[name][0].rank, name.encode()))[:DEEP]
        found = [e for name in names for e in list(filter(self.free, near[name]))[:1]]  # rule: a_flood_has_one_row
        for e in sorted(found, key=lambda e: e.key):
            if self.room and self.few_ahead(e):
                self.out(e)  # rule: nearly_late_first

    def own(self) -> None:
        if self.worker <= 0:
            return
        most = self.room + DEEP
        rows = [*self.lane.rows(self.mine), *self.lane.rows(self.mine, held=True)[:DEEP]]
        self.own_rows = sorted(rows, key=lambda e: e.key)[:most]
        for e in self.own_rows:
            first = self.lane.of(e.tenant)[:1]
            soon = first and first[0].rank <= self.now + URGENT and e.rank > first[0].rank + W
            if self.room and self.few_ahead(e) and not soon:  # rule: own_only_if_nothing_more_urgent
                self.out(e)  # rule: own_first

    def turns(self) -> None:
        """Twice: first without what waits for others and is young, then, with room left, with all that is D old."""
        most, homed, passed = self.room + DEEP, dict[str, list[Entry]](), dict[str, float]()
        for age in (TURN_AFTER, D):
            passed = {}
            while self.room and len(passed) < SCAN:
                waiting = self.lane.in_turn - passed.keys()
                name = min(waiting, key=lambda t: (self.lane.tokens[t], t.encode()), default=None)  # rule: least_first
                if name is None:
                    break
                if not self.tenant(name).may_run or not self.lane.of(name):  # by picks of other lanes
                    self.lane.in_turn.discard(name)
                    continue
                rows = homed.setdefault(name, [e for e in self.lane.of(name) if e.home][:most])
                e = self.next_of(name, rows if name else self.foreign_firsts(), age)
                if not e:
                    passed[name] = self.lane.tokens[name]  # rule: keeps_its_turn
                    continue
                level = min([self.lane.tokens[name], *passed.values()])  # rule: level_rises_by_turns
                self.lane.reached = max(self.lane.reached, level)
                self.out(e)
        if len(passed) >= SCAN:
            self.soonest = D if self.soonest is None else self.soonest

    def next_of(self, name: str, homed: list[Entry], age: int) -> Entry | None:
        """The first of a tenant by rank, of what this worker may take."""
        rows = [(e.rank, e) for e in self.lane.of(name) if not e.home][:1]
        own = self.own_rows if name else self.lane.rows(self.mine)  # rule: limits_hide_nobody
        rows += [(e.rank, e) for e in own if e.tenant == name and not e.until and self.is_here(e)][:1]
        others = [e for e in homed if self.is_here(e)]
        rows += [(e.rank, e) for e in others if self.mine(e)]
        late = [e for e in others if self.foreign(e) and self.waited(e, age)]  # rule: in_its_turn_after_three_seconds
        rows += [(e.rank + TURN_LATER, e) for e in late[:1]]  # rule: another_homes_count_as_later
        if not rows:
            self.come_again(others)
            return None
        return min(rows, key=lambda row: (row[0], row[1].id))[1]  # rule: by_rank_in_its_turn

    def held(self) -> None:
        """Requests that were interrupted and wait for another worker."""
        for e in self.lane.rows(held=True):
            if self.room and self.tenant(e.tenant).may_run:
                self.out(e)  # rule: held_goes_where_nothing_else_is
