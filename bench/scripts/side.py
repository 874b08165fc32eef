"""Calls verbs of the streamfleet in its PYTHONPATH, and tells what each cost its server: one side of the comparison.

It reads a line of JSON for each measurement, and answers with one. A queue holds `depth` waiting requests, of nobody,
of 1,000 tenants, of sessions, or of both; what a measurement takes or adds is made up for afterwards.

    python -m bench.scripts.side fleet WORKERS SECONDS      a fleet instead: prints its server's CPU of a request, in µs
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bench.scripts import FLEET, LOAD
from bench.shards import fleets
from bench.shards.sizes import FULL
from streamfleet.common import scripts
from streamfleet.common.broker.types import Completion, Home, Lease, Retry, Submission
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane, Status
from tests.broker import Broker

TENANTS, SESSIONS, WORKERS = 1_000, 100_000, 8
BODY = json.dumps({"prompt": "x" * 460, "max_tokens": 16}).encode()
USAGE = json.dumps({"prompt_tokens": 125, "completion_tokens": 16})
AT_ONCE, HOUR_MS = 64, 3_600_000
ERROR = json.dumps({"error": {"message": "busy", "type": "server_error", "param": None, "code": None}})
WITHOUT_REQUESTS: dict[str, tuple[Any, ...]] = {
    "heartbeat": ("w0", {"state": "ready", "slots": 64, "running": 64}),
    "ask_to_cancel": ("nobody",),
    "keep_house": (),
    "reclaim": (600_000, 5),
}
"""Verbs that are told of no request, and their arguments."""


class Side:
    """A queue on the server of this side.

    Args:
        connection: to the server.
        labels: ``plain``, ``tenants``, ``sessions`` or ``both``.
        depth: number of requests that wait.
    """

    def __init__(self, connection: Connection, labels: str, depth: int) -> None:
        self._connection, self._labels, self._depth = connection, labels, depth
        self._broker = Broker(connection, Keys(labels), QueueLimits(lane_limit=10**9, lane_bytes=10**12))
        self._chance = random.Random(labels)
        self._made = self._turn = self._there = 0
        self._leases: list[tuple[str, Lease]] = []

    async def fill(self) -> None:
        """Make the queue, and let homes be known before there is work for them."""
        await self._broker.ensure_groups()
        for _ in range(2 * WORKERS):
            await self._broker.enqueue(self._some(1))
            await self._pull(1)
        await self.settle()

    async def settle(self) -> None:
        """End what is held, and let as many wait as at the beginning."""
        while (more := self._there - len(self._leases) - self._depth) > 0:
            await self._pull(min(AT_ONCE, more))
        self._there -= len(self._leases)
        while self._leases:
            await self._complete()
        while self._there < self._depth:
            await self._broker.enqueue(self._some(min(AT_ONCE, self._depth - self._there)))
        while (await self._broker.pull("w0", 0, stage_entries=1_000)).staged:
            pass

    async def calls(self, verb: str, number: int, calls: int) -> list[Callable[[], Awaitable[object]]]:
        """Calls of a verb, each of so many requests, with all that they need prepared."""
        broker = self._broker
        of_several = {"pull": self._pull, "add": self._add, "drain": self._drain}
        if verb in of_several:
            return [partial(of_several[verb], number)] * calls
        if verb in WITHOUT_REQUESTS:
            owner = self if verb == "keep_house" else broker
            return [partial(getattr(owner, verb), *WITHOUT_REQUESTS[verb])] * calls
        if verb == "return 1":
            digest = await self._connection.command("SCRIPT", "LOAD", verb)
            return [partial(self._connection.command, "EVALSHA", digest, 0)] * calls
        if verb == "enqueue":
            return [partial(broker.enqueue, self._some(number)) for _ in range(calls)]
        if verb == "cancel":
            some = self._some(calls)
            await broker.enqueue(some)
            self._there -= calls
            return [partial(broker.cancel, item.id) for item in some]
        return await self._about_leases(verb, number, calls)

    async def _about_leases(self, verb: str, number: int, calls: int) -> list[Callable[[], Awaitable[object]]]:
        parts: list[list[Lease]] = [[] for _ in range(calls)]
        for part in parts if number else ():
            await self._pull(number, worker=0)
            part += [lease for _, lease in self._leases[-number:]]
        if verb != "renew":
            self._leases = []  # they wait again, or have ended
        self._there -= calls * number if verb == "complete" else 0
        told: dict[str, Callable[[list[Lease]], tuple[Any, ...]]] = {
            "renew": lambda part: (part,),
            "release": lambda part: (part,),
            "complete": lambda part: ([*map(_done, part)],),
            "retry_later": lambda part: ([Retry(lease, 0, ERROR) for lease in part], 1_000),
        }
        return [partial(getattr(self._broker, verb), "w0", *told[verb](part)) for part in parts]

    async def _complete(self) -> None:
        """End what the first worker holds, up to so many at once."""
        worker = self._leases[0][0]
        mine = [each for each in self._leases if each[0] == worker][:AT_ONCE]
        await self._broker.complete(worker, [_done(lease) for _, lease in mine])
        self._leases = [each for each in self._leases if each not in mine]

    async def _add(self, number: int) -> None:
        await self._broker.enqueue(self._some(number))
        await self._broker.pull("w0", 0, stage_entries=1_000)

    async def _drain(self, number: int) -> None:
        await self._pull(number)
        self._there -= len(self._leases)
        await self._complete()

    async def keep_house(self) -> None:
        """A second of the housekeeping, without reclaiming and staging."""
        of_earlier = hasattr(self._broker, "promote")
        for verb in ("promote", "expire") if of_earlier else ("return_delayed", "after_staging"):
            await getattr(self._broker, verb)()

    async def _pull(self, number: int, worker: int | None = None) -> None:
        if worker is None:
            self._turn = worker = (self._turn + 1) % WORKERS
        name, home = f"w{worker}", None
        if self._labels in ("sessions", "both"):
            home = Home(f"start-{worker}", len([each for each, _ in self._leases if each == name]))
        pulled = await self._broker.pull(name, number, home=home)
        self._leases += [(name, claim.lease) for claim in pulled.claims]

    def _some(self, number: int) -> list[Submission]:
        """New requests, which are to be enqueued."""
        self._there += number
        return [self._submission() for _ in range(number)]

    def _submission(self) -> Submission:
        self._made += 1
        session = self._chance.randrange(SESSIONS)
        late = int(time.time() * 1000) + HOUR_MS + self._chance.randrange(HOUR_MS)
        fields = {"id": f"r{self._made}", "reply": "me", "deadline": str(late)}
        if self._labels in ("tenants", "both"):
            fields["tenant"] = f"tenant-{session % TENANTS}"
        if self._labels in ("sessions", "both"):
            fields["session"] = f"session-{session}"
        encoded = {name: value.encode() for name, value in fields.items()} | {"body": BODY}
        return Submission(fields["id"], Lane.NORMAL, encoded, "digest", "me")


def _done(lease: Lease) -> Completion:
    return Completion(lease, Status.SUCCEEDED, {"response": "{}", "usage": USAGE}, "me")


async def cpu_us(connection: Connection) -> float:
    """CPU time of the server's main thread, user and system."""
    lines = (await connection.command("INFO", "cpu")).decode().splitlines()
    rows = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1e6 * (float(rows["used_cpu_user_main_thread"]) + float(rows["used_cpu_sys_main_thread"]))


