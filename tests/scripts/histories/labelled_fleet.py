"""Random histories of fleets whose requests have tenants, sessions and limits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from streamfleet.common.broker.types import (
    CompleteCode,
    Completion,
    Lease,
    Retry,
    RetryCode,
    Role,
    Submission,
    TenantRule,
)
from streamfleet.common.protocol import LANES, Lane, Status
from tests.order.model import Entry, Use
from tests.order.picks import rank_of
from tests.scripts.harness import ERROR
from tests.scripts.histories.labelled_books import Request
from tests.scripts.histories.labelled_state import BEGIN, MOST, TICK_MS, LabelledState, Shape
from tests.scripts.histories.labelled_workers import Worker
from tests.scripts.histories.steps import Step
from tests.scripts.keyspace import id_key

HOUR_MS = 3_600_000
"""Time after which what nobody uses is forgotten."""
LONG = 1_024
"""Bytes of a body that may have a home."""
LEFT = ("served", "tickets", "ready:", "turns:", "sessions", "loads", "kept:")
FORGET_ROUNDS = 10
PASSES = [0, 0, 0, 5, 20, 120, 400, 1_300]
VERBS = {
    "add": 30,
    "enqueue": 4,
    "complete": 22,
    "retry": 5,
    "release": 4,
    "give_way": 4,
    "cancel": 4,
    "die": 3,
    "leave": 1,
    "join": 4,
    "limit": 4,
    "pause": 2,
    "rest": 4,
}


def make(seed: int, length: int) -> tuple[Shape, list[Step]]:
    """A shape and a history from a seed."""
    numbers = random.Random(seed)
    pick = numbers.choice
    tenants = [""] * pick([0, 1, 3]) + [f"t{number}" for number in range(pick([0, 1, 2, 3, 6]))]
    sessions = [""] * pick([0, 1, 2]) + [f"s{number}" for number in range(pick([0, 0, 1, 3, 6]))]
    shape = Shape(
        workers=pick([1, 2, 3, 5]),
        slots=pick([1, 2, 3, 6]) + (reserve := pick([0, 0, 1])),
        reserve=reserve,
        watchers=pick([1, 2]),
        lanes=numbers.sample(LANES, pick([1, 2, 4])),
        tenants=tenants or [""],
        sessions=sessions or [""],
        long=pick([0, 0, 3]),
    )
    verbs = numbers.choices(list(VERBS), list(VERBS.values()), k=length)
    return shape, [Step(verb, *(numbers.randrange(2**16) for _ in range(3))) for verb in verbs]


class LabelledFleet(LabelledState):
    """Runs steps on the scripts, keeps the books, and compares after each."""

    async def run(self, steps: Sequence[Step]) -> None:
        """Raises AssertionError as soon as something is not as it must be."""
        for lane in LANES:  # what is enqueued then has ids of this clock
            await self.queue.command("XSETID", self.queue.keys.lane(lane), f"{BEGIN}-1")
        for _ in range(self.shape.workers):
            self._start(f"w{self.made}", self.shape.reserve)
        for step in steps:
            await self.step(step)
        await self.drain()

    async def step(self, step: Step) -> None:
        self.chance = random.Random(f"{step.x} {step.y} {step.z}")
        verb: Callable[[Step], Coroutine[Any, Any, None]] = getattr(self, f"_{step.verb}")
        await self._see_rules()
        await verb(step)
        await self.settle()
        if step.z % 2:  # it takes as long as two steps
            await self.compare()
        await self.pass_time(PASSES[step.z % len(PASSES)])

    async def drain(self) -> None:
        """All requests end; nothing of them stays an hour after."""
        await self._go_on()
        for name in [*self.order.tenants]:
            await self._set_tenant(name, TenantRule())
        for worker in self.workers:
            worker.doomed = False
        if not self.workers:
            self._start("last", 0)
        for _ in range(200):
            for worker in [*self.workers]:
                if worker.leases:
                    await self._finish(worker, [*worker.leases.values()], Step("complete", 1, 0, 0))
            await self.settle()
            if not self.books.requests:
                break
            await self.pass_time(TICK_MS)
            await self.compare()
        assert not self.books.requests, f"these never ended: {[*self.books.requests]}"
        assert not (problems := (await self.queue.broker.audit()).problems()), problems
        await self._forget()

    async def _forget(self) -> None:
        """An hour later nothing is left of tenants, sessions and homes."""
        self.now += HOUR_MS + TICK_MS
        for _ in range(FORGET_ROUNDS):
            await self.queue.broker.return_delayed(most_delay_ms=30_000)
            await self.queue.broker.after_staging()
        names = "tenants", "sessions", "interrupted", "labelled"
        fields = await self.queue.command("HMGET", self.queue.keys.lane_states, *names)
        left = [name for name in await self.queue.dump() if name.startswith(LEFT)]
        left += [field for field in fields if field]
        assert not left, f"{left} are left for good"

    # -- who puts work in -------------------------------------------------------------------------------------------

    def _draw(self) -> dict[str, str]:
        """Fields of a request."""
        chance = self.chance
        tenant, session = chance.choice(self.shape.tenants), chance.choice(self.shape.sessions)
        long = self.shape.long and chance.randrange(self.shape.long) == 0
        text = f"{tenant}{chance.randrange(2)}" + "x" * LONG if long else "x" * chance.choice([0, 40, 400])
        limit = chance.choice([None, None, 10, 100, 1_000])
        body = {"messages": text} if limit is None else {"messages": text, "max_tokens": limit}
        self.serial += 1
        fields = {"body": json.dumps(body), "id": f"r{self.serial}", "tenant": tenant, "session": session}
        after = chance.choice([None, 2_000, 4_000, 20_000, 20_000, 60_000])
        if after is not None:
            fields["deadline" if chance.randrange(3) else "ttl"] = str(after)
        return {name: value for name, value in fields.items() if value}

    def _arrive(self, lane: Lane, stream_id: str, fields: dict[str, str]) -> None:
        enqueued = int(stream_id.partition("-")[0])
        deadline = int(fields["deadline"]) if "deadline" in fields else None
        if "ttl" in fields:
            deadline = enqueued + int(fields["ttl"])
        limit = json.loads(fields["body"]).get("max_tokens")
        entry = Entry(
            lane.number,
            id_key(stream_id),
            rank_of(enqueued, deadline),
            enqueued,
            deadline,
            fields.get("tenant", ""),
            size=len(fields["body"]),
            limit=limit,
        )
        request = Request(lane, stream_id, fields["id"], entry, self.now)
        self.books.requests[request.name] = request

    async def _add(self, step: Step) -> None:
        for _ in range([1, 1, 1, 2, 5][step.x % 5]):
            lane, fields = self.chance.choice(self.shape.lanes), self._draw()
            if "deadline" in fields:
                fields["deadline"] = str(self.now + int(fields["deadline"]))
            stream_id = f"{self.now}-{100 * self.serial}"
            await self.queue.add(lane, stream_id, **fields)
            self._arrive(lane, stream_id, fields)

    async def _enqueue(self, _: Step) -> None:
        lane, fields = self.chance.choice(self.shape.lanes), self._draw()
        if "deadline" in fields:
            fields["deadline"] = str(self.now + int(fields["deadline"]))
        encoded = {name: value.encode() for name, value in fields.items()}
        (accepted,) = await self.queue.broker.enqueue([Submission(fields["id"], lane, encoded, "d")])
        self._arrive(lane, accepted.entry.partition(":")[2], fields)

    async def _cancel(self, step: Step) -> None:
        names = [
            request for request in self.books.requests.values() if not (request.cancelled or request.late(self.now))
        ]
        if not names:
            return
        request = names[step.x % len(names)]
        assert await self.queue.broker.cancel(request.id)
        self.books.cancel(request)

    # -- who does it, and who sets limits ---------------------------------------------------------------------------

    def _some(self, step: Step) -> tuple[Worker, Lease] | None:
        """A running request, and its worker."""
        running = [(worker, lease) for worker in self.workers for lease in worker.leases.values()]
        return running[step.x % len(running)] if running else None

    async def _complete(self, step: Step) -> None:
        if found := self._some(step):
            worker, _ = found
            await self._finish(worker, [*worker.leases.values()][: 1 + step.y % 2], step)

    async def _finish(self, worker: Worker, leases: Sequence[Lease], step: Step) -> None:
        status = [Status.SUCCEEDED, Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED][step.z % 4]
        counted, resumed = step.x % 4, step.y % 3
        used = (3 + step.x % 50, step.y % 400) if counted else None
        held = [None, 7.0, math.inf][step.y % 3] if used is None else None
        values: dict[str, Any] = {"response": "{}", "resumed_tokens": resumed}
        if used is not None:
            values["usage"] = json.dumps({"prompt_tokens": used[0], "completion_tokens": used[1]})
        if held is not None:
            values["waited_ms"] = 5
        error = "" if status is Status.SUCCEEDED else ERROR
        tokens = None if held is None or math.isinf(held) else int(held)
        prompt, output = used or (None, 0)
        use = Use(prompt, output, used is not None, resumed, status is Status.SUCCEEDED, held is not None, tokens)
        items = [Completion(lease, status, values, "", error, held) for lease in leases]
        codes = await self.queue.broker.complete(worker.name, items)
        for lease, code in zip(leases, codes, strict=True):
            request = self.books.requests[lease.entry]
            expected = CompleteCode.ENDED_BEFORE if request.cancelled else CompleteCode.PUBLISHED
            assert code == expected, f"{request.name}: {code}"
            self.books.settle(request, status, use)
            self._ended(worker, lease)

    async def _retry(self, step: Step) -> None:
        if not (found := self._some(step)):
            return
        worker, lease = found
        delay = [0, 0, 300, 2_000][step.y % 4]
        request = self.books.requests[lease.entry]
        expected = RetryCode.DELAYED
        if request.cancelled:
            expected = RetryCode.ANSWERED
        elif lease.attempt >= MOST:
            expected = RetryCode.DEAD
        elif request.late(self.now + delay):
            expected = RetryCode.EXPIRED
        held = [None, None, 7.0, math.inf][step.z // 8 % 4]
        retries = [Retry(lease, delay, ERROR, held=held)]
        assert await self.queue.broker.retry_later(worker.name, retries, MOST) == [expected]
        tokens = None if held is None or math.isinf(held) else int(held)
        await self._follow()
        self.books.hand_back(request, None, failed=held is not None, held=tokens)
        request.tries = lease.attempt
        if expected is not RetryCode.DELAYED:
            self.books.end(request, "dead" if expected is RetryCode.DEAD else "expired")
        elif delay:
            request.place = ("delayed", self.now + delay)
        else:
            self.books.ready(request)
        self._ended(worker, lease)

    async def _release(self, step: Step) -> None:
        if found := self._some(step):
            worker, lease = found
            generated = step.y % 3 * 5
            given = {lease: generated} if generated else {}
            await self.queue.broker.release(worker.name, [lease], in_turn=step.y % 2 == 0, generated=given)
            if step.y % 2 == 0:
                self.order.shares.given_back(lease.lane.number)
            await self._back(self.books.requests[lease.entry], generated)
            self._ended(worker, lease)

    async def _give_way(self, step: Step) -> None:
        if found := self._some(step):
            await self._interrupt(*found, kept=step.y % 3 > 0)

    async def _die(self, step: Step) -> None:
        """At once, with what it has; or as soon as it is woken."""
        if len(self.workers) > 1 or step.y % 4 == 0:
            worker = self.workers[step.x % len(self.workers)] if self.workers else None
            if worker and step.y % 3 and worker.waits not in (None, Role.NONE):
                worker.doomed = True
            elif worker:
                self._bury(worker)

    async def _join(self, step: Step) -> None:
        """Another worker, or one that died comes back, with an empty cache."""
        names = [name for name in self.dead if not self.books.held_by(name)]
        if len(self.workers) < self.shape.workers + 1:
            name = names[step.x % len(names)] if names and step.y % 2 else f"w{self.made}"
            self.dead.pop(name, None)
            self._start(name, self.shape.reserve)

    async def _leave(self, step: Step) -> None:
        """A worker stops in order."""
        idle = [worker for worker in self.workers if not worker.leases]
        if len(self.workers) > 1 and idle:
            worker = idle[step.x % len(idle)]
            if worker.owing or worker.hints:
                worker.slots = 0
                await self._pull(worker, worker.rooms())
            self.workers.remove(worker)
            await self.queue.broker.deregister(worker.name)
            await self._follow()

    async def _limit(self, step: Step) -> None:
        """An operator gives a tenant a weight and a limit."""
        names = [name for name in self.shape.tenants if name]
        if names:
            weight, most = [1.0, 1.0, 3.0, 0.5][step.y % 4], [None, None, 1, 2, 3][step.z % 5]
            await self._set_tenant(names[step.x % len(names)], TenantRule(weight, most))

    async def _set_tenant(self, name: str, rule: TenantRule) -> None:
        await self.queue.broker.set_tenant(name, rule)
        older = TenantRule(2.0, 1, key="key", set_ms=1)
        assert not await self.queue.broker.set_tenant(name, older), "what was set before counts"
        self.order.set_rule(name, rule)
        await self._see_rules()

    async def _pause(self, step: Step) -> None:
        if self.paused:
            await self._go_on()
        else:
            self.paused = {self.shape.lanes[step.x % len(self.shape.lanes)]}
            self.order.paused = {lane.number for lane in self.paused}
            await self.queue.broker.pause([*self.paused])

    async def _go_on(self) -> None:
        if self.paused:
            await self.queue.broker.resume([*self.paused])
            self.open_since |= dict.fromkeys(self.paused, self.now)
            self.paused, self.order.paused = set(), set()

    async def _rest(self, step: Step) -> None:
        await self.pass_time([500, 3_000, 9_000][step.y % 3])
