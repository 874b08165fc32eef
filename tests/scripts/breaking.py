"""A queue with a request in every place, what an operator's hands can do to it, and working it off afterwards."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from streamfleet.common.broker.types import Completion, Home, Lease, Submission
from streamfleet.common.keys import GROUP
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.replies import ready_member
from streamfleet.operator.repair import Inspection, Report
from tests.scripts.harness import BODY, Queue, submission

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

    async def command(self, *words: object) -> Any:
        return await self.queue.command(*words)

    async def enqueue(self, *names: str) -> None:
        """Requests as a client enqueues them, with a record of their ids."""
        accepted = await self.queue.broker.enqueue([submission(name, reply="me") for name in names])
        for name, answer in zip(names, accepted, strict=True):
            self.entries[name] = answer.entry.partition(":")[2]

    async def add(self, name: str, **labels: str | int) -> None:
        """A request with more fields, as a client enqueues it."""
        given = {"body": BODY, "id": name, "reply": "me"} | labels
        fields = {key: str(value).encode() for key, value in given.items()}
        (accepted,) = await self.queue.broker.enqueue([Submission(name, Lane.HIGH, fields, "d1", "me")])
        self.entries[name] = accepted.entry.partition(":")[2]

    async def order(self) -> list[str]:
        """Request ids as they stand in the ready set."""
        names = {ready_member(stream_id).encode(): name for name, stream_id in self.entries.items()}
        return [names[member] for member in await self.queue.command("ZRANGE", self.ready, 0, -1) if member in names]


async def build(queue: Queue) -> Scene:
    """One request done, running, delayed, handed out, undelivered; two ready."""
    now = await queue.broker.now_ms()
    scene = Scene(queue.at(now), now, {}, None)  # type: ignore[arg-type]
    for worker in ("w1", "w2"):
        await scene.queue.broker.heartbeat(worker, {})
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


async def build_labelled(queue: Queue) -> Scene:
    """One request in each set of what waits, two where a tenant or a home has several; others that run or are delayed.

    The tenants t1 and t2 share the lane; the home 1 is of w1, the home 2 of w2.
    """
    now = await queue.broker.now_ms()
    scene = Scene(queue.at(now), now, {}, None)  # type: ignore[arg-type]
    for worker in ("w1", "w2"):
        await scene.queue.broker.heartbeat(worker, {})
    queue, later = scene.queue, now + 10 * LATER_MS
    await scene.add("done", session="s1")
    (claim,) = (await queue.pull("w1", home=Home("a", 0))).claims
    await queue.pull("w2", 0, home=Home("a", 0))
    await finish(queue, "w1", claim.lease)
    await scene.add("held", tenant="t2")
    held = await queue.claim()
    await scene.add("running", tenant="t1")
    scene.lease = await queue.claim()
    await scene.add("delayed", tenant="t1")
    await queue.retry("w1", await queue.claim(), 50_000)
    await queue.broker.release("w1", [held], gave_way=True, kept={held: ("run", 3)})
    await scene.add("plain", deadline=later)
    await scene.add("plain-too")
    await scene.add("tenant", tenant="t1", deadline=later)
    await scene.add("tenant-too", tenant="t1")
    await scene.add("tenants", tenant="t2")
    await scene.add("home", session="s1", deadline=later)
    await scene.add("home-too", session="s1")
    await scene.add("both", tenant="t1", session="s2", deadline=later)
    await scene.add("both-too", tenant="t2", session="s3")
    await queue.pull("w1", 0, home=Home("a", 1))
    await scene.add("undelivered", tenant="t1", session="s2")
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
        await queue.broker.return_delayed()
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


async def ready_and_deleted(scene: Scene) -> None:
    await ready_and_delayed(scene)
    await scene.command("XDEL", scene.lane, scene.entries["delayed"])


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
    **{f"{key} deleted": (set(), delete(key)) for key in ("lanes", "entries", "clock", "pace", "dead_parts")},
    "wake deleted": (set(), delete("wake")),
    "waiting deleted": (set(), delete("waiting")),
    "watch deleted": (set(), delete("watch")),
    "workers deleted": (set(), delete("workers")),
    "group destroyed": ({"group_gone"}, lane_command("XGROUP", "DESTROY", "LANE", GROUP)),
    "group set back": ({"group_back", "twice"}, lane_command("XGROUP", "SETID", "LANE", GROUP, "0")),
    "group set to the end": ({"differs", "nowhere"}, lane_command("XGROUP", "SETID", "LANE", GROUP, "$")),
    "group set beyond the end": (
        {"differs", "group_ahead", "nowhere"},
        lane_command("XGROUP", "SETID", "LANE", GROUP, "9999999999999-0"),
    ),
    "consumer deleted": ({"nowhere"}, lane_command("XGROUP", "DELCONSUMER", "LANE", GROUP, "w1")),
    "acknowledged": (
        {"nowhere"},
        lambda scene: scene.command("XACK", scene.lane, GROUP, scene.entries["running"]),
    ),
    "running made ready": ({"twice"}, also_ready),
    "delayed made ready": ({"twice"}, ready_and_delayed),
    "running made delayed": ({"twice"}, delayed_and_running),
    "undelivered made ready": ({"differs"}, ready_before_it_is_delivered),
    "odd members": ({"differs", "gone", "odd"}, odd_members),
    "no end of life": ({"no_ttl"}, unending),
    "results by hand": ({"wrong_type", "no_status"}, results_by_hand),
    "odd counters": ({"miscounted", "odd_count"}, odd_counts),
    "ready of another type": ({"nowhere", "wrong_type"}, overwrite("ready:high")),
    "delayed of another type": ({"nowhere", "wrong_type"}, overwrite("delayed")),
    "counts of another type": ({"wrong_type", "miscounted"}, overwrite("counts")),
    **{
        f"{key} of another type": ({"wrong_type"}, overwrite(key))
        for key in (
            "tries",
            "wake",
            "lanes",
            "entries",
            "clock",
            "dead_parts",
            "dead",
            "waiting",
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
    "ready entry deleted": ({"gone", "vanished"}, {"ready"}, xdel("ready")),
    "running entry deleted": ({"gone", "vanished"}, {"running"}, xdel("running")),
    "delayed entry deleted": ({"gone", "vanished"}, {"delayed"}, xdel("delayed")),
    "delayed entry made ready, and deleted": ({"gone", "vanished"}, {"delayed"}, ready_and_deleted),
    "handed-out entry deleted": ({"gone", "miscounted", "vanished"}, {"handed-out"}, xdel("handed-out")),
    "undelivered entry deleted": ({"vanished", "miscounted"}, {"undelivered"}, xdel("undelivered")),
    "trimmed": (
        {"gone", "miscounted", "vanished"},
        {"running", "delayed", "ready", "ready-too", "handed-out"},
        lane_command("XTRIM", "LANE", "MAXLEN", 2),
    ),
    "lane deleted": (
        {"gone", "miscounted", "vanished"},
        {"running", "delayed", "ready", "ready-too", "handed-out", "undelivered", "undelivered-too"},
        delete("lane:high"),
    ),
    "lane of another type": (
        {"gone", "miscounted", "vanished", "wrong_type"},
        {"running", "delayed", "ready", "ready-too", "handed-out", "undelivered", "undelivered-too"},
        overwrite("lane:high"),
    ),
}
"""Breaks that lose bodies: the kinds of findings, whose, and how it is done."""


# -- what hands can do to what waits with a label --------------------------------------------------------------


def label_set(name: str) -> str:
    """Name of a set of the scene's lane, without the queue's prefix."""
    return f"ready:{LANE}:{name}"


def in_sets(*changes: tuple[object, ...]) -> Break:
    """Commands: a verb, the name of a set or a key, and words; of those, ``@<request>`` is the member's beginning."""

    async def spoil(scene: Scene) -> None:
        base = scene.queue.keys.base
        for verb, name, *words in changes:
            key = f"{base}{label_set(str(name)) if str(name)[0] == ':' else name}".replace("::", ":")
            await scene.command(verb, key, *(_named(scene, word) for word in words))

    return spoil


