"""Steps in which something goes wrong, time passes, or the housekeeping mends it."""

from __future__ import annotations

from streamfleet.common.broker.types import TenantRule
from streamfleet.common.keys import NOBODY
from streamfleet.common.protocol import LANES, Lane
from tests.scripts.histories.model import HANDED_OUT, READY
from tests.scripts.histories.state import MOST, FleetState, Worker
from tests.scripts.histories.steps import Step
from tests.scripts.keyspace import id_key

LEASE_MS = 60_000
HOUR_MS, MOST_DELAY_MS = 3_600_000, 30_000


class Faults(FleetState):
    """Silence and crashes; reclaim, what is done before it and after staging; the clock."""

    async def _silence(self, step: Step) -> None:
        """A worker, or a watcher between its read and its pull, renews nothing for a long time, and may go on later."""
        if step.y % 3:
            await self._fall_silent(self._worker(step).name)
        else:
            await self._fall_silent(NOBODY)
            await self._reclaim_older(LEASE_MS)

    async def _fall_silent(self, owner: str) -> None:
        held = HANDED_OUT if owner == NOBODY else ("running", owner)
        for name, place in self.model.places.items():
            if place[:2] == held and name not in self.model.ghosts:
                lane, stream_id = name.split(":")
                await self.queue.age(lane, stream_id, owner)
                self.aged.add(name)
        mine = [worker for worker in self.workers if worker.name == owner]
        self.late += [(owner, lease) for worker in mine for lease in worker.leases]

    async def _crash(self, step: Step) -> None:
        """A worker dies, or a machine with all those that watch or were woken; others take their places sooner or
        later, every other time under the same names."""
        waking = [worker for worker in self.workers if worker.called or worker.hints or worker.state == "watching"]
        dying = [self._worker(step)] if not waking or step.z % 3 == 0 else waking if step.z % 3 == 1 else waking[:1]
        for worker in dying:
            await self._die(worker)
            name = worker.name if step.y % 2 else f"w{self.made}"
            self.workers.append(Worker(name, "awake" if step.x % 4 else "down"))
            self.made += 1

    async def _die(self, worker: Worker) -> None:
        await self._fall_silent(worker.name)
        self.disturbed = self.disturbed or worker.called or worker.state == "read"
        watches = dict(self.dump.get("watch", []))
        if worker.name in watches:
            self.dead_watches[worker.name] = watches[worker.name]
        self.workers.remove(worker)

    async def _reclaim(self, _: Step) -> None:
        await self._reclaim_older(LEASE_MS)

    async def _reclaim_older(self, lease_ms: int) -> None:
        pending = [name for name, place in self.model.places.items() if place[0] in ("running", "handed out")]
        order = sorted(pending, key=lambda name: (LANES.index(Lane(name.split(":")[0])), id_key(name.split(":")[1])))
        for name in self.aged.intersection(order).difference(self.model.ghosts):
            # The test's clock stands still while idle times grow: a second would look like a clock that was set back.
            (lane, stream_id), place = name.split(":"), self.model.places[name]
            await self.queue.age(lane, stream_id, NOBODY if place == HANDED_OUT else place[1])
        if self.aged & self.model.ghosts:  # to age one that was deleted would drop it
            await self.queue.command("HDEL", self.queue.keys.clock, "reclaimed")
        outcome = [self._take_back(name) for name in order if name in self.aged]
        reclaimed = await self.queue.broker.reclaim(lease_ms, MOST)
        assert [reclaimed.ready, reclaimed.dead, reclaimed.ended] == [
            outcome.count(n) for n in ("ready", "dead", "ended")
        ]
        self.aged.clear()

    def _take_back(self, name: str) -> str:
        model, place = self.model, self.model.places[name]
        attempts = 0 if place == HANDED_OUT else place[2]
        if place == HANDED_OUT:
            model.deliver(name)
        if name in model.ghosts or model.entries[name].request_id in model.results:
            model.end(name, "vanished", attempts)
            return "ended"
        if place != HANDED_OUT:
            model.lose(name, place[1])
        if attempts >= MOST:
            return "dead" if model.end(name, "dead", attempts) else "ended"
        if attempts:
            model.tries[name] = attempts
            model.hand_back(name, None)
        return "ready" if model.come_back(name) else "ended"

    async def _promote(self, step: Step) -> None:
        """Housekeeping; with it, who died while watching is replaced, once its watch is over."""
        if step.x % 2:
            await self._clock(Step("clock", 9, 0, 1))
        due = [name for name, place in self.model.places.items() if place[0] == "delayed" and place[1] <= self.now]
        for name in due:
            self._back(name)
        returned, _ = await self.queue.broker.return_delayed(most_delay_ms=MOST_DELAY_MS)
        assert returned == len([name for name in due if name in self.model.places])
        for name, place in self.model.places.items():
            if place[0] == "delayed":  # due later where the clock was set back
                self.model.places[name] = ("delayed", min(place[1], self.now + MOST_DELAY_MS))
        await self.queue.broker.tend_waiting()
        for key in [key for key in await self.queue.dump() if key.startswith("wake:")]:
            name = key.removeprefix("wake:")
            if all(worker.name != name or worker.state != "waiting" for worker in self.workers):
                await self.queue.command("DEL", self.queue.keys.wake_up(name))  # after a minute it is gone
        self.dump = await self.queue.dump()
        self._check_homes()
        self.disturbed = False
        # Also a worker that died while it waited: a watch may have been handed to it since.
        waits = {worker.name for worker in self.workers if worker.state in ("watching", "read", "waiting")}
        watches = self.dump.get("watch", [])
        self.dead_watches = {name: until for name, until in watches if until > self.now and name not in waits}

    async def _expire(self, _: Step) -> None:
        """Housekeeping: what is too late ends though nobody has room for it."""
        ready = [self.model.entries[name] for name, place in self.model.places.items() if place == READY]
        self.model.rank_anew()
        late = [entry for entry in ready if self.model.is_late(entry) and entry.name not in self.model.ghosts]
        for entry in sorted(late, key=lambda entry: (LANES.index(Lane(entry.lane)), self.model.order(entry.name))):
            self.model.end(entry.name, "expired", self.model.tries.get(entry.name, 0))
        await self.queue.broker.reconcile(whole=True)
        assert (await self.queue.broker.after_staging())[0] == len(late)
        if not self.full:  # else the services write nothing
            self.model.upkeep((await self.queue.dump()).get("tickets", {}))

    async def _limit(self, step: Step) -> None:
        """An operator sets the most of a tenant that run at once, and the housekeeping sees it."""
        tenant, most = "ab"[step.x % 2], step.y % 4
        await self.queue.broker.set_tenant(tenant, TenantRule(1, most or None))
        self.model.most.pop(tenant, None)
        if most and "tenants" not in self.model.without:
            self.model.most[tenant] = most
        await self._expire(step)

    async def _clock(self, step: Step) -> None:
        """Time goes on, mostly; a failover may set it back."""
        hours = HOUR_MS * (step.y % 3 - 1) if step.z % 4 == 0 else 0  # the clock of the server is set
        ms = [100, 1_000, 5_000, 20_000, -1_000, -30_000, 50, 700, 2_000, 8_000][step.x % 10]
        self._set_clock(self.now + hours + ms)

    async def _forget(self, step: Step) -> None:
        """Consumers of workers that left are deleted where they hold nothing; the server forgets its scripts."""
        await self.queue.broker.heartbeat(self._worker(step).name, {})
        await self.queue.broker.deregister(silent_ms=-1)
        waits = {name for name, _ in (await self.queue.dump()).get("waiting", [])}
        for worker in self.workers:  # one that was forgotten while it waits is woken once it has told of itself
            if worker.state == "waiting" and worker.name not in waits:
                worker.state = "awake"
        await self.queue.command("SCRIPT", "FLUSH")
