"""Steps of workers that are done with their work, or try to say so too late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

from streamfleet.common.broker.types import Completion, Lease, Retry
from streamfleet.common.protocol import Status
from tests.scripts.harness import ERROR
from tests.scripts.histories.state import MOST, FleetState
from tests.scripts.histories.steps import Step

_RUNS = count()


class Finishing(FleetState):
    """Complete, retry, release, renew; in time, or as a zombie."""

    async def _complete(self, step: Step) -> None:
        worker = self._worker(step)
        count = 1 + step.y % 3
        await self._finish(worker.name, worker.leases[:count], step)
        self.late += [(worker.name, lease) for lease in worker.leases[:count]][: step.z % 2]
        del worker.leases[:count]

    async def _finish(self, worker: str, leases: Sequence[Lease], step: Step) -> None:
        status = [Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED][step.z % 4]
        error = "" if status is Status.SUCCEEDED else ERROR
        done, expected = [], []
        usage = {"prompt_tokens": 3 + step.x % 50, "completion_tokens": step.y % 400}
        for lease in leases:
            entry = self.model.entries.get(lease.entry)
            reply = entry.reply if entry else "me"
            values = {"response": json.dumps({"by": worker})}
            if step.x % 4:
                values |= {"usage": json.dumps(usage), "resumed_tokens": str(step.y % 3)}
            known = entry.digest if entry and entry.request_id != entry.name and not self.one_body else ""
            done.append(Completion(lease, status, values, reply, error, digest=known))
            if self.model.holds(worker, lease):
                self.model.settle(lease.entry, sum(usage.values()) if step.x % 4 else None, step.y % 3, status)
                ghost = lease.entry in self.model.ghosts
                expected.append(1 if self.model.end(lease.entry, status, lease.attempt, letter=not ghost) else 2)
            else:
                expected.append(3 if self._published(worker, lease) else 0)
        assert await self.queue.broker.complete(worker, done) == expected

    def _published(self, worker: str, lease: Lease) -> bool:
        result = self.dump.get(f"result:{lease.request_id}", {})
        by = (result.get("worker"), result.get("attempt"), result.get("entry"))
        return by == (worker, str(lease.attempt), lease.entry)

    async def _retry(self, step: Step) -> None:
        worker = self._worker(step)
        if worker.leases:
            self.late.append((worker.name, worker.leases[0]))
            await self._retry_one(worker.name, worker.leases.pop(0), step)

    async def _retry_one(self, worker: str, lease: Lease, step: Step) -> None:
        delay = [0, 0, 1_000, 10_000, 30_000][step.y % 5]
        lost = step.y % 5 == 1
        expected = self._expect_retry(worker, lease, delay, lost)
        assert await self.queue.broker.retry_later(worker, [Retry(lease, delay, ERROR, lost)], MOST) == [expected]

    def _expect_retry(self, worker: str, lease: Lease, delay: int, lost: bool) -> int:
        model, name = self.model, lease.entry
        if not model.holds(worker, lease):
            return 0
        entry = model.entries[name]
        if name in model.ghosts:
            model.end(name, "vanished", 0)
            return 0
        model.hand_back(name, None)
        if entry.request_id in model.results:
            model.end(name, "", lease.attempt)
            return 4
        if lost and (lease.attempt >= MOST or not model.is_late(entry, self.now + delay)):
            model.lose(name, worker)
        if lease.attempt >= MOST:
            return 2 if model.end(name, "dead", lease.attempt) else 4
        if model.is_late(entry, self.now + delay):
            return 3 if model.end(name, "expired", lease.attempt) else 4
        model.tries[name] = lease.attempt
        if delay:
            model.places[name] = ("delayed", self.now + delay)
        else:
            model.come_back(name)
        return 1

    async def _release(self, step: Step) -> None:
        worker = self._worker(step)
        leases = worker.leases[: 1 + step.y % 2]
        if step.z % 3:
            await self._give_way(worker.name, leases, kept=step.z % 3 == 2)
        else:
            await self._release_all(worker.name, leases)
        self.late += [(worker.name, lease) for lease in worker.leases[: 1 + step.y % 2]]
        del worker.leases[: 1 + step.y % 2]

    async def _release_all(self, worker: str, leases: Sequence[Lease]) -> None:
        mine = [lease.entry for lease in leases if self.model.holds(worker, lease)]
        released = await self.queue.broker.release(worker, leases)
        assert released == len([name for name in mine if name not in self.model.ghosts])
        for name in mine:
            if name not in self.model.ghosts:
                self.model.hand_back(name, 0)
            self._back(name)

    async def _give_way(self, worker: str, leases: Sequence[Lease], *, kept: bool) -> None:
        """They are interrupted for urgent requests."""
        runs = {lease: f"run-{next(_RUNS)}" for lease in leases if kept}
        if runs and not self.full:
            assert await self.queue.broker.keep({run: run.encode() for run in runs.values()})
            self.model.outputs.update(runs.values())
        mine = [lease.entry for lease in leases if self.model.holds(worker, lease)]
        sizes = {lease: (run, len(run)) for lease, run in runs.items()}
        await self.queue.broker.release(worker, leases, gave_way=True, kept=sizes, generated=dict.fromkeys(runs, 7))
        for lease in leases:
            name, run = lease.entry, runs.get(lease, "")
            if name not in mine:
                continue
            if name not in self.model.ghosts:
                self.model.hand_back(name, 7 if run else 0)
            self.model.interrupt(name, worker, f" {run} {len(run)}" if run else "")
            self._back(name)

    async def _renew(self, step: Step) -> None:
        """Also how a worker learns what it lost."""
        worker = self._worker(step)
        codes = await self._renew_all(worker.name, worker.leases)
        worker.leases = [lease for lease, code in zip(worker.leases, codes, strict=True) if code]

    async def _renew_all(self, worker: str, leases: Sequence[Lease]) -> list[int]:
        mine = [self.model.holds(worker, lease) for lease in leases]
        codes: list[int] = [*await self.queue.broker.renew(worker, leases)]
        for lease, held, code in zip(leases, mine, codes, strict=True):
            if held and self.renewal_drops_deleted and lease.entry in self.model.ghosts:
                assert code == 0
                self.model.vanish(lease.entry)
            else:
                assert code == (0 if not held else 2 if lease.request_id in self.model.results else 1)
            if held:
                self.aged.discard(lease.entry)
        return codes

    async def _late(self, step: Step) -> None:
        """Somebody acts on a lease that it had long ago, be it still good or not."""
        if not self.late:
            return
        recent = self.late[-6:]
        worker, lease = recent[step.x % len(recent)]
        action = step.y % 4
        if action == 0:
            await self._finish(worker, [lease], step)
        elif action == 1:
            await self._retry_one(worker, lease, step)
        elif action == 2:
            await self._release_all(worker, [lease])
        else:
            await self._renew_all(worker, [lease])
