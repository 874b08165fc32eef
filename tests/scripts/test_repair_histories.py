"""Seeded histories: hands break random things at random moments, workers go on, and now and then it is mended."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from typing import Any

import pytest

from streamfleet.common.broker.types import Home, Lease
from streamfleet.common.keys import GROUP, NOBODY
from streamfleet.common.replies import ready_member
from streamfleet.operator.repair import Inspection
from tests.scripts.breaking import Scene, drained, endings, finish, mended
from tests.scripts.conftest import open_queue
from tests.scripts.harness import Queue

LENGTH = 80
WORKERS = ("w1", "w2", "w3")
SHARED = (
    *("ready:high", "delayed", "tries", "counts", "lanes", "entries", "clock", "wake", "bench", "watch", "workers"),
    *("cancels", "dead", "tickets", "turns:high", "served", "sessions", "loads"),
)
LABELS = [{}, {"tenant": "t1"}, {"tenant": "t2"}, {"session": "s1"}, {"tenant": "t1", "session": "s2"}]
STEPS = {
    "enqueue": 6,
    "pull": 8,
    "finish": 8,
    "retry": 3,
    "release": 2,
    "stage": 3,
    "hand_out": 2,
    "reclaim": 2,
    "promote": 2,
    "break": 4,
    "delete": 2,
    "look": 1,
    "mend": 1,
}


class Story:
    """A queue, what its workers believe to hold, and which bodies hands have deleted.

    Args:
        queue: the queue, empty.
        now: its clock, epoch ms.
        seed: of what happens.
        labelled: some requests have tenants and sessions.
    """

    def __init__(self, queue: Queue, now: int, seed: int, labelled: bool) -> None:
        self.labelled = labelled
        self.scene = Scene(queue.at(now), now, {}, None)  # type: ignore[arg-type]
        self.random = random.Random(seed)
        self.leases: list[tuple[str, Lease]] = []
        self.deleted: set[str] = set()
        self.published: Counter[str] = Counter()
        self.made = 0

    @property
    def queue(self) -> Queue:
        return self.scene.queue

    async def play(self) -> None:
        for verb in self.random.choices(list(STEPS), list(STEPS.values()), k=LENGTH):
            await getattr(self, f"_{verb}")()
        await mended(self.scene)
        ended = await drained(self.scene)
        lost = {name for name, status in ended.items() if status == "vanished"}
        assert lost <= self.deleted, f"{lost - self.deleted} had a body, and was given up"
        assert set(ended.values()) <= {"succeeded", "vanished"}, ended
        assert max(self.published.values(), default=0) <= 1
        await mended(self.scene)
        assert await endings(self.scene) == ended

    def _some(self) -> tuple[str, Lease] | None:
        return self.leases.pop(self.random.randrange(len(self.leases))) if self.leases else None

    async def _enqueue(self) -> None:
        names = [f"r{self.made + number}" for number in range(self.random.randint(1, 4))]
        self.made += len(names)
        labels = self.random.choice(LABELS) if self.labelled else {}
        if labels:
            for name in names:
                await self.scene.add(name, **labels)
        else:
            await self.scene.enqueue(*names)

    async def _pull(self) -> None:
        worker = self.random.choice(WORKERS)
        home = Home("a", 0) if self.labelled else None
        pulled = await self.queue.pull(worker, self.random.randint(1, 3), home=home)
        self.leases += [(worker, claim.lease) for claim in pulled.claims]

    async def _finish(self) -> None:
        if held := self._some():
            self.published[held[1].request_id] += await finish(self.queue, *held) == [1]

    async def _retry(self) -> None:
        if held := self._some():
            await self.queue.retry(*held, self.random.choice([0, 1_000, 50_000]), most=10**6)

    async def _release(self) -> None:
        if held := self._some():
            given_way: dict[str, Any] = {"gave_way": True, "kept": {held[1]: ("run", 3)}} if self.labelled else {}
            await self.queue.broker.release(held[0], [held[1]], **given_way)

    async def _stage(self) -> None:
        await self.queue.pull("w1", 0, stage_entries=self.random.choice([1, 4, 256]))

    async def _hand_out(self) -> None:
        await self.queue.broker.ensure_groups()
        await self.scene.command("XREADGROUP", "GROUP", GROUP, NOBODY, "COUNT", 1, "STREAMS", self.scene.lane, ">")

    async def _reclaim(self) -> None:
        await self.queue.broker.reclaim(0, 10**6)

    async def _promote(self) -> None:
        self.scene.now += self.random.choice([100, 5_000])
        self.scene.queue = self.queue.at(self.scene.now)
        await self.queue.broker.return_delayed()

    async def _break(self) -> None:
        """By hand. What no script can work with is mended at once: until then nobody could go on."""
        scene, keys = self.scene, self.queue.keys
        if not scene.entries:
            return
        if self.labelled and self.random.random() < 0.5:
            await self._break_labelled()
            return
        kind = self.random.randrange(8)
        some = scene.entries[self.random.choice(list(scene.entries))]
        if kind == 0:
            await scene.command("DEL", f"{keys.base}{self.random.choice(SHARED)}")
        elif kind == 1:
            await self._spoil_group()
        elif kind == 2:
            await scene.command("XACK", scene.lane, GROUP, some)
        elif kind == 3:
            await scene.command("ZADD", scene.ready, scene.now, ready_member(some))
        elif kind == 4:
            await scene.command("ZADD", keys.delayed, scene.now, f"2|{some}")
        elif kind == 5:
            await scene.command("ZREM", scene.ready, ready_member(some))
        elif kind == 6:
            await scene.command("HSET", keys.tries, f"2|{some}", 1)
        else:
            key = f"{keys.base}{self.random.choice(SHARED)}"
            await scene.command("DEL", key)
            await scene.command("SET", key, "by hand")
            await self._mend()

    async def _break_labelled(self) -> None:
        scene, keys = self.scene, self.queue.keys
        sets = sorted(await scene.command("KEYS", f"{scene.ready}:*"))
        sets = [key for key in sets if b":broken:" not in key]
        kind = self.random.randrange(6)
        if kind == 0:
            await scene.command("HDEL", keys.tickets, *(await scene.command("HRANDFIELD", keys.tickets, 2) or ["none"]))
        elif kind == 1:
            await scene.command("HSET", keys.lane_states, "labelled", f"0 0 0 0;{self.random.randrange(9)} 1 1 0;")
        if kind < 2 or not sets:
            return
        key = self.random.choice(sets)
        member = (await scene.command("ZRANDMEMBER", key)) or b"none"
        if kind == 2:
            await scene.command("DEL", key)
        elif kind == 3:
            await scene.command("ZREM", key, member)
        elif kind == 4:
            await scene.command("ZADD", self.random.choice(sets), scene.now, member)
        else:
            await scene.command("DEL", key)
            await scene.command("SET", key, "by hand")
            await self._mend()

    async def _spoil_group(self) -> None:
        lane = self.scene.lane
        await self.queue.broker.ensure_groups()
        words: list[tuple[object, ...]] = [
            ("DESTROY", lane, GROUP),
            ("SETID", lane, GROUP, "0"),
            ("SETID", lane, GROUP, "$"),
            ("SETID", lane, GROUP, f"{self.scene.now * 10}-0"),
            ("DELCONSUMER", lane, GROUP, self.random.choice(WORKERS)),
        ]
        await self.scene.command("XGROUP", *self.random.choice(words))

    async def _delete(self) -> None:
        scene, lane = self.scene, self.scene.lane
        if not scene.entries:
            return
        if self.random.random() < 0.9:
            gone = scene.entries[self.random.choice(list(scene.entries))]
            await scene.command("XDEL", lane, gone)
            self.deleted |= {name for name, stream_id in scene.entries.items() if stream_id == gone}
            return
        self.deleted |= set(scene.entries)
        await scene.command(*self.random.choice([("XTRIM", lane, "MAXLEN", 2), ("DEL", lane)]))

    async def _look(self) -> None:
        await Inspection(self.queue.broker, mend=False).run()

    async def _mend(self) -> None:
        await mended(self.scene)


async def play(url: str, seed: int, labelled: bool = False) -> None:
    """One history on an emptied server.

    Raises:
        AssertionError: something was lost, answered twice, or is not right after it was mended.
    """
    async with open_queue(url) as queue:
        await queue.command("FLUSHALL")
        await queue.broker.ensure_groups()
        await Story(queue, await queue.broker.now_ms(), seed, labelled).play()


@pytest.mark.parametrize("seed", range(14))
async def test_whatever_hands_do_it_can_be_mended(redis_url: str, seed: int) -> None:
    await play(redis_url, seed)


@pytest.mark.parametrize("seed", range(100, 120))
async def test_and_where_requests_have_labels(redis_url: str, seed: int) -> None:
    await play(redis_url, seed, labelled=True)


@pytest.mark.parametrize("seed", range(30, 33))
async def test_and_on_any_release(any_redis_url: str, seed: int) -> None:
    await play(any_redis_url, seed)


if __name__ == "__main__":  # python -m tests.scripts.test_repair_histories URL FIRST LAST [labelled]
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        try:
            asyncio.run(play(sys.argv[1], number, labelled=len(sys.argv) > 4))
        except Exception as error:
            raise SystemExit(f"seed {number}: {type(error).__name__}: {error}") from error
