"""The faults themselves: each kind strikes real processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from streamfleet.common import scripts
from streamfleet.common.broker.types import TenantRule
from streamfleet.common.errors import BrokerOutOfMemory, BrokerUnavailable
from streamfleet.worker.failpoints import Point
from tests.broker import Broker
from tests.fault.fleet import Member
from tests.fault.harness import Harness
from tests.fault.plan import Fault, FaultKind

POINT_S = 20.0
AGAIN_S = 0.1
ANYBODY = frozenset({Point.BEFORE_RECLAIM, Point.AFTER_RECLAIM})
PRODUCER = "producer"
LEAVING = frozenset({Point.DRAINING, Point.BEFORE_RELEASE, Point.BEFORE_CHECK_OUT})


class Striker:
    """Strikes, and counts what was really struck.

    Attributes:
        struck: (kind, detail) of every fault that took place, counted.
        missed: the same of those that found nothing to strike.
    """

    def __init__(self, harness: Harness) -> None:
        self._harness, self._fleet = harness, harness.fleet
        self.struck: Counter[tuple[str, str]] = Counter()
        self.missed: Counter[tuple[str, str]] = Counter()
        self._frozen = asyncio.Semaphore(max(1, len(harness.fleet.members) // 2))
        self._armed: dict[str, asyncio.Future[str]] = {}
        self._asked: set[str] = set()
        self._fleet.on_struck = self._was_struck
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: dict[FaultKind, Callable[[Fault], Awaitable[bool]]] = {
            FaultKind.KILL: self._kill,
            FaultKind.STOP: self._stop,
            FaultKind.TERM: self._term,
            FaultKind.TERM_STORM: self._term_storm,
            FaultKind.REDIS_KILL: self._redis_kill,
            FaultKind.CUT: self._cut,
            FaultKind.DELAY: self._delay,
            FaultKind.BLACK_HOLE: self._black_hole,
            FaultKind.SWALLOW: self._swallow,
            FaultKind.ENGINE_DEATH: self._engine,
            FaultKind.ENGINE_HANG: self._engine,
            FaultKind.CLOCK: self._clock,
            FaultKind.REDIS_CLOCK: self._redis_clock,
            FaultKind.MAXMEMORY: self._fill,
            FaultKind.SCRIPT_FLUSH: self._forget_scripts,
            FaultKind.LIMIT: self._limit,
            FaultKind.DELETE: self._delete,
            FaultKind.RESTORE: self._restore,
            FaultKind.PASSWORD: self._password,
            FaultKind.POINT: self._point,
        }

    async def strike(self, fault: Fault) -> None:
        """Until the fault is over."""
        try:
            happened = await self._ways[fault.kind](fault)
        except TimeoutError:
            happened = False
        detail = fault.what if fault.kind is FaultKind.POINT else ""
        (self.struck if happened else self.missed)[fault.kind, detail] += 1

    async def finish(self) -> None:
        """Wait for what still lasts, and take back limits that a restored snapshot brought again."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        for broker in self._harness.brokers:
            await self._set_tenant(broker, TenantRule())

    def mark(self, kind: str, worker: str, **more: Any) -> None:
        """Log that a fault touches a worker; an empty name is every worker."""
        self._harness.journal.write("fault", kind=kind, worker=worker, **more)

    async def _member(self, fault: Fault) -> Member:
        return await self._fleet.ready(fault.slot)

    def _name_in(self, slot: int) -> str:
        member = self._fleet.members[slot]
        return "" if member is None else member.name

    # -- processes -----------------------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> bool:
        while True:
            member = await self._member(fault)
            self.mark("kill", member.name)
            if await self._fleet.signal(member, signal.SIGKILL):
                await asyncio.wait({member.ended})
                return True

    async def _stop(self, fault: Fault) -> bool:
        async with self._frozen:
            member = await self._member(fault)
            self.mark("stop", member.name)
            if not await self._fleet.signal(member, signal.SIGSTOP):
                return False
            await asyncio.sleep(fault.seconds)
            self.mark("cont", member.name)
            await self._fleet.signal(member, signal.SIGCONT)
            return True

    async def _term(self, fault: Fault) -> bool:
        return await self._ask_to_leave(await self._member(fault), fault.what)

    async def _ask_to_leave(self, member: Member, how: str) -> bool:
        # A worker on its way out already may end by the second signal.
        self.mark("term_again" if member.name in self._asked else "term", member.name)
        self._asked.add(member.name)
        left = await self._fleet.signal(member, signal.SIGTERM)
        if left and how == "twice":
            await asyncio.sleep(0.05)
            self.mark("term_again", member.name)
            await self._fleet.signal(member, signal.SIGTERM)
        return left

    async def _term_storm(self, fault: Fault) -> bool:
        present = [member for member in self._fleet.members if member is not None and member.usable]
        await asyncio.gather(*(self._ask_to_leave(member, fault.what) for member in present))
        return bool(present)

    # -- Redis and the way to it ---------------------------------------------------------------------------

    async def _redis_kill(self, fault: Fault) -> bool:
        self._harness.journal.write("outage", what="redis_kill")
        await self._harness.redis.kill(fault.seconds)
        self._harness.journal.write("outage_over", what="redis_kill")
        return True

    async def _restore(self, fault: Fault) -> bool:
        self._harness.journal.write("outage", what="restore")
        await self._harness.redis.restore(fault.seconds)
        self._harness.journal.write("outage_over", what="restore")
        return True

    async def _password(self, fault: Fault) -> bool:
        """Change the password; the files that processes read change before, with or after it."""
        order, user, *how = fault.what.split()
        self._harness.journal.write("outage", what="password")
        refused = self._harness.redis.refusals
        await self._harness.redis.change_password(order, user.strip("-"), fault.seconds, restart=bool(how))
        self._harness.journal.write("outage_over", what="password")
        self._harness.journal.write("refused", count=self._harness.redis.refusals - refused)
        return True

    async def _delete(self, fault: Fault) -> bool:
        """Delete one key of a queue by hand; its workers go on, and make it anew."""
        broker = self._harness.brokers[fault.slot % len(self._harness.brokers)]
        return bool(await self._harness.redis.ask("DEL", broker.keys.base + fault.what))

    async def _limit(self, fault: Fault) -> bool:
        """Limit how many requests of a tenant run at once, and lower its weight, for a while."""
        broker = self._harness.brokers[fault.slot % len(self._harness.brokers)]
        async with self._locks[fault.kind]:
            await self._set_tenant(broker, TenantRule(0.5, int(fault.what)))
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                await self._set_tenant(broker, TenantRule())
            return True

    async def _set_tenant(self, broker: Broker, rule: TenantRule) -> None:
        while True:
            try:
                await broker.set_tenant("a", rule)
                return
            except (BrokerUnavailable, BrokerOutOfMemory):
                await asyncio.sleep(AGAIN_S)

    async def _fill(self, fault: Fault) -> bool:
        self._harness.journal.write("outage", what="maxmemory")
        with contextlib.suppress(OSError):
            await self._harness.redis.fill(fault.seconds)
        self._harness.journal.write("outage_over", what="maxmemory")
        return True

    async def _forget_scripts(self, _: Fault) -> bool:
        await self._harness.redis.forget_scripts()
        return True

    async def _redis_clock(self, fault: Fault) -> bool:
        """One step for a while, and one back."""
        async with self._locks[fault.kind]:
            if not self._harness.shift_redis_clock(int(fault.what)):
                return False
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._harness.shift_redis_clock(0)
            return True

    async def _cut(self, fault: Fault) -> bool:
        if fault.what == PRODUCER:
            self._harness.producers[fault.slot % len(self._harness.producers)].proxy.cut()
            return True
        self.mark("cut", self._name_in(fault.slot))
        self._fleet.proxies[fault.slot].cut()
        return True

    async def _delay(self, fault: Fault) -> bool:
        proxy = self._fleet.proxies[fault.slot]
        self.mark("delay", self._name_in(fault.slot))
        proxy.delay_s = int(fault.what) / 1000
        await asyncio.sleep(fault.seconds)
        proxy.delay_s = 0.0
        self.mark("delay", self._name_in(fault.slot))
        return True

    async def _black_hole(self, fault: Fault) -> bool:
        proxy = self._fleet.proxies[fault.slot]
        self.mark("black_hole", self._name_in(fault.slot))
        if fault.what == "forget":
            proxy.forget()
            return True
        proxy.hold()
        await asyncio.sleep(fault.seconds)
        if fault.what == "cut":
            proxy.cut()
        proxy.let_go()
        self.mark("black_hole", self._name_in(fault.slot))
        return True

    async def _swallow(self, fault: Fault) -> bool:
        proxy = self._fleet.proxies[fault.slot]
        if fault.what == "enqueue":
            proxy = self._harness.producers[fault.slot % len(self._harness.producers)].proxy
        else:
            self.mark("swallow", self._name_in(fault.slot))
        proxy.swallow(scripts.sha(fault.what).encode())
        return True

    # -- inside a worker -----------------------------------------------------------------------------------

    async def _engine(self, fault: Fault) -> bool:
        member = await self._member(fault)
        what = "die" if fault.kind is FaultKind.ENGINE_DEATH else "hang"
        self.mark(fault.kind, member.name)
        return self._fleet.controls.tell(member.name, do="engine", what=what)

    async def _clock(self, fault: Fault) -> bool:
        member = await self._member(fault)
        return self._fleet.controls.tell(member.name, do="clock", ms=int(fault.what))

    async def _point(self, fault: Fault) -> bool:
        async with self._locks[fault.what]:  # one of a kind at a time: an answer says no more than what was struck
            return await self._strike_at_point(fault)

    async def _strike_at_point(self, fault: Fault) -> bool:
        point, action = fault.what.split()
        key = fault.what
        hit = self._armed[key] = asyncio.get_running_loop().create_future()
        slots = range(len(self._fleet.members)) if point in ANYBODY else (fault.slot,)
        arming = asyncio.create_task(self._arm(slots, point, action, fault.seconds, hit))
        try:
            name = await asyncio.wait_for(asyncio.shield(hit), POINT_S)
        except TimeoutError:
            return False
        finally:
            arming.cancel()
            del self._armed[key]
            for slot in slots:
                self._fleet.controls.tell(self._name_in(slot), do="disarm", point=point)
        await self._survive(name, action, fault.seconds)
        return True

    async def _arm(self, slots: Any, point: str, action: str, seconds: float, hit: asyncio.Future[str]) -> None:
        """Arm whoever works in these slots, and who comes after it, until one was struck."""
        told: set[str] = set()
        while not hit.done():
            for slot in slots:
                member = self._fleet.members[slot]
                if member is None or not member.usable or member.name in told:
                    continue
                told.add(member.name)
                order = {"do": "arm", "point": point, "action": action, "seconds": seconds, "skip": 0}
                self._fleet.controls.tell(member.name, **order)
                if point in LEAVING:
                    await asyncio.sleep(0.02)  # for the order to arrive before the signal
                    await self._ask_to_leave(member, "twice" if point == Point.BEFORE_RELEASE else "once")
            await asyncio.sleep(0.05)

    def _was_struck(self, name: str, said: dict[str, Any]) -> None:
        self.mark(f"point_{said['action']}", name, point=said["point"], seconds=said["seconds"])
        hit = self._armed.get(f"{said['point']} {said['action']}")
        if hit is not None and not hit.done():
            hit.set_result(name)
        elif said["action"] == "stop":  # a second one, struck before it could be disarmed
            task = asyncio.create_task(self._survive(name, "stop", 0.0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _survive(self, name: str, action: str, seconds: float) -> None:
        """A stopped worker goes on after a while."""
        await asyncio.sleep(seconds)
        member = self._fleet.known(name)
        if action == "stop" and member is not None:
            self.mark("cont", name)
            await self._fleet.signal(member, signal.SIGCONT)
