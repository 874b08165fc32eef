"""Queues for the engines in virtual time: the real scripts, with deadlines judged or not; and an oracle."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence

from bench.fairness.engines import SLOTS, Ask
from streamfleet.common.broker.types import Claim, Completion, Expected
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane, Status
from streamfleet.worker.housekeeping import SERVICES
from streamfleet.worker.outcome import expired
from streamfleet.worker.service_times import Judge, ServiceTimes
from streamfleet.worker.services.turn import take_turn
from tests.broker import Broker


class RealQueue:
    """The real scripts, as real workers call them.

    Args:
        url: the server.
        engines: their number; each learns by itself how long requests take.
        judges: true if deadlines are judged at the pick.
    """

    def __init__(self, url: str, engines: int, *, judges: bool) -> None:
        self._connection = Connection(url)
        self._keys = Keys("judged" if judges else "today")
        self._judges, self._times = judges, [ServiceTimes() for _ in range(engines)]
        self._judge: list[Judge] = []
        self._asks: dict[str, Ask] = {}
        self._claims: dict[int, Claim] = {}
        self.ready = 0

    def broker(self, now: float) -> Broker:
        """The broker at a virtual time."""
        return Broker(self._connection, self._keys, QueueLimits(now_ms=round(now)))

    async def open(self, now: float) -> None:
        await self.broker(now).ensure_groups()
        self._judge = [Judge(times, now / 1000) for times in self._times]

    async def weigh(self, tenant: str, weight: float) -> None:
        """Give a tenant a weight."""
        await self._connection.command("HSET", self._keys.tenants, tenant, str(weight))

    async def close(self) -> None:
        await self._connection.close()

    async def add(self, ask: Ask, now: float) -> None:
        body = json.dumps({"prompt": "x" * 4 * ask.prompt, "max_tokens": ask.limit})
        more = ("deadline", round(ask.deadline)) if ask.deadline < 1e15 else ()
        tenant = ("tenant", ask.tenant) if ask.tenant else ()
        words = ("XADD", self._keys.lane(ask.lane), f"{round(now)}-{ask.number}", "id", f"r{ask.number}", "body", body)
        await self._connection.command(*words, *more, *tenant)
        self._asks[f"r{ask.number}"] = ask
        self.ready += 1

    async def pull(self, engine: int, room: int, now: float) -> Sequence[Ask]:
        if self.ready == 0:
            return []
        needs = self._judge[engine].needs(now / 1000) if self._judges else None
        pulled = await self.broker(now).pull(f"w{engine}", room, needs=needs)
        self._judge[engine].pulled(pulled.ready, pulled.dropped, now / 1000)
        self.ready = pulled.ready
        asks = [self._asks.pop(claim.lease.request_id) for claim in pulled.claims]
        self._claims |= {ask.number: claim for ask, claim in zip(asks, pulled.claims, strict=True)}
        return asks

    async def ended(self, engine: int, ask: Ask, now: float, *, in_vain: bool) -> None:
        claim = self._claims.pop(ask.number)
        usage = json.dumps({"prompt_tokens": ask.prompt, "completion_tokens": ask.output})
        status, error = (Status.EXPIRED, expired("while it was running").error) if in_vain else (Status.SUCCEEDED, "")
        await self.broker(now).complete(f"w{engine}", [Completion(claim.lease, status, {"usage": usage}, "", error)])
        if claim.length and ask.picked is not None:
            self._times[engine].took(claim.length, (now - ask.picked) / 1000, in_vain=in_vain)

    async def keep_house(self, now: float) -> None:
        broker = self.broker(now)
        while (pulled := await broker.pull("w0", 0, stage_entries=1_000)).staged:
            pass
        self.ready = pulled.ready
        await broker.expire()
        await take_turn(broker, SERVICES)

    async def expected(self, ask: Ask, now: float) -> Expected:
        """Place and time of a request that was added."""
        (found,) = await self.broker(now).expected(
            [(Lane(ask.lane), f"{round(ask.at)}-{ask.number}", None, None, ask.tenant)]
        )
        return found


class Oracle:
    """Knows each output: of what cannot all be done in time, it lets the longest go (Moore and Hodgson)."""

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._waiting: list[tuple[float, int, Ask]] = []

    async def add(self, ask: Ask, now: float) -> None:
        heapq.heappush(self._waiting, (ask.deadline, ask.number, ask))
        self._let_go(now)

    def _let_go(self, now: float) -> None:
        before, kept = 0.0, list[tuple[float, int, Ask]]()
        gone: set[int] = set()
        for _, _, ask in sorted(self._waiting):
            before += ask.work_ms
            heapq.heappush(kept, (-ask.work_ms, ask.number, ask))
            if before / self._engines + ask.run_ms(SLOTS) > ask.deadline - now:
                work, number, _ = heapq.heappop(kept)
                before += work
                gone.add(number)
        self._waiting = [row for row in self._waiting if row[1] not in gone]
        heapq.heapify(self._waiting)

    async def pull(self, engine: int, room: int, now: float) -> Sequence[Ask]:  # noqa: ARG002 - as a queue has it
        found: list[Ask] = []
        while self._waiting and len(found) < room:
            found.append(heapq.heappop(self._waiting)[2])
        return found

    async def ended(self, engine: int, ask: Ask, now: float, *, in_vain: bool) -> None: ...

    async def keep_house(self, now: float) -> None: ...
