"""Hostile bodies among good ones, with real vLLM and a real Redis.

    python -m tests.hostile     # rounds of run A: good ones alone; and run B: the same with hostile ones among them
    python -m tests.hostile --families many_sequences --hostile 3 --good 60 --unlimited   # what the settings are for

Ends with 0 when every request had its end, the worker lived through it, and the good ones' 99th percentile (its median
over the rounds) in runs B is within three times that in runs A. Where others kept the machine busy, no time is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from streamfleet.cli.demo.model import model_folder
from tests.hostile.catalogue import FAMILIES
from tests.hostile.report import figures, latencies, percentile, table
from tests.hostile.run import Ended, plan, play
from tests.hostile.scene import Scene, scene
from tests.long.others import Others
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

# The engine on a CPU reads some 400 tokens a second, each prompt in one piece, and everybody waits meanwhile: so its
# operator lets no prompt be long.
SETTINGS = {"STREAMFLEET_MAX_PROMPT_BYTES": "4096", "STREAMFLEET_LOG_LEVEL": "warning"}
_MUCH = "1000000000"
UNLIMITED = {
    **{f"STREAMFLEET_MAX_{name}": _MUCH for name in ("SEQUENCES", "OUTPUT_TOKENS", "PROMPT_BYTES")},
    "STREAMFLEET_ALLOW": "beam_search,chat_templates,embeds,grammars,media_urls,processor_kwargs,prompt_logprobs",
}
WORSE = 3.0
# Good requests alone. The hostile set brings the same work at any rate: long answers, choices, seeds. If all of it
# comes within less than about three minutes, the engine is full, and everybody is late by that alone.
SHARE_OF_CAPACITY = 0.15
CALIBRATING = 48


class Round(NamedTuple):
    """Ends of the good requests alone, and of all where hostile ones are among them."""

    alone: dict[str, Ended | None]
    among: dict[str, Ended | None]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command line, or those given. No round is without a good request."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__, formatter_class=_Plain)
    parser.add_argument("--good", type=int, default=500, help="good requests of all rounds (500)")
    parser.add_argument("--hostile", type=int, default=500, help="hostile requests of all rounds (500)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of runs A and B, by turns; at most one for each good request (5)"
    )
    parser.add_argument("--rate", type=float, help="good requests a second (0.15 of what this machine answers)")
    parser.add_argument("--seed", type=int, default=1, help="of bodies and times (1)")
    parser.add_argument("--families", default="", help=f"only these, comma-separated, of: {', '.join(FAMILIES)}")
    parser.add_argument(
        "--unlimited", action="store_true", help="with the cost limits that are settings out of the way"
    )
    parser.add_argument("--within", type=float, default=180.0, help="seconds for the last ones to end (180)")
    parser.add_argument("--log", type=Path, help="keep the worker's output here")
    asked = parser.parse_args(given)
    if min(asked.good, asked.rounds) < 1:
        parser.error("--good and --rounds must be at least 1")
    asked.rounds = min(asked.rounds, asked.good)
    return asked


class _Plain(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


async def both(asked: argparse.Namespace, log: Path, url: str) -> int:
    """All rounds, and what they say."""
    settings = {**SETTINGS, **(UNLIMITED if asked.unlimited else {})}
    began = time.monotonic()
    async with scene(url, model_folder(), log, settings) as running:
        print(f"ready after {time.monotonic() - began:.0f} s; seed {asked.seed}", flush=True)
        # The first requests of an engine are slow; they are nobody's latency.
        await play(url, lambda: running.alive, plan(8, 0, 5.0, asked.seed + 9), 60, lambda _: None)
        await _forget(running)
        rate = asked.rate or SHARE_OF_CAPACITY * await _capacity(running, asked.seed)
        others = Others()
        rounds = [await _round(running, asked, number, rate) for number in range(asked.rounds)]
        noise = others.noise()
        outstanding = await _outstanding(running)
        alive = running.alive
    among = {f"{number} {name}": end for number, one in enumerate(rounds) for name, end in one.among.items()}
    print("\n".join(table(among)))
    return verdict(rounds, alive=alive, outstanding=outstanding, noise=noise)


async def _round(running: Scene, asked: argparse.Namespace, number: int, rate: float) -> Round:
    """Runs A and B of the same good requests; which of them is first, takes turns."""
    families = tuple(name for name in asked.families.split(",") if name)
    good, hostile = (
        count * (number + 1) // asked.rounds - count * number // asked.rounds for count in (asked.good, asked.hostile)
    )
    ends: dict[str, dict[str, Ended | None]] = {}
    for name in ("AB", "BA")[number % 2]:
        planned = plan(good, hostile if name == "B" else 0, rate, asked.seed + 10 * number, families)
        print(f"round {number + 1}, run {name}: {len(planned)} requests over {planned[-1].at_s:.0f} s", flush=True)
        ends[name] = await play(
            running.url, lambda: running.alive, planned, asked.within, lambda line: print(f"  {line}", flush=True)
        )
        print(figures(f"round {number + 1}, run {name}", ends[name]), flush=True)
        await _forget(running)
    return Round(ends["A"], ends["B"])


async def _capacity(running: Scene, seed: int) -> float:
    """Good requests a second that this machine answers when all come at once."""
    planned = plan(CALIBRATING, 0, 1_000.0, seed + 8)
    began = time.monotonic()
    await play(running.url, lambda: running.alive, planned, 120, lambda _: None)
    took_s = time.monotonic() - began - planned[0].at_s
    await _forget(running)
    print(f"capacity: {CALIBRATING / took_s:.1f} good requests a second", flush=True)
    return CALIBRATING / took_s


def verdict(rounds: Sequence[Round], *, alive: bool, outstanding: int, noise: str) -> int:
    """The last line; 0 when all is well."""
    p99 = [median(percentile(latencies(ends), 0.99) for ends in runs) for runs in zip(*rounds, strict=True)]
    times = p99[1] / max(1, p99[0])
    among = [end for one in rounds for end in one.among.values()]
    terminal = sum(end is not None for end in among)
    good = sum(len(latencies(one.among)) for one in rounds)
    whole = terminal == len(among) and good == sum(len(latencies(one.alone)) for one in rounds)
    well = alive and not outstanding and whole and (bool(noise) or times <= WORSE)
    print(
        f"{'ok' if well else 'NOT OK'}: requests={len(among)} terminal={terminal} outstanding={outstanding} "
        f"worker_alive={alive} good_succeeded={good} rounds={len(rounds)} p99_alone_ms={p99[0]:.0f} "
        f"p99_among_hostile_ms={p99[1]:.0f} times={times:.2f}{f' ({noise})' if noise else ''}"
    )
    return 0 if well else 1


async def _forget(running: Scene) -> None:
    """Delete all results, and what is known of their ids: the next run has the ids of this one."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(running.url)
    async with client:
        for kind in ("result", "request"):
            async for key in client.scan_iter(match=f"{{default}}:{kind}:*", count=1_000):
                await client.delete(key)


async def _outstanding(running: Scene) -> int:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(running.url)
    async with client:
        return sum([await client.xlen(f"{{default}}:lane:{lane}") for lane in ("critical", "high", "normal", "low")])


def main() -> int:
    asked = arguments()
    with tempfile.TemporaryDirectory() as folder, RedisServer(newest(find_servers())) as server:
        return asyncio.run(both(asked, asked.log or Path(folder) / "worker.log", server.url))


if __name__ == "__main__":
    sys.exit(main())
