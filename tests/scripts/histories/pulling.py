"""Steps of workers that wait for work and take it, and lose answers about it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1

from streamfleet.common.broker.types import Hint, Role
from tests.scripts.histories.model import HANDED_OUT, READY, UNDELIVERED
from tests.scripts.histories.state import ROOM, FleetState, Worker
from tests.scripts.histories.steps import Step

NEEDS_MS = 3_000
WATCH_MS, HANDED_MS = 5_000, 1_000
MOST_IN_VAIN = 20
"""Most pulls of a worker in a second that get nothing."""
LENGTHS = ["none", *map(str, range(60))]
TENANTS = ["", *(f" {sha1(name.encode()).hexdigest()[:8]}" for name in ("a", "b", "other"))]  # noqa: S324 - as scripts do
CLASSES = [length + tenant for length in LENGTHS for tenant in TENANTS]
"""Classes of length, of requests without a tenant and of each tenant's."""


class Pulling(FleetState):
    """Pull, be a watcher, be an idle waiter."""

    async def _act(self, step: Step) -> None:
        """One worker goes on, as far as it can without blocking."""
        worker = self._worker(step)
        if worker.state == "unsure":
            await self._disown(worker)
        elif worker.state == "watching" and self._woken(worker):
            worker.hints = await self._read()
            worker.state = "read"
        elif worker.state == "waiting" and self._woken(worker):
            watches = await self.queue.broker.wait(1_000, worker.name)
            worker.state, worker.called = "watching" if watches else "awake", True
            worker.until = self.now + HANDED_MS
        elif worker.moves:
            await self._pull(worker, step)

    async def _settle(self, step: Step) -> None:
        """Everybody who can go on does, woken or not, mostly until nobody can."""
        for _ in range(20 if step.z % 3 else step.z % 5):
            able = [number for number, worker in enumerate(self.workers) if worker.moves or self._woken(worker)]
            if not able:
                return
            await self._act(Step("act", able[step.x % len(able)], step.y, step.z))
            self.dump = await self.queue.dump()

    async def _rest(self, _: Step) -> None:
        """For a second nothing comes and nothing ends. Then workers pull only so often in vain.

        That is so whatever waits: for another worker, for a tenant's run to end, or for nothing.
        """
        end, bound = self.now + 1_000, self.vain + MOST_IN_VAIN * len(self.workers)
        while True:
            able = [number for number, worker in enumerate(self.workers) if worker.moves or self._woken(worker)]
            for number in able:
                await self._act(Step("act", number, 0, 0))
                self.dump = await self.queue.dump()
            assert self.vain <= bound, f"workers pull without an end: {[(w.name, w.state) for w in self.workers]}"
            if not able and self.now >= end:
                return
            if not able:
                watching = [worker for worker in self.workers if worker.state == "watching"]
                self._set_clock(min([end, *(worker.until for worker in watching if worker.until > self.now)]))
                for worker in watching:
                    worker.state = "awake" if worker.until <= self.now else "watching"

    async def _pull(self, worker: Worker, step: Step) -> None:
        wanted = ROOM - len(worker.leases)
        wanted = 1 + step.y % wanted if step.z % 2 else wanted
        most = max([256, 1, 2][step.z % 3], wanted)
        self.model.needs_ms = NEEDS_MS if self.shape // 2 % 2 else 0
        classes = LENGTHS if "tenants" in self.model.without else CLASSES
        needs = dict.fromkeys(classes, NEEDS_MS) if self.model.needs_ms else None
        pulled = await self.queue.pull(
            worker.name,
            wanted,
            worker.hints,
            stage_entries=most,
            needs=needs,
            home=self._home(worker),
        )
        if self.sessions:
            self._check_taken(worker, [claim.lease.entry for claim in pulled.claims])
        hints = [f"{hint.lane}:{hint.stream_id}" for hint in worker.hints]
        before, staged, vanished = len(self.model.places), self.model.counts["staged"], self._vanishing(hints)
        self.model.pull(worker.name, self.now, hints, pulled.claims, await self.queue.dump())
        waiting = [name for name, place in self.model.places.items() if place == READY]
        ready = sum(map(self.model.may_run, waiting))
        # Requests that a tenant may not run are not counted, nor those that it may because another one has just ended.
        assert pulled.ready <= len(waiting) if self.model.most else pulled.ready == ready
        assert pulled.staged == self.model.counts["staged"] - staged
        assert pulled.dropped == before - len(self.model.places) - vanished
        assert len(pulled.claims) <= wanted
        cut = pulled.staged >= most  # perhaps not all that came was staged: then it pulls again
        assert len(pulled.claims) == wanted or ready == 0 or cut or self.sessions or self.model.most
        room_to_watch = len(self._watches() - {worker.name}) < self.queue.limits.watchers
        expected = {Role.WATCHER if room_to_watch else Role.WAITER}
        if self.sessions:  # what was another's may be this worker's by now: it pulls again
            expected.add(Role.NONE)
        if cut or pulled.dropped or pulled.soonest_ms == 0:
            expected.add(Role.NONE)
        if len(pulled.claims) == wanted or (UNDELIVERED in self.model.places.values() and not self.sessions):
            expected = {Role.NONE}
        assert pulled.role in expected
        # Somebody may have released what this worker still believes to hold: then it may get the very same lease again.
        new = [claim.lease for claim in pulled.claims]
        worker.leases = [lease for lease in worker.leases if lease not in new] + new
        self.aged -= {claim.lease.entry for claim in pulled.claims}
        worker.hints, worker.called = [], False
        self.dead_watches.pop(worker.name, None)
        worker.until = self.now + (WATCH_MS if pulled.soonest_ms is None else pulled.soonest_ms + 1)
        if not pulled.claims and not pulled.staged and not pulled.dropped:
            self.vain += 1
        worker.state = {Role.NONE: "awake", Role.WATCHER: "watching", Role.WAITER: "waiting"}[pulled.role]

    def _vanishing(self, hints: Sequence[str]) -> int:
        """Number of entries that a blocking read delivered and that were deleted by hand since."""
        return sum(
            name in self.model.ghosts and self.model.places[name] == HANDED_OUT
            for name in hints
            if name in self.model.places
        )

    async def _read(self) -> list[Hint]:
        hints = await self.queue.broker.watch(1_000)
        for hint in hints:
            if hint.lane:
                assert self.model.places[f"{hint.lane}:{hint.stream_id}"] == UNDELIVERED
                self.model.places[f"{hint.lane}:{hint.stream_id}"] = HANDED_OUT
        return hints

    async def _disown(self, worker: Worker) -> None:
        known = {lease.entry for lease in worker.leases}
        held = [name for name, place in self.model.places.items() if place[:2] == ("running", worker.name)]
        unknown = [name for name in held if name not in known]
        back = await self.queue.broker.disown(worker.name, worker.leases)
        assert back == len([name for name in unknown if name not in self.model.ghosts])
        for name in unknown:
            if name not in self.model.ghosts:
                self.model.hand_back(name, 0)
            self._back(name)
        worker.state = "awake"

    async def _lose_answer(self, step: Step) -> None:
        """A pull's answer is lost: the worker holds what it does not know of."""
        worker = self._worker(step)
        if worker.state in ("awake", "read") and worker.moves:
            known = list(worker.leases)
            await self._pull(worker, step)
            self.late += [(worker.name, lease) for lease in worker.leases if lease not in known]
            worker.leases, worker.state = known, "unsure"

    async def _lose_read(self, step: Step) -> None:
        """The connection breaks after a blocking read took something."""
        worker = self._worker(step)
        if worker.state == "watching" and self._something_to_read():
            await self._read()
            worker.state = "unsure"

    async def _time_out(self, step: Step) -> None:
        worker = self._worker(step)
        if worker.state in ("watching", "waiting", "full", "down"):
            worker.state = "awake"

    async def _fill(self, step: Step) -> None:
        """A worker that waited or was just woken has no room any more, so it hands on what it took."""
        worker = self._worker(step)
        if worker.state in ("watching", "waiting", "read") or worker.called:
            hints = [f"{hint.lane}:{hint.stream_id}" for hint in worker.hints]
            pulled = await self.queue.pull(worker.name, 0, worker.hints, owing=True, home=self._home(worker))
            assert (pulled.role, list(pulled.claims)) == (Role.NONE, [])
            self.model.pull(worker.name, self.now, hints, [], await self.queue.dump())
            worker.hints, worker.called, worker.state = [], False, "full"

    async def _stage(self, step: Step) -> None:
        """The housekeeping loop of a worker, whatever its other loops do, brings arrivals in order."""
        pulled = await self.queue.pull(self._worker(step).name, 0, stage_entries=1 + step.z % 3)
        assert (pulled.role, list(pulled.claims)) == (Role.NONE, [])
        after = await self.queue.dump()
        assert {name for name, _ in self.dump.get("watch", [])} <= {name for name, _ in after.get("watch", [])}
        self.model.pull("nobody", self.now, [], [], after)
