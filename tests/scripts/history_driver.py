"""Random histories of a fleet: workers that crash, stall and come back late, on the real scripts and a real server.

A history is a list of steps, each a verb and three numbers whose meaning depends on what there is to act on; so any step
may be left out of a failing history, and what remains is still a history.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.common.records import Completion, EnqueueCode, Hint, Lease, Retry, Role
from tests.scripts.harness import ERROR, Queue, submission
from tests.scripts.history_model import HANDED_OUT, READY, UNDELIVERED, Model, understand
from tests.scripts.keyspace import Dump, id_key

ROOM = 2
MOST = 2
LANE_LIMIT = 5
LEASE_MS = 60_000
ODD_IDS = ["", "", "", "}:r", "a b", "high:1-1"]
REPLIES = ["me", "you", "", "a b"]
DEADLINES: list[Any] = [None, None, 5_000, 20_000, 20_000, 60_000, -1, "nan", "1e9", "0x10", "-1"]

VERBS = {
    "add": 20,
    "enqueue": 6,
    "act": 30,
    "settle": 8,
    "complete": 12,
    "retry": 10,
    "release": 3,
    "renew": 4,
    "late": 8,
    "silence": 5,
    "crash": 3,
    "lose_answer": 3,
    "lose_read": 2,
    "time_out": 3,
    "stage": 3,
    "reclaim": 6,
    "promote": 5,
    "expire": 4,
    "cancel": 3,
    "clock": 6,
    "requeue": 1,
    "delete": 1,
    "forget": 1,
}


# Every other history is of a fleet with little to do, where what matters is who is woken.
IDLE = {
    "add": 10,
    "enqueue": 2,
    "act": 20,
    "settle": 16,
    "complete": 6,
    "release": 5,
    "late": 2,
    "crash": 5,
    "lose_read": 3,
    "stage": 5,
    "reclaim": 6,
    "promote": 8,
    "clock": 3,
    "cancel": 1,
}
ON_A_FULL_SERVER = {"act", "complete", "retry", "release", "renew", "reclaim", "promote", "expire", "cancel", "stage"}


@dataclass(frozen=True)
class Step:
    verb: str
    x: int
    y: int
    z: int


@dataclass
class Worker:
    """A worker process as far as the queue can tell."""

    name: str
    state: str = "awake"
    """awake, watching, reading done, benched, or unsure: the answer to its pull was lost."""
    called: bool = False
    """Whether it took a token off the bench, and has not pulled since."""
    watching: bool = False
    hints: list[Hint] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        """Whether it will pull without being woken."""
        return self.state in ("read", "unsure") or (self.state == "awake" and len(self.leases) < ROOM)


def make_history(seed: int, length: int) -> list[Step]:
    """A history from a seed."""
    numbers = random.Random(seed)
    weights = VERBS | IDLE if seed % 2 else VERBS
    verbs = numbers.choices(list(weights), list(weights.values()), k=length)
    return [Step(verb, *(numbers.randrange(2**16) for _ in range(3))) for verb in verbs]


class Fleet:
    """Runs steps, keeps the model, and compares after each."""

    def __init__(self, queue: Queue, now: int, workers: int = 5, watchers: int = 2) -> None:
        self.model = Model()
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
        self.made = len(self.workers)

    async def run(self, steps: Sequence[Step]) -> None:
        """Raises AssertionError as soon as something is not as it must be."""
        self.dump = await self.queue.dump()
        for step in steps:
            await self.step(step)

    async def step(self, step: Step) -> None:
        verb: Callable[[Step], Coroutine[Any, Any, None]] = getattr(self, f"_{step.verb}")
        if step.z % 9 == 0 and step.verb in ON_A_FULL_SERVER:
            async with self.queue.full_memory():
                await verb(step)
        else:
            await verb(step)
        await self.check()

    async def check(self) -> None:
        """Compare everything, ask the audit, and see that work does not wait beside idle workers."""
        self.dump = await self.queue.dump()
        self.model.compare(self.dump, MOST)
        if not self.model.ghosts:
            problems = (await self.queue.broker.audit()).problems()
            assert not problems, problems
        self._check_wake_ups()

    def _check_wake_ups(self) -> None:
        assert self.dump.get("bench", ["1"]) == ["1"]
        assert self.dump.get("wake", {}).get("undelivered", 0) <= 1
        # Who blocks on the lanes sees an entry come; with those gone, nobody does until the next housekeeping.
        places = self.model.places.values()
        work = READY in places or (UNDELIVERED in places and not self.dead_watches)
        idle = [worker for worker in self.workers if worker.state in ("watching", "benched")]
        if self.disturbed or not work or not idle or any(worker.moves for worker in self.workers):
            return
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

    # -- producers ---------------------------------------------------------------------------------------------

    async def _add(self, step: Step) -> None:
        lane = LANES[step.x % 4]
        deadline, reply = DEADLINES[step.y % len(DEADLINES)], REPLIES[step.z % 7 % 4]
        request_id = self._some_id(step.y) if step.z % 2 else ODD_IDS[step.z % len(ODD_IDS)]
        late = "" if deadline is None else str(self.now + deadline if isinstance(deadline, int) else deadline)
        body = "b" * (2_100 if step.x % 37 == 0 else 10)
        given = {"id": request_id, "reply": reply, "deadline": late, "body": body}
        fields = {name: value for name, value in given.items() if value}
        stream_id = await self.queue.add_flat(lane, "*", *[part for pair in fields.items() for part in pair])
        self.model.arrive(understand(lane, stream_id, fields))

    async def _enqueue(self, step: Step) -> None:
        lane, request_id, digest = LANES[step.x % 4], self._some_id(step.y), f"d{step.z % 8 // 7}"
        item = submission(request_id, lane, "me", digest=digest)
        record = self.dump.get(f"request:{request_id}")
        expected = EnqueueCode.ACCEPTED
        if record:
            expected = EnqueueCode.EXISTING if record.startswith(digest) else EnqueueCode.CONFLICT
        elif request_id in self.model.results:
            expected = EnqueueCode.ANSWERED
        elif sum(name.startswith(f"{lane}:") for name in self.model.places.keys() - self.model.ghosts) >= LANE_LIMIT:
            expected = EnqueueCode.FULL
        for _ in range(1 + step.z % 2):  # sent again after a lost answer
            (accepted,) = await self.queue.broker.enqueue([item])
            assert accepted.code is expected
            if expected is EnqueueCode.ACCEPTED:
                stream_id = accepted.entry.removeprefix(f"{lane}:")
                fields = {name: value.decode() for name, value in item.fields.items()}
                self.model.arrive(understand(lane, stream_id, fields))
                expected = EnqueueCode.EXISTING

    async def _cancel(self, step: Step) -> None:
        names = [*self.model.places]
        unnamed = names[step.y % len(names)] if names else "nobody"
        request_id = [self._some_id(step.x), "}:r", unnamed, self._some_id(step.y)][step.z % 4]
        before = self.model.results.get(request_id, ("cancelled", None))[0]
        record = self.dump.get(f"request:{request_id}", "  ")
        for _ in range(1 + step.z % 2):
            assert await self.queue.broker.cancel(request_id) == (before == "cancelled")
        told = [*self.dump.get("cancels", [])] + [{"id": request_id}] * (request_id not in self.model.results)
        assert (await self.queue.dump()).get("cancels", []) == told
        self.model.cancel(request_id, record.split(" ", 2)[2])

    async def _requeue(self, step: Step) -> None:
        for letter_id, fields in await self.queue.broker.dead_letters(1):
            text = {name.decode(): value.decode() for name, value in fields.items()}
            kept = {name: value for name, value in text.items() if not name.startswith("_")}
            if step.x % 2:
                kept.pop("deadline", None)
            flat = [part.encode() for pair in kept.items() for part in pair]
            lane = LANES[step.y % 4]
            stream_id = await self.queue.broker.requeue(letter_id, text["_id"], lane, flat)
            assert stream_id is not None
            self.model.letters[text["_id"], text["_status"], text["_entry"], text["_attempts"]] -= 1
            self.model.counts["requeued"] += 1
            self.model.forget(text["_id"])
            self.model.arrive(understand(lane, stream_id, kept))

    async def _delete(self, step: Step) -> None:
        """By hand; an entry that no worker has seen would be lost to the books, and rightly so."""
        names = [
            name for name, place in self.model.places.items() if place != UNDELIVERED and name not in self.model.ghosts
        ]
        if names:
            name = names[step.x % len(names)]
            lane, stream_id = name.split(":")
            await self.queue.command("XDEL", self.queue.keys.lane(lane), stream_id)
            self.model.ghosts.add(name)

    # -- workers: waiting and pulling --------------------------------------------------------------------------------

    async def _act(self, step: Step) -> None:
        """One worker goes on, as far as it can without blocking."""
        worker = self._worker(step)
        if worker.state == "unsure":
            await self._disown(worker)
        elif worker.state == "watching" and self._woken(worker):
            worker.hints = await self._read()
            worker.state = "read"
        elif worker.state == "benched" and self._woken(worker):
            await self.queue.broker.wait(Role.BENCH, 1_000)
            worker.state, worker.called = "awake", True
        elif worker.moves:
            await self._pull(worker, step)

    async def _settle(self, step: Step) -> None:
        """Everybody who can go on does, woken or not, until nobody can."""
        for _ in range(20):
            able = [number for number, worker in enumerate(self.workers) if worker.moves or self._woken(worker)]
            if not able:
                return
            await self._act(Step("act", able[step.x % len(able)], step.y, step.z))
            self.dump = await self.queue.dump()

    def _woken(self, worker: Worker) -> bool:
        if worker.state == "watching":
            return self._something_to_read()
        return worker.state == "benched" and "bench" in self.dump

    async def _pull(self, worker: Worker, step: Step) -> None:
        wanted = ROOM - len(worker.leases)
        wanted = 1 + step.y % wanted if step.z % 2 else wanted
        pulled = await self.queue.pull(
            worker.name, wanted, worker.hints, watching=worker.watching, stage_entries=[256, 1, 2][step.z % 3]
        )
        hints = [f"{hint.lane}:{hint.stream_id}" for hint in worker.hints]
        before, staged, vanished = len(self.model.places), self.model.counts["staged"], self._vanishing(hints)
        self.model.pull(worker.name, self.now, hints, pulled.claims, await self.queue.dump())
        ready = sum(place == READY for place in self.model.places.values())
        assert pulled.ready == ready
        assert pulled.staged == self.model.counts["staged"] - staged
        assert pulled.dropped == before - len(self.model.places) - vanished
        assert len(pulled.claims) <= wanted
        assert len(pulled.claims) == wanted or ready == 0
        room_to_watch = len(self._watches() - {worker.name}) < self.queue.limits.watchers
        expected = Role.NONE if len(pulled.claims) == wanted else Role.WATCH if room_to_watch else Role.BENCH
        assert pulled.role is expected
        worker.leases += [claim.lease for claim in pulled.claims]
        self.aged -= {claim.lease.entry for claim in pulled.claims}
        worker.hints, worker.watching, worker.called = [], pulled.role is Role.WATCH, False
        self.dead_watches.pop(worker.name, None)
        worker.state = {Role.NONE: "awake", Role.WATCH: "watching", Role.BENCH: "benched"}[pulled.role]

    def _vanishing(self, hints: Sequence[str]) -> int:
        """How many of what a blocking read delivered were deleted by hand since."""
        return sum(
            name in self.model.ghosts and self.model.places[name] == HANDED_OUT
            for name in hints
            if name in self.model.places
        )

    async def _read(self) -> list[Hint]:
        hints = await self.queue.broker.wait(Role.WATCH, 1_000)
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
            self._back(name)
        worker.state = "awake"

    async def _lose_answer(self, step: Step) -> None:
        """A pull's answer is lost: the worker holds what it does not know of."""
        worker = self._worker(step)
        if worker.state in ("awake", "read") and worker.moves:
            known = list(worker.leases)
            await self._pull(worker, step)
            self.late += [(worker.name, lease) for lease in worker.leases if lease not in known]
            worker.leases, worker.state, worker.watching = known, "unsure", False

    async def _lose_read(self, step: Step) -> None:
        """The connection breaks after a blocking read took something."""
        worker = self._worker(step)
        if worker.state == "watching" and self._something_to_read():
            await self._read()
            worker.state = "unsure"

    async def _time_out(self, step: Step) -> None:
        worker = self._worker(step)
        if worker.state in ("watching", "benched"):
            worker.state = "awake"

    async def _stage(self, step: Step) -> None:
        """The housekeeping loop of a worker, whatever its other loops do, brings arrivals in order."""
        pulled = await self.queue.pull(self._worker(step).name, 0, stage_entries=1 + step.z % 3)
        assert (pulled.role, list(pulled.claims), pulled.dropped) == (Role.NONE, [], 0)
        after = await self.queue.dump()
        assert after.get("watch") == self.dump.get("watch")
        self.model.pull("nobody", self.now, [], [], after)

    # -- workers: what becomes of their work -------------------------------------------------------------------------

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
        for lease in leases:
            entry = self.model.entries.get(lease.entry)
            reply = entry.reply if entry else "me"
            done.append(Completion(lease, status, {"response": json.dumps({"by": worker})}, reply, error))
            if self.model.holds(worker, lease):
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
        expected = self._expect_retry(worker, lease, delay)
        assert await self.queue.broker.retry_later(worker, [Retry(lease, delay, ERROR)], MOST) == [expected]

    def _expect_retry(self, worker: str, lease: Lease, delay: int) -> int:
        model, name = self.model, lease.entry
        if not model.holds(worker, lease):
            return 0
        entry = model.entries[name]
        if name in model.ghosts:
            model.end(name, "vanished", 0)
            return 0
        if entry.request_id in model.results:
            model.end(name, "", 0)
            return 4
        if lease.attempt >= MOST:
            model.end(name, "dead", lease.attempt)
            return 2
        if entry.deadline is not None and entry.deadline <= self.now + delay:
            model.end(name, "expired", lease.attempt)
            return 3
        model.tries[name] = lease.attempt
        model.places[name] = ("delayed", self.now + delay) if delay else READY
        return 1

    async def _release(self, step: Step) -> None:
        worker = self._worker(step)
        await self._release_all(worker.name, worker.leases[: 1 + step.y % 2])
        self.late += [(worker.name, lease) for lease in worker.leases[: 1 + step.y % 2]]
        del worker.leases[: 1 + step.y % 2]

    async def _release_all(self, worker: str, leases: Sequence[Lease]) -> None:
        mine = [lease.entry for lease in leases if self.model.holds(worker, lease)]
        released = await self.queue.broker.release(worker, leases)
        assert released == len([name for name in mine if name not in self.model.ghosts])
        for name in mine:
            self._back(name)

    def _back(self, name: str) -> None:
        if name in self.model.ghosts:
            self.model.end(name, "vanished", 0)
        else:
            self.model.places[name] = READY

    async def _renew(self, step: Step) -> None:
        """Also how a worker learns what it lost."""
        worker = self._worker(step)
        codes = await self._renew_all(worker.name, worker.leases)
        worker.leases = [lease for lease, code in zip(worker.leases, codes, strict=True) if code]

    async def _renew_all(self, worker: str, leases: Sequence[Lease]) -> list[int]:
        mine = [self.model.holds(worker, lease) for lease in leases]
        codes = list(await self.queue.broker.renew(worker, leases))
        for lease, held, code in zip(leases, mine, codes, strict=True):
            if held and self.renewal_drops_deleted and lease.entry in self.model.ghosts:
                assert code == 0
                self.model.end(lease.entry, "vanished", 0)
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

    # -- faults and time -----------------------------------------------------------------------------------------------

    async def _silence(self, step: Step) -> None:
        """A worker, or a watcher between its read and its pull, renews nothing for a long time, and may go on later."""
        owner = "~" if step.y % 4 == 0 else self._worker(step).name
        for name, place in self.model.places.items():
            pending = HANDED_OUT if owner == "~" else ("running", owner)
            if place[:2] == pending and name not in self.model.ghosts:
                lane, stream_id = name.split(":")
                await self.queue.age(lane, stream_id, owner)
                self.aged.add(name)
        self.late += [
            (worker.name, lease) for worker in self.workers if worker.name == owner for lease in worker.leases
        ]

    async def _crash(self, step: Step) -> None:
        """A worker dies, often one with a wake-up; another takes its place, every other time under the same name."""
        waking = [
            number for number, worker in enumerate(self.workers) if worker.called or worker.hints or worker.watching
        ]
        if waking and step.z % 2:
            step = Step("crash", waking[step.x % len(waking)], step.y, step.z)
        worker = self._worker(step)
        await self._silence(Step("silence", step.x, 1, 0))
        self.disturbed = self.disturbed or worker.called or worker.state == "read"
        watches = dict(self.dump.get("watch", []))
        if worker.name in watches:
            self.dead_watches[worker.name] = watches[worker.name]
        self.workers.remove(worker)
        self.workers.append(Worker(worker.name if step.y % 2 else f"w{self.made}"))
        self.made += 1

    async def _reclaim(self, step: Step) -> None:
        await self._reclaim_older(LEASE_MS)

    async def _reclaim_older(self, lease_ms: int) -> None:
        pending = [name for name, place in self.model.places.items() if place[0] in ("running", "handed out")]
        order = sorted(pending, key=lambda name: (LANES.index(Lane(name.split(":")[0])), id_key(name.split(":")[1])))
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
            model.end(name, "vanished", 0)
            return "ended"
        if attempts >= MOST:
            model.end(name, "dead", attempts)
            return "dead"
        if attempts:
            model.tries[name] = attempts
        model.places[name] = READY
        return "ready"

    async def _promote(self, step: Step) -> None:
        """Housekeeping; with it, who died while watching is replaced, once its watch is over."""
        if step.x % 2:
            await self._clock(Step("clock", 9, 0, 0))
        due = [name for name, place in self.model.places.items() if place[0] == "delayed" and place[1] <= self.now]
        for name in due:
            self._back(name)
        promoted, _ = await self.queue.broker.promote()
        assert promoted == len([name for name in due if name in self.model.places])
        self.disturbed = False
        self.dead_watches = {name: until for name, until in self.dead_watches.items() if until > self.now}

    async def _expire(self, step: Step) -> None:
        """Housekeeping: what is too late ends though nobody has room for it."""
        ready = [self.model.entries[name] for name, place in self.model.places.items() if place == READY]
        late = [entry for entry in ready if entry.deadline is not None and entry.deadline <= self.now]
        late = [entry for entry in late if entry.name not in self.model.ghosts]
        for entry in sorted(late, key=lambda entry: (LANES.index(Lane(entry.lane)), entry.order)):
            self.model.end(entry.name, "expired", self.model.tries.get(entry.name, 0))
        assert await self.queue.broker.expire() == len(late)

    async def _clock(self, step: Step) -> None:
        """Time goes on, mostly; a failover may set it back."""
        self.now += [100, 1_000, 5_000, 20_000, -1_000, -30_000, 50, 700, 2_000, 8_000][step.x % 10]
        self.queue = self.queue.at(self.now)

    async def _forget(self, step: Step) -> None:
        """Consumers of workers that left are deleted where they hold nothing; and the server forgets its scripts."""
        await self.queue.broker.check_in(self._worker(step).name, {})
        await self.queue.broker.check_out(silent_ms=-1)
        await self.queue.command("SCRIPT", "FLUSH")

    # -- the end -------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """The faults stop; whatever is still there ends, and nothing of it stays."""
        last = Worker("last")
        self.workers = [last]
        self.dead_watches = {"all others": self.now + 10**9}
        for _ in range(60):
            if not self.dump.keys() & {
                "delayed",
                "tries",
                *(f"lane:{lane}" for lane in LANES),
                *(f"ready:{lane}" for lane in LANES),
            }:
                break
            await self._drain_once(last)
            await self.check()
        assert not self.model.places, f"these never ended: {self.model.places}"

    async def _drain_once(self, last: Worker) -> None:
        await self._clock(Step("clock", 3, 0, 0))
        self.aged = set(self.model.places)
        await self._reclaim_older(0)
        await self._promote(Step("promote", 0, 0, 0))
        last.state = "awake"
        await self._pull(last, Step("act", 0, 0, 0))
        await self._finish("last", last.leases, Step("complete", 0, 0, 0))
        last.leases = []

    def _some_id(self, number: int) -> str:
        """One of a few ids, new ones as the old ones end."""
        return f"r{len(self.model.results) // 2 + number % 6}"

    def _worker(self, step: Step) -> Worker:
        return self.workers[step.x % len(self.workers)]
