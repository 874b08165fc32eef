"""Server time of one pull at different depths of the queue, in microseconds by the server's own account.

The backlog is one lane, all staged, with random deadlines, so that a pull takes entries from all over the stream. The
claimed requests are completed, and as many are added and staged, so that the depth stays. The depths take turns.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import redis

from bench.core.feeding import FILL_AT_ONCE, padded_body, stage_all
from bench.core.parts import Part, Say
from bench.core.redis import look, own_server
from bench.core.reports import Table, Target
from bench.core.rounds import percentile
from streamfleet.common.broker.types import Completion, Pulled
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Status
from tests.broker import Broker

LANE = "normal"
WANTED = (1, 8, 64)
BODY_BYTES = 500
MOST_RATIO = 1.5
# A script, so that a million entries take seconds. Deadlines lie at random in an hour, so that entries are not taken in
# the order of arrival.
FILL = """
math.randomseed(tonumber(ARGV[4]))
for i = 1, tonumber(ARGV[1]) do
  local deadline = string.format('%.0f', tonumber(ARGV[3]) + math.random(3600000))
  redis.call('XADD', KEYS[1], '*', 'id', ARGV[5] .. (tonumber(ARGV[4]) + i), 'body', ARGV[2], 'deadline', deadline)
end
"""


@dataclass(frozen=True)
class Sizes:
    """Depths of the queue, smallest first, and the number of pulls of each size at each depth."""

    depths: tuple[int, ...]
    pulls: int


QUICK, FULL = Sizes((1_000, 10_000, 100_000), 100), Sizes((1_000, 100_000, 1_000_000), 400)


def measure(quick: bool, say: Say) -> Part:
    """Measure all depths on one server, each on a queue of its own."""
    sizes = QUICK if quick else FULL
    with own_server() as server, redis.Redis.from_url(server.url) as client:
        return asyncio.run(_measure(server.url, client, sizes, say))


def report(sizes: Sizes, staging: Mapping[int, float], pulls: Mapping[int, Mapping[int, Sequence[float]]]) -> Part:
    """Figures: staging in µs an entry by depth; pulls in µs by depth and by number of requests."""
    low, high = sizes.depths[0], sizes.depths[-1]
    rows = [
        {
            "queued": depth,
            "staging, µs an entry": staging[depth],
            **{f"pull of {wanted}, median µs": median(pulls[depth][wanted]) for wanted in WANTED},
            **{f"pull of {wanted}, p99 µs": percentile(pulls[depth][wanted], 0.99) for wanted in WANTED},
        }
        for depth in sizes.depths
    ]
    ratios = {wanted: trimmed_mean(pulls[high][wanted]) / trimmed_mean(pulls[low][wanted]) for wanted in WANTED}
    targets = [
        Target(
            f"pull of {wanted} with {high:,} queued, against one with {low:,}",
            ratio,
            MOST_RATIO,
            "at most",
            "x",
            "server time; means without the dearest and the cheapest tenth",
        )
        for wanted, ratio in ratios.items()
    ]
    settings = {"pull_depths": list(sizes.depths), "pulls": sizes.pulls, "pull_body_bytes": BODY_BYTES}
    return Part([Table("Pulls: server time by depth of the queue", list(rows[0]), rows)], targets, settings=settings)


def trimmed_mean(costs: Sequence[float]) -> float:
    """Mean of the middle four fifths.

    Server times are whole µs, too coarse for a median of small ones, and other work on the machine interrupts a few.
    """
    ordered = sorted(costs)
    cut = len(ordered) // 10
    return mean(ordered[cut : len(ordered) - cut])


async def _measure(url: str, client: redis.Redis, sizes: Sizes, say: Say) -> Part:
    connection = Connection(url)
    queues = {depth: Broker(connection, Keys(f"depth-{depth}")) for depth in sizes.depths}
    staging = {}
    for depth, broker in queues.items():
        say(f"queueing and staging {depth:,}")
        staging[depth] = await _deepen(client, broker, depth, "first-")
    pulls: dict[int, dict[int, list[float]]] = {depth: {wanted: [] for wanted in WANTED} for depth in sizes.depths}
    cases = [(depth, wanted) for depth in sizes.depths for wanted in WANTED]
    chance = random.Random(6)
    for number in range(sizes.pulls):
        if number % 20 == 0:
            say(f"pulls: {number} of {sizes.pulls}")
        for depth, wanted in chance.sample(cases, len(cases)):
            cost, pulled = await _pull(client, queues[depth], wanted)
            pulls[depth][wanted].append(cost)
            await _complete(queues[depth], pulled)
            await _deepen(client, queues[depth], len(pulled.claims), f"r{number}-{wanted}-")
    await connection.close()
    return report(sizes, staging, pulls)


async def _deepen(client: redis.Redis, broker: Broker, count: int, name: str) -> float:
    """Add so many requests and stage them; returns the staging's server µs for each entry."""
    await broker.ensure_groups()
    first_ms, lane = int(time.time() * 1000) + 3_600_000, broker.keys.lane(LANE)
    for start in range(0, count, FILL_AT_ONCE):
        number = min(FILL_AT_ONCE, count - start)
        client.eval(FILL, 1, lane, number, padded_body(BODY_BYTES), first_ms, start, name)
    before = look(client).script_us
    staged = await stage_all(broker)
    assert staged == count, f"{staged} of {count} entries were staged"
    return (look(client).script_us - before) / max(1, count)


async def _pull(client: redis.Redis, broker: Broker, wanted: int) -> tuple[float, Pulled]:
    """Make one pull; returns its server time in µs, and its result."""
    before = look(client).script_us
    pulled = await broker.pull("w1", wanted)
    cost = look(client).script_us - before
    assert len(pulled.claims) == wanted, f"a pull of {wanted} brought {len(pulled.claims)}"
    return cost, pulled


async def _complete(broker: Broker, pulled: Pulled) -> None:
    done = [Completion(claim.lease, Status.SUCCEEDED, {"response": "{}"}) for claim in pulled.claims]
    await broker.complete("w1", done)