def _named(scene: Scene, word: object) -> object:
    name, space, rest = str(word)[1:].partition(" ")
    if str(word)[:1] == "@":
        return f"{ready_member(scene.entries[name])}{space}{rest}"
    return f"2|{scene.entries[name]}" if str(word)[:1] == "#" else word


MISCOUNTED = "labels_off"
SIZE = f"{len(BODY)} 16"
"""Bytes of a body, and the limit that the engine takes, as members of sets have them."""

LABELLED: dict[str, tuple[set[str], Break]] = {
    "nothing": (set(), lambda scene: scene.command("PING")),
    "ready deleted": ({"nowhere"}, delete("ready:high")),
    "of a tenant deleted": ({"nowhere", MISCOUNTED}, delete(label_set("t:t1"))),
    "homed of a tenant deleted": ({"misplaced"}, delete(label_set("th:t1"))),
    "with a tenant of a home deleted": ({"misplaced"}, delete(label_set("ht:2"))),
    "sets of both deleted": (
        {"nowhere", "odd", MISCOUNTED},
        lambda scene: scene.command("DEL", *(f"{scene.ready}:{name}" for name in ("th:t1", "th:t2", "ht:2"))),
    ),
    "of a home deleted": ({"nowhere", "odd", MISCOUNTED}, delete(label_set("h:1"))),
    "held set deleted": ({"nowhere", MISCOUNTED}, delete(label_set("held"))),
    "firsts deleted": ({"misplaced"}, delete(label_set("firsts"))),
    "late deleted": ({"misplaced"}, delete(label_set("late"))),
    "turns deleted": ({"turn_gone"}, delete("turns:high")),
    "tickets deleted": ({"nowhere", MISCOUNTED}, delete("tickets")),
    **{f"{key} deleted": (set(), delete(key)) for key in ("served", "sessions", "tenants")},
    "loads deleted": ({"misplaced"}, delete("loads")),
    "lanes deleted": ({"interrupted_off", "nowhere", "odd", MISCOUNTED}, delete("lanes")),
    "entries deleted": ({"interrupted_off"}, delete("entries")),
    "numbers wrong": ({MISCOUNTED}, in_sets(("HSET", "lanes", "labelled", "0 0 0 0;9 1 2 1;0 0 0 0;0 0 0 1;"))),
    "numbers no numbers": ({"nowhere", "odd", MISCOUNTED}, in_sets(("HSET", "lanes", "labelled", "soon"))),
    "interrupted wrong": ({"interrupted_off"}, in_sets(("HSET", "lanes", "interrupted", 7))),
    "kept wrong": ({"interrupted_off"}, in_sets(("HSET", "entries", "kept_bytes", "many"))),
    "of a tenant made ready": ({"misplaced"}, in_sets(("ZADD", "ready:high", 1, "@tenant"))),
    "of a tenant moved to ready": (
        {"misplaced", MISCOUNTED},
        in_sets(("ZREM", ":t:t1", f"@tenant {SIZE}"), ("ZADD", "ready:high", 1, "@tenant")),
    ),
    "plain moved to a tenant": (
        {"differs", "nowhere", MISCOUNTED},
        in_sets(("ZREM", "ready:high", "@plain"), ("ZADD", ":t:t1", 1, f"@plain {SIZE}")),
    ),
    "moved to another tenant": (
        {"differs", "nowhere"},
        in_sets(("ZREM", ":t:t1", f"@tenant {SIZE}"), ("ZADD", ":t:x", 1, f"@tenant {SIZE}")),
    ),
    "also of another tenant": (
        {"differs", MISCOUNTED},
        in_sets(("ZADD", ":t:t2", 1, f"@tenant {SIZE}")),
    ),
    "of a tenant and held": ({"differs", MISCOUNTED}, in_sets(("ZADD", ":held", 1, f"@tenant {SIZE} t1"))),
    "with another size": (
        {"differs", "nowhere"},
        in_sets(("ZREM", ":t:t1", f"@tenant {SIZE}"), ("ZADD", ":t:t1", 1, "@tenant 9 9")),
    ),
    "moved to another home": (
        {"differs", "nowhere", "odd"},
        in_sets(("ZREM", ":h:1", "@home"), ("ZADD", ":h:2", 1, "@home"), ("ZADD", ":firsts", 1, 2)),
    ),
    "ticket deleted": ({"nowhere", MISCOUNTED}, in_sets(("HDEL", "tickets", "#both"))),
    "ticket of another home": ({"nowhere", "odd", MISCOUNTED}, in_sets(("HSET", "tickets", "#home", "7 0  "))),
    "ticket without a set": (
        {"nowhere", "odd", MISCOUNTED},
        in_sets(("ZREM", ":th:t1", f"@both {SIZE} 2"), ("ZREM", ":ht:2", f"@both {SIZE} t1")),
    ),
    "tickets of others": (
        {"gone", "odd"},
        in_sets(("HSET", "tickets", "#plain", "1 0  ", "#running", "1 15 16 t1", "nonsense", "", "2|1-1", "1 0  ")),
    ),
    "running made a tenant's": ({"twice", MISCOUNTED}, in_sets(("ZADD", ":t:t1", 1, f"@running {SIZE}"))),
    "delayed made a tenant's": ({"twice", MISCOUNTED}, in_sets(("ZADD", ":t:t1", 1, f"@delayed {SIZE}"))),
    "undelivered made a home's": (
        {"differs", "odd", MISCOUNTED},
        in_sets(
            ("ZADD", ":th:t1", 1, f"@undelivered {SIZE} 2"),
            ("ZADD", ":ht:2", 1, f"@undelivered {SIZE} t1"),
            ("HSET", "tickets", "#undelivered", f"2 {SIZE} t1"),
        ),
    ),
    "held handed out": (
        {"twice"},
        lambda scene: scene.command("XCLAIM", scene.lane, GROUP, "w1", 0, scene.entries["held"], "FORCE"),
    ),
    "odd members": (
        {"differs", "misplaced", MISCOUNTED},
        in_sets(
            *(("ZADD", name, 1, "nonsense", 2, b"\xff 1 2", 3, "") for name in (":t:t1", ":th:t1", ":ht:2", ":held")),
            ("ZADD", ":h:1", 1, "nonsense"),
            ("ZADD", ":firsts", 1, "nonsense", 2, 99),
        ),
    ),
    "late too late": ({"misplaced"}, in_sets(("ZADD", ":late", 9e15, "t1"))),
    "firsts wrong": ({"misplaced"}, in_sets(("ZADD", ":firsts", 5, 1))),
    "of a tenant of another type": ({"nowhere", "wrong_type", MISCOUNTED}, overwrite(label_set("t:t1"))),
    "homed of a tenant of another type": ({"misplaced", "wrong_type"}, overwrite(label_set("th:t1"))),
    "of a home of another type": (
        {"nowhere", "odd", "wrong_type", MISCOUNTED},
        overwrite(label_set("h:1")),
    ),
    "with a tenant of a home of another type": ({"misplaced", "wrong_type"}, overwrite(label_set("ht:2"))),
    "held of another type": ({"nowhere", "wrong_type", MISCOUNTED}, overwrite(label_set("held"))),
    "firsts of another type": ({"misplaced", "wrong_type"}, overwrite(label_set("firsts"))),
    "late of another type": ({"misplaced", "wrong_type"}, overwrite(label_set("late"))),
    "past of another type": ({"wrong_type"}, overwrite(label_set("past"))),
    "turns of another type": ({"turn_gone", "wrong_type"}, overwrite("turns:high")),
    "tickets of another type": ({"nowhere", "wrong_type", MISCOUNTED}, overwrite("tickets")),
    **{f"{key} of another type": ({"wrong_type"}, overwrite(key)) for key in ("served", "sessions")},
    "loads of another type": ({"misplaced", "wrong_type"}, overwrite("loads")),
    **{
        f"{name} deleted": ({"gone", "vanished"} | ({"differs"} if name in ("tenant", "held") else set()), xdel(name))
        for name in ("tenant", "home", "both", "held", "both-too")
    },
}
"""Breaks of a labelled scene: the kinds of findings, and how it is done."""
