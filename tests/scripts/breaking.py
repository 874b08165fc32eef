"""A queue with a request in every place, what an operator's hands can do to it, and working it off afterwards."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from streamfleet.common.broker.types import Completion, Lease
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import Status
from streamfleet.common.replies import ready_member
from streamfleet.operator.repair import Inspection, Report
from tests.scripts.harness import Queue, submission

LANE = "high"
LATER_MS = 100_000


@dataclass
class Scene:
    """A queue at the server's time, with a request of the lane `high` in every place.

    Attributes:
        queue: the queue.
        now: its clock, epoch ms.
        entries: request id to stream id.
        lease: what w1 holds.
    """

    queue: Queue
    now: int
    entries: dict[str, str]
    lease: Lease

    @property
    def lane(self) -> str:
        return self.queue.keys.lane(LANE)

    @property
    def ready(self) -> str:
        return self.queue.keys.ready(LANE)

    async def command(self, *words: object) -> object:
        return await self.queue.command(*words)

    async def enqueue(self, *names: str) -> None:
        """Requests as a client enqueues them, with a record of their ids."""
        accepted = await self.queue.broker.enqueue([submission(name, reply="me") for name in names])
        for name, answer in zip(names, accepted, strict=True):
            self.entries[name] = answer.entry.partition(":")[2]

    async def order(self) -> list[str]:
        """Request ids as they stand in the ready set."""
        names = {ready_member(stream_id).encode(): name for name, stream_id in self.entries.items()}
        return [names[member] for member in await self.queue.command("ZRANGE", self.ready, 0, -1) if member in names]


async def build(queue: Queue) -> Scene:
    """One request done, running, delayed, handed out, undelivered; two ready."""
    now = await queue.broker.now_ms()
    scene = Scene(queue.at(now), now, {}, None)  # type: ignore[arg-type]
    queue = scene.queue
    await scene.enqueue("done")
    await finish(queue, "w1", await queue.claim())
    await scene.enqueue("running")
    scene.lease = await queue.claim()
    await scene.enqueue("delayed")
    await queue.retry("w1", await queue.claim(), 50_000)
    await scene.enqueue("ready", "ready-too")
    await queue.pull("w1", 0)
    await scene.enqueue("handed-out")
    await queue.hand_out(LANE)
    await scene.enqueue("undelivered", "undelivered-too")
    return scene


async def finish(queue: Queue, worker: str, *leases: Lease) -> list[int]:
    """Succeed, and tell the caller; what became of each."""
    done = [Completion(lease, Status.SUCCEEDED, {}, "me") for lease in leases]
    return [*await queue.broker.complete(worker, done)]


async def mended(scene: Scene) -> Report:
    """Mend, and see that nothing is left to mend."""
    report = await Inspection(scene.queue.broker, mend=True).run()
    assert report.problems == [], report.problems
    again = await Inspection(scene.queue.broker, mend=False).run()
    assert (again.problems, again.partial) == ([], False), again.problems
    return report


async def drained(scene: Scene, times: int = 30) -> dict[str, str]:
    """Work off what is there; status or error code of every request."""
    queue = scene.queue.at(scene.now + LATER_MS)
    for _ in range(times):
        await queue.broker.reclaim(0, 9)
        await queue.broker.before_reclaiming()
        pulled = await queue.pull("w2", 64)
        await finish(queue, "w2", *(claim.lease for claim in pulled.claims))
        if (await queue.broker.audit()).outstanding == 0:
            break
    audit = await queue.broker.audit()
    assert (audit.problems(), audit.outstanding, audit.delayed, audit.tries) == ([], 0, 0, 0)
    return await endings(scene)


async def endings(scene: Scene) -> dict[str, str]:
    """Status of every request, or its error's code; each was told once."""
    names = list(scene.entries)
    results = await scene.queue.broker.results(names)
    told = [fields[b"id"].decode() for _, fields in await _entries(scene, scene.queue.keys.reply("me"))]
    ended = {}
    for name, result in zip(names, results, strict=True):
        assert told.count(name) == (result is not None), f"{name} was told {told.count(name)} times"
        code = json.loads(result.fields["error"])["error"]["code"] if result and "error" in result.fields else ""
        ended[name] = "none" if result is None else code or result.status.value
    return ended