async def longest_load(connection: Connection) -> float:
    """CPU time of the longest command that loads scripts, in µs."""
    await connection.command("SCRIPT", "FLUSH")
    loads: list[Callable[[], Awaitable[object]]] = [
        partial(connection.command, "SCRIPT", "LOAD", scripts.source(verb)) for verb in scripts.VERBS
    ]
    if hasattr(connection, "load_functions"):  # of an earlier commit
        await connection.command("FUNCTION", "FLUSH")
        loads.append(connection.load_functions)
    spent = []
    for load in loads:
        before = await cpu_us(connection)
        await load()
        spent.append(await cpu_us(connection) - before)
    return max(spent)


def fleet_us(workers: int, seconds: float) -> float:
    """CPU time of a fleet's server for each request, in µs."""
    seen = fleets.one(workers, replace(FULL, rate_per_s=workers / 2, look_s=seconds), lambda _: None)
    return 1e4 * seen.loaded.cpu_percent / seen.rate_per_s


async def serve(url: str, depth: int) -> None:
    """Answer measurements until there are no more."""
    answers, sys.stdout = sys.stdout, sys.stderr  # for log lines
    connection = Connection(url)
    if hasattr(connection, "load_functions"):  # of an earlier commit, whose clients load none by themselves
        await connection.load_functions()
    sides: dict[str, Side] = {}
    for line in sys.stdin:
        labels, verb, number, calls, pause_s = json.loads(line)
        if verb == LOAD:
            print(json.dumps(await longest_load(connection)), file=answers, flush=True)
            continue
        if labels not in sides:
            sides[labels] = Side(connection, labels, depth)
            await sides[labels].fill()
        prepared = await sides[labels].calls(verb, number, calls)
        before = await cpu_us(connection)
        for call in prepared:
            if pause_s:
                await asyncio.sleep(pause_s)
            await call()
        spent = await cpu_us(connection) - before
        await sides[labels].settle()
        print(json.dumps(spent / calls), file=answers, flush=True)
    await connection.close()


if __name__ == "__main__":
    if sys.argv[1] == FLEET:
        print(fleet_us(int(sys.argv[2]), float(sys.argv[3])))
    else:
        asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
