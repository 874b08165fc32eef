"""The order, part 3: which worker is the home of a request, and how early a turn of a program ranks.

A home is a worker's number; each start of a worker gets a new one, because its cache is empty. 0 is nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1

BEGINNING = 1024  # bytes of a body that have to be alike
OVER = 4  # requests that a home may have more than the least loaded worker
HOT = 8  # uses lately for each home of a session
MOST_HOMES = 16  # of a beginning
LATELY = 4000  # ms in which a use fades to 1/e


@dataclass
class Known:
    """A session or a beginning: its homes, the last one first, and how often it was used lately."""

    name: str
    homes: list[int] = field(default_factory=list)
    last: int = 0
    uses: float = 0

    def use(self, now: int) -> None:
        self.uses = self.uses * math.exp(-max(0, now - self.last) / LATELY) + 1
        self.last = now

    @property
    def most(self) -> int:
        return 1 + int(self.uses / HOT) if self.uses > HOT else 1


@dataclass
class Homes:
    """Homes of sessions and beginnings. `work`: worker to requests that it holds or that wait for it; the caller's."""

    work: dict[int, int] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)

    def home_of(self, now: int, session: str, beginning: str, waits: Callable[[int], bool], tenant: str = "") -> int:
        """Returns the home of a request that becomes ready.

        Args:
            now: epoch ms.
            session: its session, "" for none.
            beginning: how its prompt begins, "" where that is shorter than BEGINNING.
            waits: True if something waits in the request's lane for this home.
            tenant: its tenant: nobody else's requests tell where its cache is.
        """
        mine, shared = self._of("s", tenant, session), self._of("p", tenant, beginning)
        if mine:
            mine.use(now)
            if homes := [n for n in mine.homes if n in self.work]:
                home = min(homes, key=lambda n: self.work[n])  # rule: session_stays_at_its_home
                return self._hot(mine, home, waits)
        if shared:
            shared.use(now)
        home = self._least(mine or shared)
        if not mine and (not shared or (shared.uses == 1 and not shared.homes)):
            home = 0  # rule: beginning_counts_when_it_comes_again
        if not home:
            return 0
        if some := [n for n in (shared.homes if shared else ()) if n in self.work]:
            known = min(some, key=lambda n: self.work[n])
            if self.work[known] <= self.work[home] + OVER:
                home = known  # rule: beginning_goes_where_it_was_read
        self._first(mine, home, 1)
        self._first(shared, home, MOST_HOMES)
        return home

    def took(self, worker: int, session: str, beginning: str, tenant: str = "") -> None:
        """A worker took what waited for another, or for nobody: it is the home of what comes next."""
        mine = self._of("s", tenant, session)
        self._first(mine, worker, mine.most if mine else 1)  # rule: who_takes_it_is_its_home
        self._first(self._of("p", tenant, beginning), worker, MOST_HOMES)

    def _hot(self, mine: Known, home: int, waits: Callable[[int], bool]) -> int:
        if mine.uses <= HOT or not waits(home):
            return home
        other = self._least(mine)
        if self.work[other] + OVER <= self.work[home] and len(mine.homes) < mine.most:
            self._first(mine, other, mine.most)  # rule: hot_session_has_several_homes
            return other
        return home if mine.uses <= 2 * HOT else 0  # rule: hottest_is_anybodys

    def _least(self, asks: Known | None) -> int:
        """The worker with least to do; of several the name decides, so that homes spread in an idle fleet."""
        least = min(self.work.values(), default=0)
        some = sorted((n for n, load in self.work.items() if load == least), key=str)  # rule: least_loaded_is_home
        return some[int(asks.name[-4:], 16) % len(some)] if asks and some else 0

    def _first(self, record: Known | None, number: int, most: int) -> None:
        if record:
            record.homes = [number, *(n for n in record.homes if n != number and n in self.work)][:most]

    def _of(self, kind: str, tenant: str, words: str) -> Known | None:
        name = kind + sha1(f"{tenant}\0{words}".encode()).hexdigest()[:16]  # noqa: S324 - as the scripts do
        return self.known.setdefault(name, Known(name)) if words else None


def rank_in_program(rank: int, enqueued: int, first: int, deadline: int | None, now: int, *, given: bool) -> int:
    """Returns the rank of a turn of a program, where the queue ranks by program.

    Args:
        rank: its deadline, or what stands for one.
        enqueued: when the turn was enqueued.
        first: when the first request of its program, or else of its session and tenant, was.
        deadline: its deadline, None for none.
        now: epoch ms.
        given: it came with a `deadline`, not with a `ttl` or nothing.
    """
    if given:
        return rank  # rule: deadline_is_kept_to
    age = enqueued - first  # rule: older_program_first
    early = rank - min(age, (rank - enqueued) // 2)  # rule: at_most_half_of_the_time
    return rank if deadline is not None and early <= now else early  # rule: after_half_by_its_deadline