async def _entries(scene: Scene, key: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found = await scene.queue.command("XRANGE", key, "-", "+")
    return [(stream_id, dict(zip(flat[::2], flat[1::2], strict=True))) for stream_id, flat in found]


# -- what hands can do ---------------------------------------------------------------------------------------

Break = Callable[[Scene], Awaitable[object]]


def xdel(name: str) -> Break:
    return lambda scene: scene.command("XDEL", scene.lane, scene.entries[name])


def delete(key: str) -> Break:
    return lambda scene: scene.command("DEL", f"{scene.queue.keys.base}{key}")


def overwrite(key: str) -> Break:
    async def spoil(scene: Scene) -> None:
        full = f"{scene.queue.keys.base}{key}"
        await scene.command("DEL", full)
        await scene.command("GETSET", full, "by hand")

    return spoil


def lane_command(*words: object) -> Break:
    """Words with LANE in the place of the lane's key."""
    return lambda scene: scene.command(*(scene.lane if word == "LANE" else word for word in words))


async def also_ready(scene: Scene) -> None:
    """By hand, to get it going: it is running already."""
    await scene.command("ZADD", scene.ready, 1, ready_member(scene.entries["running"]))


async def ready_and_delayed(scene: Scene) -> None:
    await scene.command("ZADD", scene.ready, 1, ready_member(scene.entries["delayed"]))


async def delayed_and_running(scene: Scene) -> None:
    await scene.command("ZADD", scene.queue.keys.delayed, 1, f"2|{scene.entries['running']}")


async def ready_before_it_is_delivered(scene: Scene) -> None:
    await scene.command("ZADD", scene.ready, 1, ready_member(scene.entries["undelivered"]))


async def odd_members(scene: Scene) -> None:
    await scene.command("ZADD", scene.ready, 1, scene.entries["undelivered"], 2, b"\xff", 3, "A1")
    await scene.command("ZADD", scene.queue.keys.delayed, 1, "nonsense", 2, "9|1-1", 3, "")
    await scene.command("HSET", scene.queue.keys.tries, "nonsense", 1, "2|1-1", 4)


async def unending(scene: Scene) -> None:
    await scene.command("PERSIST", scene.queue.keys.result("done"))
    await scene.command("PERSIST", scene.queue.keys.request("done"))
    await scene.command("PERSIST", scene.queue.keys.reply("me"))
    await scene.command("SET", scene.queue.keys.maintain, "w9")


async def results_by_hand(scene: Scene) -> None:
    await scene.command("SET", scene.queue.keys.result("ready"), "ok", "PX", 60_000)
    await scene.command("HSET", scene.queue.keys.result("running"), "state", "ok")


async def odd_counts(scene: Scene) -> None:
    await scene.command("HSET", scene.queue.keys.counts, "failed", "many", "staged", "")


KEPT: dict[str, tuple[set[str], Break]] = {
    "ready set deleted": ({"nowhere"}, delete("ready:high")),
    "delayed deleted": ({"nowhere"}, delete("delayed")),
    "both deleted": ({"nowhere"}, lambda scene: scene.command("DEL", scene.ready, scene.queue.keys.delayed)),
    "tries deleted": (set(), delete("tries")),
    "counts deleted": ({"miscounted"}, delete("counts")),
    **{
        f"{key} deleted": (set(), delete(key))
        for key in ("lanes", "entries", "clock", "pace", "listeners", "dead_parts")
    },
    "wake deleted": (set(), delete("wake")),
    "bench deleted": (set(), delete("bench")),
    "watch deleted": (set(), delete("watch")),
    "workers deleted": (set(), delete("workers")),
    "group destroyed": ({"group_gone"}, lane_command("XGROUP", "DESTROY", "LANE", GROUP)),
    "group set back": ({"group_back", "ready_twice"}, lane_command("XGROUP", "SETID", "LANE", GROUP, "0")),
    "group set to the end": ({"nowhere", "miscounted"}, lane_command("XGROUP", "SETID", "LANE", GROUP, "$")),
    "group set beyond the end": (
        {"group_ahead", "nowhere", "miscounted"},
        lane_command("XGROUP", "SETID", "LANE", GROUP, "9999999999999-0"),
    ),
    "consumer deleted": ({"nowhere"}, lane_command("XGROUP", "DELCONSUMER", "LANE", GROUP, "w1")),
    "acknowledged": ({"nowhere"}, lambda scene: scene.command("XACK", scene.lane, GROUP, scene.entries["running"])),
    "running made ready": ({"ready_twice"}, also_ready),
    "delayed made ready": ({"ready_twice"}, ready_and_delayed),
    "running made delayed": ({"delayed_twice"}, delayed_and_running),
    "undelivered made ready": ({"ready_twice"}, ready_before_it_is_delivered),
    "odd members": ({"ready_odd", "delayed_odd", "tries_gone"}, odd_members),
    "no end of life": ({"no_ttl"}, unending),
    "results by hand": ({"wrong_type", "no_status"}, results_by_hand),
    "odd counters": ({"odd_count", "miscounted"}, odd_counts),
    "ready of another type": ({"wrong_type", "nowhere"}, overwrite("ready:high")),
    "delayed of another type": ({"wrong_type", "nowhere"}, overwrite("delayed")),
    "counts of another type": ({"wrong_type", "miscounted"}, overwrite("counts")),
    **{
        f"{key} of another type": ({"wrong_type"}, overwrite(key))
        for key in (
            "tries",
            "wake",
            "lanes",
            "entries",
            "clock",
            "listeners",
            "dead_parts",
            "dead",
            "bench",
            "watch",
            "cancels",
            "workers",
            "ready:low",
            "lane:low",
        )
    },
}
"""Breaks that lose no body: the kinds of findings, and how it is done."""

LOST: dict[str, tuple[set[str], set[str], Break]] = {
    "ready entry deleted": ({"ready_gone", "vanished"}, {"ready"}, xdel("ready")),
    "running entry deleted": ({"pending_gone", "vanished"}, {"running"}, xdel("running")),
    "delayed entry deleted": ({"delayed_gone", "vanished"}, {"delayed"}, xdel("delayed")),
    "handed-out entry deleted": ({"pending_gone", "vanished"}, {"handed-out"}, xdel("handed-out")),
    "undelivered entry deleted": ({"vanished", "miscounted"}, {"undelivered"}, xdel("undelivered")),
    "trimmed": (
        {"pending_gone", "ready_gone", "delayed_gone", "vanished"},
        {"running", "delayed", "ready", "ready-too", "handed-out"},
        lane_command("XTRIM", "LANE", "MAXLEN", 2),
    ),
    "lane deleted": (
        {"ready_gone", "delayed_gone", "vanished", "miscounted"},
        {"running", "delayed", "ready", "ready-too", "handed-out", "undelivered", "undelivered-too"},
        delete("lane:high"),
    ),
    "lane of another type": (
        {"wrong_type", "ready_gone", "delayed_gone", "vanished", "miscounted"},
        {"running", "delayed", "ready", "ready-too", "handed-out", "undelivered", "undelivered-too"},
        overwrite("lane:high"),
    ),
}
"""Breaks that lose bodies: the kinds of findings, whose, and how it is done."""
