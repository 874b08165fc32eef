"""A day of a fleet whose workers come and go, at the pace of Redis: the scripts' clock is set, their work is real."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from streamfleet.common.broker.types import Completion, Lease
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import LANES, Status
from tests.scripts.harness import ERROR, Queue, submission

DAY_MS = 86_400_000
SILENT_MS = 60_000
AT_ONCE = 25
RETRIES = 3
# Ways in which a worker ends: in order; killed while idle; killed while it holds requests; stopped until it was
# forgotten, and then going on; killed before its first sign of life.
ENDS = {"leaves": 75, "dies": 10, "dies holding": 10, "comes back": 4, "dies unseen": 1}


@dataclass
class Churn:
    """Workers, one after the other, spread over a day.

    Args:
        queue: where; its clock is this day's.
        seed: of who ends how.
        forgets: whether the housekeeping lets go of workers and dead letters, as it does.
    """

    queue: Queue
    seed: int = 0
    forgets: bool = True
    made: int = 0
    accepted: list[str] = field(default_factory=list)
    zombies: list[tuple[str, list[Lease]]] = field(default_factory=list)

    async def run(self, workers: int, span_ms: int = DAY_MS) -> None:
        """So many workers come and go within a span of time, some at once."""
        chance = random.Random(self.seed + self.made)
        now = self.queue.limits.now_ms or 0
        for _ in range(workers // AT_ONCE):
            now += span_ms * AT_ONCE // workers
            self.queue = self.queue.at(now)
            ends = chance.choices(list(ENDS), list(ENDS.values()), k=AT_ONCE)
            # A tenth of them in a StatefulSet, whose names come again.
            names = [
                f"pod-{number}" if number % 10 == 0 else f"worker-{self.made + number}" for number in range(AT_ONCE)
            ]
            self.made += AT_ONCE
            await self._live(dict(zip(names, ends, strict=True)), chance)
            await self._keep_house()

    async def _live(self, ends: dict[str, str], chance: random.Random) -> None:
        for name in [name for name, end in ends.items() if end != "dies unseen"]:
            await self.queue.broker.heartbeat(name, {})
        for name, end in ends.items():
            if chance.random() < 0.5:
                await self._enqueue(chance)
            leases = [claim.lease for claim in (await self.queue.pull(name, 2)).claims]
            if end == "comes back":
                self.zombies.append((name, leases))
            elif end != "dies holding":
                await self._end(name, leases, chance)
        for name in [name for name, end in ends.items() if end == "leaves"]:
            await self.queue.broker.deregister(name)

    async def _enqueue(self, chance: random.Random) -> None:
        request_id = f"r{len(self.accepted)}"
        self.accepted.append(request_id)
        await self.queue.broker.enqueue([submission(request_id, chance.choice(LANES), reply=f"caller-{self.made}")])

    async def _end(self, name: str, leases: list[Lease], chance: random.Random) -> None:
        failed = chance.random() < 0.2
        status, error = (Status.FAILED, ERROR) if failed else (Status.SUCCEEDED, "")
        done = [Completion(lease, status, {}, "", error) for lease in leases]
        if done:
            await self.queue.broker.complete(name, done)

    async def _keep_house(self) -> None:
        """Do the housekeeping of worker/housekeeping.py; no living worker holds anything between two workers here."""
        broker = self.queue.broker
        await broker.reclaim(0, RETRIES)
        await broker.return_delayed()
        await broker.tend_waiting()
        if self.forgets:
            await broker.deregister(silent_ms=SILENT_MS)
            await broker.retain()
        for name, leases in self.zombies:
            # It goes on where it was stopped: what it held was given away, and the rest of its life is as any other's.
            await broker.complete(name, [Completion(lease, Status.SUCCEEDED, {}) for lease in leases])
            await broker.heartbeat(name, {})
            await broker.release(name, [claim.lease for claim in (await self.queue.pull(name, 1)).claims])
            await broker.deregister(name)
        self.zombies.clear()

    async def settle(self) -> None:
        """Every request ends, and an hour passes without anybody."""
        for _ in range(50):
            await self.queue.broker.reclaim(0, RETRIES)
            leases = [claim.lease for claim in (await self.queue.pull("last", 64)).claims]
            await self._end("last", leases, random.Random(0))
            if (await self.queue.broker.audit()).outstanding == 0:
                break
        await self.queue.broker.deregister("last")
        self.queue = self.queue.at((self.queue.limits.now_ms or 0) + 3_600_000)
        if self.forgets:
            await self.queue.broker.deregister(silent_ms=0)
            await self.queue.broker.retain()

    async def sizes(self) -> dict[str, int]:
        """Every key of the queue with its number of items; the consumers of each lane as one more."""
        sizes: dict[str, int] = {}
        counters = {"stream": "XLEN", "hash": "HLEN", "zset": "ZCARD", "list": "LLEN", "string": "STRLEN"}
        for key in await self.queue.command("KEYS", f"{self.queue.keys.base}*"):
            kind = (await self.queue.command("TYPE", key)).decode()
            if kind == "none":
                continue  # expired since
            sizes[key.decode().removeprefix(self.queue.keys.base)] = await self.queue.command(counters[kind], key)
        for lane in LANES:
            rows = await self.queue.command("XINFO", "CONSUMERS", self.queue.keys.lane(lane), GROUP)
            sizes[f"consumers of {lane}"] = len(rows)
        return sizes
