"""The real scripts on a real Redis, in virtual time, called as workers call them, with a worker's own admission.

Workers pull when they have room, wait as they are told to, and are woken as Redis says: by arrivals and the wake
stream, and their own lists. Requests give way as `Admission` chooses. The housekeeping runs once a second.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.goodput.engine import Engine
from bench.goodput.fleet import Fleet
from bench.goodput.work import Request
from streamfleet.common.broker.types import Completion, Home, Pulled, Role, Rooms, TenantRule
from streamfleet.common.connection import Connection
from streamfleet.common.keys import GROUP, NOBODY, Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.common.settings import WorkerSettings, load
from streamfleet.worker.admission import Admission
from streamfleet.worker.engine.base import EngineRequest
from streamfleet.worker.giving_way import URGENT
from streamfleet.worker.housekeeping import SERVICES
from streamfleet.worker.in_flight import InFlight, InFlightRequest, StopReason
from streamfleet.worker.outcome import Finished, expired
from streamfleet.worker.pull import AT_ONCE, HANDED_MS
from streamfleet.worker.service_times import Judge
from streamfleet.worker.services.turn import take_turn
from tests.broker import Broker

SYSTEM_BYTES, WATCH_S, BODY_BYTES = 1_100, 5.0, 100_000
NO_RESERVE: Mapping[str, object] = {"reserve_percent": 0, "patient_lanes": ()}
"""Settings of workers that go by the order alone: no lane leaves a reserve, and nothing gives way."""


@dataclass(frozen=True)
class Way:
    """A way to run a queue.

    Attributes:
        sessions, tenants: true if requests name theirs.
        judged: true if deadlines are judged at the pick.
        worker: settings of the workers.
        urgent_workers: number of workers that serve urgent lanes only, and the others all else; 0 if all serve all.
        weights: weights of tenants.
    """

    sessions: bool = False
    tenants: bool = False
    judged: bool = False
    worker: Mapping[str, object] = field(default_factory=lambda: NO_RESERVE)
    urgent_workers: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)


class Worker:
    """One worker, with its engine.

    Attributes:
        role: how it waits.
        rooms: for each lane, the number of requests that it may take.
        pulls: number of its pulls.
        gave_way: requests that it has interrupted in the present pull.
    """

    def __init__(self, engine: Engine, settings: WorkerSettings) -> None:
        self.engine, self.name, self.in_flight = engine, f"w{engine.name}", InFlight()
        self.admission = Admission(engine, self.in_flight, settings)  # type: ignore[arg-type]  # asks its capacity only
        self.judge = Judge(self.admission.times, 0.0)
        self.role, self.rooms, self.pulls = Role.NONE, (0,) * len(LANES), 0
        self.gave_way: list[InFlightRequest] = []


class Scripts:
    """A queue and its workers.

    Args:
        url: the server, which nobody else uses.
        way: the way to run them.
    """

    def __init__(self, url: str, way: Way) -> None:
        self._connection, self._way, self._keys = Connection(url), way, Keys("default")
        self._requests: dict[str, Request] = {}
        self._flights: dict[Request, InFlightRequest] = {}
        self._arrived: set[str] = set()
        self._sent = 0

    @property
    def _now_ms(self) -> int:
        return self._start_ms + round(self._fleet.now_s * 1000)

    @property
    def _broker(self) -> Broker:
        return Broker(self._connection, self._keys, QueueLimits(now_ms=self._now_ms))

    async def begin(self, fleet: Fleet) -> None:
        self._fleet, self._start_ms = fleet, round(time.time() * 1000)
        settings = load(WorkerSettings, **self._way.worker)
        self._workers = {engine: Worker(engine, settings) for engine in fleet.engines}
        await self._broker.ensure_groups()
        for tenant, weight in self._way.weights.items():
            await self._broker.set_tenant(tenant, TenantRule(weight))
        fleet.at(1.0, "timer", None)
        for worker in [*self._workers.values()]:
            await self._pull(worker)

    async def sent(self, request: Request) -> None:
        session, name, self._sent = request.session, f"r{self._sent}", self._sent + 1
        self._requests[name] = request
        start = f"{session.system:04d}" * (SYSTEM_BYTES // 4) if self._way.sessions else f"{name} "
        body = {"prompt": start.ljust(4 * request.turn.new), "max_tokens": request.turn.limit}
        fields: list[Any] = ["id", name, "body", json.dumps(body)]
        if request.deadline_s < math.inf:
            fields += ["deadline", self._start_ms + round(request.deadline_s * 1000)]
        if self._way.sessions:
            fields += ["session", session.name]
        if self._way.tenants and session.tenant:
            fields += ["tenant", session.tenant]
        await self._connection.command("XADD", self._keys.lane(session.lane), f"{self._now_ms}-*", *fields)
        self._arrived.add(session.lane)
        await self._wake()

    async def room(self, engine: Engine) -> None:
        worker = self._workers[engine]
        if worker.role is Role.NONE or min(worker.rooms) <= 0:  # with room in all lanes it waits until it is woken
            await self._pull(worker)
            await self._wake()

    async def ended(self, engine: Engine, request: Request, in_time: bool) -> None:
        worker, flight = self._workers[engine], self._flights.pop(request)
        made = request.turn.output if in_time else request.made
        usage = {"prompt_tokens": request.prompt - request.made, "completion_tokens": made}
        outcome = Finished(Status.SUCCEEDED, 200, b"{}", usage=usage)
        if not in_time:
            flight.stop_reason, outcome = StopReason.LATE, expired("while it was running")
            outcome.usage = usage
        if flight.asked is not None:
            outcome.resumed_tokens = flight.asked.resumed_tokens
        worker.admission.learn(flight, outcome, self._fleet.now_s)
        values: dict[str, bytes | str | int] = {"usage": json.dumps(usage)}
        done = Completion(flight.lease, outcome.status, values, "", outcome.error, held=outcome.held)
        await self._broker.complete(worker.name, [done])
        worker.in_flight.remove([flight])
        del self._requests[flight.lease.request_id]

    async def late(self, _: Request) -> None:
        return  # the housekeeping ends it

    async def timer(self, about: tuple[Worker, int] | None) -> None:
        if about is None:
            broker = self._broker
            while (await broker.stage("keeper")).staged:
                pass
            await broker.tend_waiting()
            await broker.expire()
            await take_turn(broker, SERVICES)
            self._fleet.at(self._fleet.now_s + 1.0, "timer", None)
        elif about[0].role is Role.WATCHER and about[0].pulls == about[1]:
            await self._pull(about[0], owing=True)
        await self._wake()

    async def close(self) -> None:
        await self._connection.close()

    def _look(self, worker: Worker) -> tuple[int, ...]:
        """Rooms of a worker as of now."""
        rooms = worker.admission.rooms(0, self._fleet.now_s)
        if self._way.urgent_workers:
            urgent = worker.engine.name < self._way.urgent_workers
            rooms = tuple(room if (lane in URGENT) == urgent else 0 for lane, room in zip(LANES, rooms, strict=True))
        worker.rooms = rooms
        return rooms

    async def _pull(self, worker: Worker, *, owing: bool = False) -> None:
        self._workers[worker.engine] = self._workers.pop(
            worker.engine
        )  # who waits longest is woken first, as Redis does
        worker.role = Role.NONE
        while max(rooms := self._look(worker)) > 0 or owing:
            admission, now_s = worker.admission, self._fleet.now_s
            rooms = tuple(min(room, AT_ONCE) for room in rooms)
            owed = admission.owed if not self._way.urgent_workers else rooms
            pulled = await self._broker.pull(
                worker.name,
                Rooms(rooms, owed, admission.free),
                owing=owing,
                needs=worker.judge.needs(now_s) if self._way.judged else None,
                home=Home("1", worker.in_flight.load().requests),
            )
            owing, worker.pulls = False, worker.pulls + 1
            worker.judge.pulled(pulled.ready, pulled.dropped, now_s)
            admission.claimed({claim.lease.lane for claim in pulled.claims}, now_s)
            flights = [
                InFlightRequest(
                    claim, now_s, pulled.now_ms, admission.expected, at >= rooms[claim.lease.lane.number - 1]
                )
                for at, claim in enumerate(pulled.claims)
            ]
            for flight in flights:
                worker.in_flight.add(flight)
            all_fit = all([await self._start(worker, flight) for flight in flights])
            if not all_fit:
                return  # `room` pulls again
            if pulled.role is not Role.NONE:
                self._wait(worker, pulled)
                return

    def _wait(self, worker: Worker, pulled: Pulled) -> None:
        worker.role = pulled.role
        self._look(worker)
        if worker.role is Role.WATCHER:
            self._watch(worker, WATCH_S if pulled.soonest_ms is None else pulled.soonest_ms / 1000 + 0.001)

    def _watch(self, worker: Worker, seconds: float) -> None:
        worker.role = Role.WATCHER
        self._fleet.at(self._fleet.now_s + seconds, "timer", (worker, worker.pulls))

    async def _start(self, worker: Worker, flight: InFlightRequest) -> bool:
        """Start a request, and hand back what gives way for it; returns False if it does not fit."""
        claim, now_s = flight.claim, self._fleet.now_s
        decoded = worker.admission.admit(flight, now_s, BODY_BYTES)
        for other in worker.gave_way:
            await self._hand_back(worker, other)
        worker.gave_way.clear()
        if decoded is None:
            await self._broker.release(worker.name, [claim.lease], in_turn=True)
            worker.in_flight.remove([flight])
            return False
        request = self._requests[claim.lease.request_id]
        flight.started_at = now_s
        flight.asked = EngineRequest(claim.lease.request_id, decoded.endpoint, decoded.body, Lane(claim.lease.lane))
        flight.asked.continuable, flight.asked.resumed_tokens = True, request.made
        flight.abort = lambda: worker.gave_way.append(flight)
        self._flights[request] = flight
        self._fleet.give(worker.engine, request)
        return True

    async def _hand_back(self, worker: Worker, flight: InFlightRequest) -> None:
        lease = flight.lease
        request = self._requests[lease.request_id]
        before = request.made
        self._fleet.interrupt(worker.engine, request)
        run, made = f"{lease.request_id}-{request.interrupted}", request.made - before
        await self._broker.release(
            worker.name, [lease], gave_way=True,
            kept={lease: (run, 4 * request.made)} if request.made else {}, generated={lease: made} if made else {},
        )  # fmt: skip
        worker.in_flight.remove([flight])
        del self._flights[request]

    async def _wake(self) -> None:
        """Let those pull that Redis wakes, until it wakes nobody."""
        while True:
            waiting = [each for each in self._workers.values() if each.role is not Role.NONE]
            watchers = [each for each in waiting if each.role is Role.WATCHER]
            heard, self._arrived = self._arrived, set()
            hearing = [each for each in watchers if any(each.rooms[Lane(lane).number - 1] > 0 for lane in heard)]
            if not hearing and watchers:
                words = ("XREADGROUP", "GROUP", GROUP, NOBODY, "NOACK", "STREAMS", self._keys.wake, ">")
                hearing = watchers if await self._connection.command(*words) else []
            if hearing:
                await self._pull(hearing[0], owing=True)
                continue
            waiters = [each for each in waiting if each.role is Role.WAITER]
            if not waiters:
                return
            lists = [self._keys.wake_up(each.name) for each in waiters]
            found = await self._connection.pipeline([("LPOP", key) for key in lists])
            woken = {each: token for each, token in zip(waiters, found, strict=True) if token}
            if not woken:
                return
            for worker, token in woken.items():
                if token == b"watch":
                    self._watch(worker, HANDED_MS / 1000)
                else:
                    await self._pull(worker, owing=True)
