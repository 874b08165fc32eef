"""A queue under load whose keys are damaged, and mended by the housekeeping: what must hold ten seconds later.

Workers are played on the scripts, on a clock that is handed in. Requests have tenants with limits, sessions, deadlines,
retries and interruptions. Each key that can be made anew, by the table in keys.py, is deleted, is of another type, or
is as it was some seconds before; also two of them at once.

    python -m tests.scripts.damage 1000000      how long it takes where so many requests wait, and the longest call
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from itertools import chain

from streamfleet.common.broker.types import Completion, Home, Lease, Retry, TenantRule
from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.operator.repair import Inspection
from streamfleet.worker.housekeeping import SERVICES, turns_of_work
from streamfleet.worker.mending import Mender
from streamfleet.worker.services.turn import take_turn
from tests.scripts.conftest import open_queue
from tests.scripts.harness import BODY, ERROR, Queue
from tests.scripts.histories.model import places_of
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

BEGIN = 1_900_000_000_000
STEP_MS, TICK_MS = 100, 1_000
BEFORE_MS, MENDED_MS = 6_000, 10_000
LATE_MS = 2_000
"""Time after its deadline by which a request has ended, in a queue that is in order."""
WORKERS = ("w1", "w2", "w3")
SLOTS = 3
HOW = ("deleted", "of another type", "of an earlier time")


class Played:
    """A clock for the mender: between two steps it only goes on by `call_ms` at each reading."""

    def __init__(self) -> None:
        self.now, self.call_ms, self._calls = BEGIN, 0, 0

    def monotonic(self) -> float:
        self._calls += 1
        return (self.now + self._calls * self.call_ms) / 1_000

    def now_ms(self) -> int:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


class Damaged:
    """One queue, and what its workers hold.

    Args:
        queue: the queue, empty.
        seed: of what happens.
    """

    def __init__(self, queue: Queue, seed: int) -> None:
        self.clock, self.chance = Played(), random.Random(seed)
        queue.connection._patience_s = 0
        self.queue = queue.with_limits(now_ms=BEGIN, lane_limit=10_000)
        self.leases: dict[str, list[Lease]] = {worker: [] for worker in WORKERS}
        self.deadlines: dict[str, int | None] = {}
        self.published: Counter[str] = Counter()
        self.kept: dict[str, bytes | None] = {}
        self.load = True
        self.unsure: set[str] = set()
        """Workers whose last pull was refused, perhaps after it had taken something."""

    async def play(self, *damages: tuple[str, str]) -> None:
        """Damage keys under load; `damages`: keys, and how as in `HOW`.

        Raises:
            AssertionError: ten seconds later something is not as it must be.
        """
        await self.queue.broker.ensure_groups()
        await self.queue.broker.set_tenant("t1", TenantRule(2.0, 2))
        snapshot_at = BEGIN + self.chance.randrange(1_000, BEFORE_MS, STEP_MS)
        while self.clock.now < BEGIN + BEFORE_MS:
            await self._step()
            if self.clock.now == snapshot_at:
                self.kept = {key: await self.queue.command("DUMP", key) for key in await self.keys()}
        for key, how in damages:
            await self._damage(key, how)
        end = self.clock.now + MENDED_MS
        while self.clock.now < end:
            self.load = self.clock.now < end - 2 * TICK_MS
            await self._step()
        damaged, counters = dict(damages), {self.queue.keys.counts, self.queue.keys.lane_states}
        await self._check(sure="of an earlier time" not in damaged.values() and not counters <= damaged.keys())
        await self._drain()

    async def play_long(self, number: int) -> None:
        """Delete the set of a lane in which so many wait, where each of the mender's calls takes 10 ms.

        Raises:
            AssertionError: ten seconds later something is not as it must be.
        """
        await self.queue.broker.ensure_groups()
        await fill(self.queue, number, BEGIN)
        self.clock.call_ms = 10
        await self._damage(self.queue.keys.ready(Lane.HIGH), "deleted")
        while self.clock.now < BEGIN + MENDED_MS:
            await self._step()
        await self._check(sure=True)

    async def play_idle(self, key: str) -> None:
        """Bring a key back as it was under load, once all requests have ended and all workers sleep.

        Raises:
            AssertionError: ten seconds later something is not as it must be.
        """
        await self.queue.broker.ensure_groups()
        while self.clock.now < BEGIN + BEFORE_MS:
            await self._step()
        for _ in range(20):
            await self._add()
        await self.queue.broker.stage("w1")
        self.kept = {name: await self.queue.command("DUMP", name) for name in await self.keys()}
        await self._drain()
        await self._damage(key, "of an earlier time")
        for _ in range(MENDED_MS // TICK_MS):
            self._set_clock(self.clock.now + TICK_MS)
            await self._keep_house()
        await self._check(sure=False)

    async def keys(self) -> list[str]:
        """The keys that can be made anew, and the sets of labels that there are."""
        keys = self.queue.keys
        sets = [key.decode() for key in await self.queue.command("KEYS", f"{keys.ready('')}*")]
        return sorted({*keys.typed(derived=True), *sets} - {keys.maintain, keys.arrivals})

    async def _damage(self, key: str, how: str) -> None:
        await self.queue.command("DEL", key)
        if how == "of another type":
            text = self.queue.keys.typed().get(key) == "string"
            await self.queue.command("RPUSH" if text else "SET", key, "by hand")
        elif how == "of an earlier time" and (kept := self.kept.get(key)) is not None:
            await self.queue.command("RESTORE", key, 0, kept)

    # -- load ------------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        self._set_clock(self.clock.now + STEP_MS)
        if self.load:
            for _ in range(self.chance.choice([0, 0, 1, 2, 3])):
                await self._add()
        for worker in WORKERS:
            with suppress(BrokerUnavailable):  # as a worker does, it asks again
                await self._work(worker)
        if self.clock.now % TICK_MS == 0:
            await self._keep_house()

    def _set_clock(self, now: int) -> None:
        self.clock.now = now
        self.queue = self.queue.at(now)

    async def _add(self) -> None:
        pick, name = self.chance.choice, f"r{len(self.deadlines)}"
        tenant, session = pick(["", "", "t1", "t2", "t3"]), pick(["", "", "", "s1", "s2", "s3"])
        deadline = pick([None, None, self.clock.now + 600_000, self.clock.now + self.chance.randrange(1_000, 15_000)])
        fields = {"id": name, "tenant": tenant, "session": session, "deadline": deadline}
        self.deadlines[name] = deadline
        lane, stream_id = pick(LANES[1:3]), f"{self.clock.now}-{len(self.deadlines)}"
        await self.queue.add(lane, stream_id, **{field: value for field, value in fields.items() if value})

    async def _work(self, worker: str) -> None:
        held, broker = self.leases[worker], self.queue.broker
        if worker in self.unsure:
            await broker.disown(worker, held)
        if len(held) < SLOTS:
            self.unsure.add(worker)
            pulled = await self.queue.pull(worker, SLOTS - len(held), home=Home("1", len(held)))
            held += [claim.lease for claim in pulled.claims]
        self.unsure.discard(worker)
        chance = self.chance.random()
        if not held or chance < 0.4:
            return
        lease = held[self.chance.randrange(len(held))]
        if chance < 0.85 or not self.load:
            (code,) = await broker.complete(worker, [Completion(lease, Status.SUCCEEDED, {"usage": "{}"})])
            self.published[lease.request_id] += code == 1
        elif chance < 0.92:
            await broker.retry_later(worker, [Retry(lease, self.chance.choice([0, 1_000, 12_000]), ERROR)], 10**6)
        else:
            await broker.release(worker, [lease], gave_way=True, kept={lease: (f"run{self.clock.now}", 9)})
        held.remove(lease)

    async def _keep_house(self) -> None:
        """Take one turn of the housekeeping, as another worker each time; the next turn does a part that is refused."""
        mender = Mender(self.queue.broker, self.clock)
        await mender.mend_types()
        await self.queue.command("DEL", self.queue.keys.maintain)
        turn = await self.queue.broker.acquire_housekeeping_lock("w1", 1_000, 5_000)
        for part in self._parts(mender, turn.number, turns_of_work(turn)):
            with suppress(BrokerUnavailable):
                await part

    def _parts(self, mender: Mender, number: int, turns: int) -> Iterator[Awaitable[object]]:
        broker = self.queue.broker
        for worker in WORKERS:
            yield broker.heartbeat(worker, {"seen_ms": self.clock.now})
        if turns:
            yield broker.return_delayed(most_delay_ms=60_000)
            yield broker.reclaim(3_600_000, 10**6)
            yield broker.stage("w1", 1_000)
        yield broker.tend_waiting()
        for before in range(turns):
            yield mender.tick(number - before)
        if turns:
            yield broker.expire()
            yield take_turn(broker, SERVICES)

    # -- what must hold ---------------------------------------------------------------------------------------------

    async def _check(self, *, sure: bool) -> None:
        """Each entry has its one place.

        `sure`: nothing counts as vanished. Members that a set got back may, and what had ended before the counters went
        with `lanes`, from which they are made anew.
        """
        dump = await self.queue.dump()  # raises where sets of labels contradict each other
        places = places_of(dump)  # raises where an entry has two places, or none
        running = {f"{lease.entry}" for held in self.leases.values() for lease in held}
        assert {name for name, place in places.items() if place[0] == "running"} == running
        late = [
            name
            for name, place in places.items()
            if place[0] == "ready" and (deadline := self._deadline(dump, name)) and deadline < self.clock.now - LATE_MS
        ]
        assert not late, f"{late} wait though their deadlines have passed"
        report = await Inspection(self.queue.broker, mend=False).run()
        assert not report.problems, report.problems
        assert report.audit is not None
        assert report.audit.counts.get("vanished", 0) == 0 or not sure

    def _deadline(self, dump: dict[str, dict[str, dict[str, dict[str, str]]]], name: str) -> int | None:
        lane, _, stream_id = name.partition(":")
        return self.deadlines.get(dump[f"lane:{lane}"]["entries"][stream_id].get("id", ""))

    async def _drain(self) -> None:
        """All requests end; each has one result, and those that had no deadline one of a run."""
        self.load = False
        for _ in range(1_000):
            await self._step()
            if not any(self.leases.values()) and (await self.queue.broker.audit()).outstanding == 0:
                break
        results = await self.queue.broker.results([*self.deadlines])
        lost = [name for name, result in zip(self.deadlines, results, strict=True) if result is None]
        assert not lost, f"{lost} have no result"
        for name, result in zip(self.deadlines, results, strict=True):
            deadline = self.deadlines[name]
            assert result is not None
            assert result.status == "succeeded" or (result.status == "expired" and deadline), f"{name}: {result.status}"
            assert self.published[name] <= (result.status == "succeeded"), f"{name}: {self.published[name]} results"


def damages(keys: list[str], seed: int) -> list[tuple[str, str]]:
    """One key or two, and how each is damaged."""
    chance = random.Random(f"damages {seed}")
    return [(key, chance.choice(HOW)) for key in chance.sample(keys, 1 + seed % 2)]


async def play(queue: Queue, seed: int) -> None:
    """Damage that the seed chooses, out of the keys and sets that there usually are."""
    played, keys = Damaged(queue, seed), queue.keys
    sets = ("t:t1", "t:t2", "th:t1", "ht:1", "ht:2", "h:1", "h:2", "held", "firsts", "late", "past")
    names = [key for key in await played.keys() if ":critical" not in key and ":low" not in key]
    names += [f"{keys.ready(lane)}:{name}" for lane in (Lane.HIGH, Lane.NORMAL) for name in sets]
    await played.play(*damages(sorted(names), seed))


async def fill(queue: Queue, number: int, now_ms: int) -> None:
    """So many wait in a lane, half of them of tenants, a tenth of sessions."""
    labels = [{"tenant": f"t{each % 50}"} if each % 2 else {} for each in range(50)]
    labels[::10] = [{"session": f"s{each}"} for each in range(5)]
    for first in range(0, number, 1_000):
        adds = [
            ("XADD", queue.keys.lane(Lane.HIGH), f"{now_ms}-{each}", "body", BODY, *chain(*labels[each % 50].items()))
            for each in range(first, min(first + 1_000, number))
        ]
        await queue.connection.pipeline(adds)
    while (await queue.broker.pull("w1", 0, stage_entries=2_000, home=Home("1", 0))).staged:
        pass


async def made_anew(queue: Queue, number: int) -> str:
    """Make a lane anew in which so many wait. Returns what it cost."""
    await fill(queue, number, int(time.time() * 1_000))
    before = (await queue.broker.audit()).lanes
    await queue.command("CONFIG", "SET", "slowlog-log-slower-than", 1_000)
    await queue.command("SLOWLOG", "RESET")
    began, used_s = time.monotonic(), await _cpu_s(queue)
    await queue.broker.begin(Lane.HIGH)
    while (await queue.broker.go_on(Lane.HIGH))[0]:
        pass
    took_s, used_s = time.monotonic() - began, await _cpu_s(queue) - used_s
    longest_ms = max((row[2] for row in await queue.command("SLOWLOG", "GET", 10_000)), default=0) / 1_000
    assert (await queue.broker.audit()).lanes == before
    assert await queue.broker.compare(Lane.HIGH, False) == []
    return f"{number} made anew in {took_s:.1f} s, {used_s:.1f} s of Redis's CPU, the longest call {longest_ms:.1f} ms"


async def _cpu_s(queue: Queue) -> float:
    lines = (await queue.command("INFO", "cpu")).decode().splitlines()
    return sum(float(line.partition(":")[2]) for line in lines if line.startswith(("used_cpu_user:", "used_cpu_sys:")))


async def main(number: int) -> None:
    """Print what it costs on a server of its own."""
    with RedisServer(newest(find_servers())) as server:
        async with open_queue(server.url) as queue:
            print(await made_anew(queue.with_limits(now_ms=None, lane_limit=10**8, patience_ms=10**7), number))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
