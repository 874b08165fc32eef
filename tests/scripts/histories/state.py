"""A fleet as far as the queue can tell, and what must hold of it after every step."""

from __future__ import annotations

from collections.abc import Sequence, Set
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
PASSED_OVER_MS, LOST = 1_000, 10**9
"""Time for which a request is left to its home; load of a home that is none any more."""
EXPECTED = {
    "limit": "another's is taken at once beside one that a worker may take but for the limit of its tenant",
}
"""Causes for which today's scripts take a request from its home before its time."""


_STARTS = count()


@dataclass
class Worker:
    """A worker process as far as the queue can tell."""

    name: str
    state: str = "awake"
    """awake, watching, read (a read brought something), waiting, full, down, or unsure (an answer was lost)."""
    called: bool = False
    """True if it took a token of the idle waiters, and has not pulled since."""
    watching: bool = False
    pulled_ms: int = 0
    """A ms before its last pull, because a token of the same ms would be taken for one from before it."""
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
        self.excused: Set[str] = EXPECTED.keys()
        self.made = len(self.workers)
        self.one_body = False
        """An id always comes with the same body, and workers do not tell its digest: as scripts took it before."""

    @property
    def sessions(self) -> bool:
        return self.shape // 2 % 4 == 3

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
        """Behind the housekeeping nothing is left over in the index, and nothing waits for a home that is none."""
        indexed = self.dump.get("homes", [])
        numbers = {number for number, _ in self.dump.get("loads", [])} | {"0"}
        for member, place in indexed:
            lane, stream_id = LANES[int(member[0]) - 1], "-".join(part[1:] for part in member[17:].split("-"))
            assert int(place) >> 40 == int(member[0])
            assert str(int(place) % 2**40) in numbers, f"{lane}:{stream_id} waits for nobody"
            known = self.model.places.get(f"{lane}:{stream_id}") == READY
            assert known or self.model.ghosts, f"{lane}:{stream_id} is left over"

    def _indexed(self) -> dict[str, str]:
        """Entries in the index of homes to the number of their home, 0 for nobody's."""
        found = {}
        for member, place in self.dump.get("homes", []):
            stream_id = "-".join(part[1:] for part in member[17:].split("-"))
            found[f"{LANES[int(member[0]) - 1]}:{stream_id}"] = str(int(place) % 2**40)
        return found

    def _homes(self) -> dict[str, str]:
        """Numbers of homes that are not lost to their workers."""
        alive = {number for number, load in self.dump.get("loads", []) if load < LOST}
        known = {name: value for name, value in self.dump.get("sessions", {}).items() if name.startswith("n|")}
        numbers = {value.partition(" ")[0]: name[2:] for name, value in known.items()}
        return {number: worker for number, worker in numbers.items() if number in alive}

    def _check_taken(self, worker: Worker, names: Sequence[str]) -> None:
        """A claimed request was nobody's or the worker's own before, or has waited, or was passed over, for long."""
        indexed, homes = self._indexed(), self._homes()
        lanes = set()
        for name in names:
            entry = self.model.entries[name]
            home = homes.get(indexed.get(name, "0"), worker.name)
            if home == worker.name:
                continue
            mark = self.dump["sessions"].get(f"^{[*LANES].index(entry.lane) + 1}", "")  # type: ignore[arg-type]
            times = [int(mark.partition(" ")[0] or self.now), self.model.enqueued(entry)]
            waited = self.now - min(times)  # a time ahead of the clock is from before it was set back
            early = waited < PASSED_OVER_MS and max(times) <= self.now
            excused = "limit" in self.excused and self._one_is_at_its_limit(entry.lane, worker)
            assert excused or not early, f"{name} waits for {home}, for {waited} ms only"
            assert entry.lane not in lanes or entry.tenant, f"{entry.lane}: two at once from others"
            lanes.add(entry.lane)

    def _one_is_at_its_limit(self, lane: str, worker: Worker) -> bool:
        """True if a request of the lane waits for this worker or for nobody, and its tenant may run no more."""
        indexed, homes = self._indexed(), self._homes()
        waiting = [name for name, place in self.model.places.items() if place == READY and name.startswith(f"{lane}:")]
        mine = [name for name in waiting if homes.get(indexed.get(name, "0"), worker.name) == worker.name]
        return not all(map(self.model.may_run, mine))

    def _check_homes_are_woken(self) -> None:
        """An idle waiter for which something waits has a wake-up. A watcher's may be with another, who passes it on."""
        indexed, homes = self._indexed(), self._homes()
        waiting = {name for name, place in self.model.places.items() if place == READY and self.model.may_run(name)}
        ready = {indexed.get(name, "0") for name in waiting}
        named = {homes.get(number, "") for number in ready}
        for worker in self.workers:
            if worker.name in named and worker.state == "waiting":
                assert self._woken(worker), f"work waits for {worker.name}, and it is not woken"

    def _check_wake_ups(self) -> None:
        assert self.dump.get("bench", ["1"]) == ["1"]
        assert self.dump.get("wake", {}).get("undelivered", 0) <= 1
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
        waiting = {f"home:{worker.name}" for worker in idle if worker.state == "waiting"}
        if any(key.startswith("home:") for key in self.dump.keys() - waiting):
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
        return worker.state == "waiting" and bool({"bench", f"home:{worker.name}"} & self.dump.keys())

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
