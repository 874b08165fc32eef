"""Server time of a pull, and memory for each request, on two long queues: in one, requests have a tenant or session."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median

import redis

from bench.core.feeding import padded_body, stage_all
from bench.core.parts import Part, Say
from bench.core.redis import memory_bytes, own_server, script_us
from bench.core.reports import Table, Target
from streamfleet.common.broker.types import Completion, Home
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Status
from tests.broker import Broker

WANTED = (1, 8, 64)
USAGE = json.dumps({"prompt_tokens": 125, "completion_tokens": 16})
FILL = """
math.randomseed(tonumber(ARGV[3]))
for i = 1, tonumber(ARGV[1]) do
  local deadline = string.format('%.0f', ARGV[4] + math.random(3600000))
  local fields = {'id', ARGV[3] .. '-' .. i, 'body', ARGV[2], 'deadline', deadline}
  if ARGV[5] ~= '' then fields[7], fields[8] = ARGV[5], ARGV[5] .. '-' .. math.random(tonumber(ARGV[6])) end
  redis.call('XADD', KEYS[1], '*', unpack(fields))
end
"""


def measure(quick: bool, say: Say, label: str, values: int, workers: int = 0) -> Part:
    """Two queues on one server take turns.

    Args:
        quick: 20,000 requests in each in place of a million.
        say: told what is being done.
        label: field of the requests in one of them: ``tenant`` or ``session``.
        values: number of its values.
        workers: number of homes, which ask one after the other; 0 for one worker that is none.
    """
    depth, pulls = (20_000, 100) if quick else (1_000_000, 300)
    with own_server() as server, redis.Redis.from_url(server.url) as client:
        return asyncio.run(_Queues(server.url, client, label, values, workers).measured(depth, pulls, say))


class _Queues:
    def __init__(self, url: str, client: redis.Redis, label: str, values: int, workers: int) -> None:
        self._connection, self._client = Connection(url), client
        self._label, self._plural, self._values, self._calls = label, f"{label}s", values, 0
        self._home = Home("1", 0) if workers else None
        self._names = [f"w{number}" for number in range(max(1, workers))]
        self._queues = {name: Broker(self._connection, Keys(name)) for name in ("none", self._plural)}

    async def measured(self, depth: int, pulls: int, say: Say) -> Part:
        memory = {}
        for name, broker in self._queues.items():
            say(f"queueing and staging {depth:,}, {name}")
            await broker.ensure_groups()
            await self._meet(name)
            before = memory_bytes(self._client)
            await self._deepen(name, depth)
            memory[name] = (memory_bytes(self._client) - before) / depth
        costs: dict[tuple[str, int], list[float]] = {(name, wanted): [] for wanted in WANTED for name in self._queues}
        for number in range(pulls):
            if number % 50 == 0:
                say(f"pulls: {number} of {pulls}")
            worker = self._names[number % len(self._names)]
            for name, wanted in costs if number % 2 == 0 else reversed(costs):
                # The first pull after a change of queue is not counted: the server's caches hold the other one.
                await self._pull(name, wanted, worker)
                costs[name, wanted].append(await self._pull(name, wanted, worker))
        rows = [self._row(name, memory[name], costs) for name in self._queues]
        await self._connection.close()
        targets = [self._target(wanted, depth, costs) for wanted in WANTED]
        return Part([Table(f"Pulls with and without {self._plural}", list(rows[0]), rows)], targets)

    async def _meet(self, name: str) -> None:
        """Let homes be known before there is work for them."""
        for worker in [*self._names, *self._names] if self._home else []:
            await self._queues[name].pull(worker, 0, home=self._home)
            await self._deepen(name, 1)

    async def _deepen(self, name: str, count: int) -> None:
        label = self._label if name == self._plural else ""
        for start in range(0, count, 5_000):
            self._calls += 1
            late_ms = int(time.time() * 1000) + 3_600_000
            args = (min(5_000, count - start), padded_body(500), self._calls, late_ms, label, self._values)
            self._client.eval(FILL, 1, Keys(name).lane("normal"), *args)
        await stage_all(self._queues[name])

    async def _pull(self, name: str, wanted: int, worker: str) -> float:
        """Pull and end so many requests, and add as many. Returns the server time of the pull, µs."""
        before = script_us(self._client)
        pulled = await self._queues[name].pull(worker, wanted, home=self._home)
        cost = script_us(self._client) - before
        assert len(pulled.claims) == wanted
        done = [Completion(claim.lease, Status.SUCCEEDED, {"usage": USAGE}) for claim in pulled.claims]
        await self._queues[name].complete(worker, done)
        await self._deepen(name, wanted)
        return cost

    def _row(self, name: str, memory: float, costs: dict[tuple[str, int], list[float]]) -> dict[str, object]:
        row: dict[str, object] = {
            self._plural: name,
            **{f"pull of {wanted}, median µs": median(costs[name, wanted]) for wanted in WANTED},
            "memory, bytes a request": memory,
        }
        if self._home:
            key = Keys(name).sessions
            known = self._client.hlen(key)
            row["memory, bytes a session"] = (self._client.memory_usage(key, samples=0) or 0) / known if known else 0
        return row

    def _target(self, wanted: int, depth: int, costs: dict[tuple[str, int], list[float]]) -> Target:
        plural = self._plural
        with_label, without = costs[plural, wanted], costs["none", wanted]
        return Target(
            f"pull of {wanted} with {self._values:,} {plural} and {depth:,} queued, against one without {plural}",
            median(cost / other for cost, other in zip(with_label, without, strict=True)),
            1.5,
            "at most",
            "x",
            f"server time; median of {len(without)} pairs of pulls, one after the other",
        )
