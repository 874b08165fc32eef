"""Server time of a pull, and memory for each request, with a thousand tenants and with none, on long queues."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median

import redis

from bench.core.redis import memory_bytes, own_server
from bench.core.reports import Table, Target
from bench.scheduling.feeding import padded_body, stage_all
from bench.scheduling.parts import Part, Say
from bench.scheduling.pull_cost import _script_us, trimmed_mean
from streamfleet.common.broker.types import Completion
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Status
from tests.broker import Broker

WANTED, TENANTS = (1, 8, 64), 1_000
FILL = """
math.randomseed(tonumber(ARGV[3]))
for i = 1, tonumber(ARGV[1]) do
  local deadline = string.format('%.0f', ARGV[4] + math.random(3600000))
  local fields = {'id', ARGV[3] .. '-' .. i, 'body', ARGV[2], 'deadline', deadline}
  if ARGV[5] == '1' then fields[7], fields[8] = 'tenant', 'tenant-' .. math.random(1000) end
  redis.call('XADD', KEYS[1], '*', unpack(fields))
end
"""


def measure(quick: bool, say: Say) -> Part:
    """Two queues on one server take turns."""
    depth, pulls = (20_000, 100) if quick else (1_000_000, 300)
    with own_server() as server, redis.Redis.from_url(server.url) as client:
        return asyncio.run(_measure(server.url, client, depth, pulls, say))


async def _measure(url: str, client: redis.Redis, depth: int, pulls: int, say: Say) -> Part:
    connection = Connection(url)
    queues = {name: Broker(connection, Keys(name)) for name in ("none", "tenants")}
    memory, calls = dict[str, float](), 0

    async def deepen(name: str, count: int) -> None:
        nonlocal calls
        for start in range(0, count, 5_000):
            calls += 1
            args = (padded_body(500), calls, int(time.time() * 1000) + 3_600_000, int(name == "tenants"))
            client.eval(FILL, 1, Keys(name).lane("normal"), min(5_000, count - start), *args)
        await stage_all(queues[name])

    for name, broker in queues.items():
        say(f"queueing and staging {depth:,}, {name}")
        await broker.ensure_groups()
        before = memory_bytes(client)
        await deepen(name, depth)
        memory[name] = (memory_bytes(client) - before) / depth
    costs: dict[tuple[str, int], list[float]] = {(name, wanted): [] for name in queues for wanted in WANTED}
    usage = json.dumps({"prompt_tokens": 125, "completion_tokens": 16})
    for number in range(pulls):
        if number % 50 == 0:
            say(f"pulls: {number} of {pulls}")
        for (name, wanted), found in costs.items():
            client.config_resetstat()
            pulled = await queues[name].pull("w1", wanted)
            found.append(_script_us(client))
            assert len(pulled.claims) == wanted
            done = [Completion(claim.lease, Status.SUCCEEDED, {"usage": usage}) for claim in pulled.claims]
            await queues[name].complete("w1", done)
            await deepen(name, wanted)
    await connection.close()
    rows = [
        {
            "tenants": name,
            **{f"pull of {wanted}, median µs": median(costs[name, wanted]) for wanted in WANTED},
            "memory, bytes a request": memory[name],
        }
        for name in queues
    ]
    targets = [
        Target(
            f"pull of {wanted} with {TENANTS:,} tenants and {depth:,} queued, against one without tenants",
            trimmed_mean(costs["tenants", wanted]) / trimmed_mean(costs["none", wanted]),
            1.5,
            "at most",
            "x",
            "server time; means without the dearest and the cheapest tenth",
        )
        for wanted in WANTED
    ]
    return Part([Table("Pulls with and without tenants", list(rows[0]), rows)], targets)
