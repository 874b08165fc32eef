"""Server time of a pull, and memory for each request, with 100,000 sessions and with none, on long queues."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import redis

from bench.core.redis import memory_bytes, own_server
from bench.core.reports import Table, Target
from bench.scheduling.feeding import padded_body, stage_all
from bench.scheduling.parts import Part, Say
from bench.scheduling.pull_cost import _script_us, trimmed_mean
from streamfleet.common.broker.types import Completion, Home
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Status
from tests.broker import Broker

WANTED, SESSIONS, WORKERS = (1, 8, 64), 100_000, 8
FILL = """
math.randomseed(tonumber(ARGV[3]))
for i = 1, tonumber(ARGV[1]) do
  local deadline = string.format('%.0f', ARGV[4] + math.random(3600000))
  local fields = {'id', ARGV[3] .. '-' .. i, 'body', ARGV[2], 'deadline', deadline}
  if ARGV[5] == '1' then fields[7], fields[8] = 'session', 'session-' .. math.random(100000) end
  redis.call('XADD', KEYS[1], '*', unpack(fields))
end
"""


def measure(quick: bool, say: Say) -> Part:
    """Two queues on one server take turns; workers ask one after the other, each for what waits for it."""
    depth, pulls = (20_000, 100) if quick else (1_000_000, 300)
    with own_server() as server, redis.Redis.from_url(server.url) as client:
        return asyncio.run(_measure(server.url, client, depth, pulls, say))


async def _measure(url: str, client: redis.Redis, depth: int, pulls: int, say: Say) -> Part:
    connection = Connection(url)
    queues = {name: Broker(connection, Keys(name)) for name in ("none", "sessions")}
    memory, calls = dict[str, float](), 0

    async def deepen(name: str, count: int) -> None:
        nonlocal calls
        for start in range(0, count, 5_000):
            calls += 1
            args = (padded_body(500), calls, int(time.time() * 1000) + 3_600_000, int(name == "sessions"))
            client.eval(FILL, 1, Keys(name).lane("normal"), min(5_000, count - start), *args)
        await stage_all(queues[name])

    async def meet(name: str) -> None:
        for _ in range(2):
            for worker in range(WORKERS):
                await queues[name].pull(f"w{worker}", 0, home=Home("1", 0))
            await deepen(name, 1)

    for name, broker in queues.items():
        say(f"queueing and staging {depth:,}, {name}")
        await broker.ensure_groups()
        await meet(name)
        before = memory_bytes(client)
        await deepen(name, depth)
        memory[name] = (memory_bytes(client) - before) / depth
    costs: dict[tuple[str, int], list[float]] = {(name, wanted): [] for name in queues for wanted in WANTED}
    for number in range(pulls):
        worker = f"w{number % WORKERS}"
        if number % 50 == 0:
            say(f"pulls: {number} of {pulls}")
        for (name, wanted), found in costs.items():
            client.config_resetstat()
            pulled = await queues[name].pull(worker, wanted, home=Home("1", 0))
            found.append(_script_us(client))
            assert len(pulled.claims) == wanted
            done = [Completion(claim.lease, Status.SUCCEEDED, {}) for claim in pulled.claims]
            await queues[name].complete(worker, done)
            await deepen(name, wanted)
    key = Keys("sessions").sessions
    each = (client.memory_usage(key, samples=0) or 0) / client.hlen(key)
    await connection.close()
    rows = [
        {
            "sessions": name,
            **{f"pull of {wanted}, median µs": median(costs[name, wanted]) for wanted in WANTED},
            "memory, bytes a request": memory[name],
            "memory, bytes a session": each if name == "sessions" else 0,
        }
        for name in queues
    ]
    targets = [
        Target(
            f"pull of {wanted} with {SESSIONS:,} sessions and {depth:,} queued, against one without sessions",
            trimmed_mean(costs["sessions", wanted]) / trimmed_mean(costs["none", wanted]),
            1.5,
            "at most",
            "x",
            "server time; means without the dearest and the cheapest tenth",
        )
        for wanted in WANTED
    ]
    return Part([Table("Pulls with and without sessions", list(rows[0]), rows)], targets)
