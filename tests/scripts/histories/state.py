"""A fleet as far as the queue can tell, and what must hold of it after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from streamfleet.common.broker.types import Hint, Home, Lease
from streamfleet.common.protocol import LANES
from tests.scripts.harness import Queue
from tests.scripts.histories.model import READY, UNDELIVERED, Model
from tests.scripts.histories.steps import Step
from tests.scripts.keyspace import Dump

ROOM = 2
"""Most requests that a worker runs at once."""
MOST = 2
"""Most deliveries."""
LANE_LIMIT = 5
HOME_MS, LOST = 1_000, 10**9
"""Time for which a request is left to its home; load of a home that is none any more."""


_STARTS = count()


@dataclass
class Worker:
    """A worker process as far as the queue can tell."""

    name: str
    state: str = "awake"
    """awake, watching, read (a read brought something), waiting, full, down, or unsure (an answer was lost)."""
    called: bool = False
    """True if it was woken by name, and has not pulled since."""
    until: int = 0
    """End of a watcher's wait, epoch ms."""
    start: str = field(default_factory=lambda: str(next(_STARTS)))
    """Each start of a worker has a prefix cache of its own."""
    hints: list[Hint] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        """True if it will pull without being woken."""
        return self.state in ("read", "unsure") or (self.state == "awake" and len(self.leases) < ROOM)


class FleetState:
    """The workers, the model of the queue, and the comparison of both with Redis."""

    def __init__(self, queue: Queue, now: int, workers: int = 5, watchers: int = 2) -> None:
        self.model = Model()
        self.model.now = now
        self.queue = queue.with_limits(now_ms=now, lane_limit=LANE_LIMIT, watchers=watchers)
        self.now = now
        self.workers = [Worker(f"w{number}") for number in range(workers)]
        self.late: list[tuple[str, Lease]] = []
        self.aged: set[str] = set()
        self.renewal_drops_deleted = True
        """Redis 6.2 goes on renewing an entry that was deleted by hand."""
        self.disturbed = False
        """A worker died with a wake-up; until the next housekeeping nobody need be woken."""
        self.dead_watches: dict[str, int] = {}
        """Workers that died while they watched, and until when they count as watching."""
        self.dump: Dump = {}
        self.vain = 0
        """Number of pulls that got nothing."""
        self.shape = 0
        """Odd: some requests are a tenant's. Its next two bits: some are of sessions."""
        self.made = len(self.workers)
        self.full = False
        """The server refuses in this step whatever needs memory."""
        self.one_body = False
        """An id always comes with the same body, and workers do not tell its digest: as scripts took it before."""

    @property
    def sessions(self) -> bool:
        return self.shape // 2 % 4 == 3 and "homes" not in self.model.without

    def _home(self, worker: Worker) -> Home:
        """A worker tells this of its cache and its requests."""
        return Home(worker.start, len(worker.leases))

    async def check(self) -> None:
        """Compare everything, ask the audit, and see that work does not wait beside idle workers."""
        self.dump = await self.queue.dump()
        self.model.compare(self.dump, MOST)
        if not self.model.ghosts:
            problems = (await self.queue.broker.audit()).problems()
            assert not problems, problems
        self._check_wake_ups()

    def _check_homes(self) -> None:
        """Behind the housekeeping nothing waits for a home that is none."""
        numbers = {number for number, _ in self.dump.get("loads", [])}
        assert set(self._tickets().values()) <= numbers, f"{self._tickets()}: there are {numbers}"

    def _tickets(self) -> dict[str, str]:
        """Entries that wait for a home, to its number."""
        found = {}
        for member, ticket in self.dump.get("tickets", {}).items():
            number, stream_id = member.split("|")
            found[f"{LANES[int(number) - 1]}:{stream_id}"] = ticket.partition(" ")[0]
        return found

    def _homes(self) -> dict[str, str]:
        """Numbers of homes that are not lost to their workers."""
        alive = {number for number, load in self.dump.get("loads", []) if load < LOST}
        known = {name: value for name, value in self.dump.get("sessions", {}).items() if name.startswith("n|")}
        numbers = {value.partition(" ")[0]: name[2:] for name, value in known.items()}
        return {number: worker for number, worker in numbers.items() if number in alive}

    def _check_taken(self, worker: Worker, names: Sequence[str]) -> None:
        """A claimed request was nobody's or the worker's own before, or has waited for long."""
        tickets, homes = self._tickets(), self._homes()
        for name in names:
            home = homes.get(tickets.get(name, ""), worker.name)
            waited = self.now - self.model.kept.get(name, self.model.entries[name].enqueued)
            early = 0 <= waited < HOME_MS  # a time ahead of the clock is from before it was set back
            assert home == worker.name or not early, f"{name} waits for {home}, for {waited} ms only"

    def _check_homes_are_woken(self) -> None:
        """A waiter for which something waits has a wake-up. A watcher's may be with another, who passes it on.

        Where a tenant may run one more, anybody is woken.
        """
        if self.model.most:
            return
        tickets, homes = self._tickets(), self._homes()
        waiting = {name for name, place in self.model.places.items() if place == READY and self.model.may_run(name)}
        named = {homes.get(tickets.get(name, ""), "") for name in waiting}
        for worker in self.workers:
            if worker.name in named and worker.state == "waiting":
                assert self._woken(worker), f"work waits for {worker.name}, and it is not woken"

    def _check_wake_ups(self) -> None:
        assert self.dump.get("wake", {}).get("undelivered", 0) <= self.queue.limits.watchers
        # A blocked watcher sees an entry come; with all watchers gone, nobody does until the next housekeeping.
        places = self.model.places.values()
        ready = any(place == READY and self.model.may_run(name) for name, place in self.model.places.items())
        work = ready or (UNDELIVERED in places and not self.dead_watches)
        idle = [worker for worker in self.workers if worker.state in ("watching", "waiting")]
        if self.disturbed or not work or not idle or any(worker.moves for worker in self.workers):
            return
        if self.sessions:
            self._check_homes_are_woken()
            return
        waiting = {f"wake:{worker.name}" for worker in idle if worker.state == "waiting"}
        told_dead = self.dead_watches and self.dump.get("wake", {}).get("undelivered")
        if told_dead or any(key.startswith("wake:") for key in self.dump.keys() - waiting):
            return  # the wake-up was for one that died; the housekeeping says it again
        watches = self._watches()
        if any(worker.state == "watching" and worker.name not in watches for worker in idle):
            return  # the clock jumped past its watch: it is woken when its wait is over
        assert any(self._woken(worker) for worker in idle), (
            f"work waits, and nobody comes: {[(w.name, w.state) for w in self.workers]}"
        )

    def _watches(self) -> set[str]:
        return {name for name, until in self.dump.get("watch", []) if until >= self.now}

    def _something_to_read(self) -> bool:
        return bool(self.dump.get("wake", {}).get("undelivered")) or UNDELIVERED in self.model.places.values()

    def _woken(self, worker: Worker) -> bool:
        if worker.state == "watching":
            return self._something_to_read()
        return worker.state == "waiting" and f"wake:{worker.name}" in self.dump

    def _set_clock(self, now: int) -> None:
        self.now = self.model.now = now
        self.queue = self.queue.at(now)

    def _back(self, name: str) -> None:
        if name in self.model.ghosts:
            self.model.end(name, "vanished", 0)
        else:
            self.model.come_back(name)

    def _some_id(self, number: int) -> str:
        """One of a few ids, new ones as the old ones end."""
        return f"r{len(self.model.results) // 2 + number % 6}"

    def _worker(self, step: Step) -> Worker:
        return self.workers[step.x % len(self.workers)]
