"""Hostile bodies among good ones, with real vLLM and a real Redis.

    python -m tests.hostile     # run A: the good ones alone; run B: the same with hostile ones among them
    python -m tests.hostile --families pattern_bombs --hostile 3 --good 60 --unlimited   # what the limits are for

Ends with 0 when every request had its end, the worker lived through it, and the good ones' 99th percentile in run B is
within three times that of run A.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from streamfleet.cli.demo.model import model_folder
from streamfleet.cli.demo.server import RedisServer, find_servers
from tests.hostile.catalogue import FAMILIES
from tests.hostile.report import figures, latencies, percentile, table
from tests.hostile.run import Ended, plan, play
from tests.hostile.scene import Scene, scene
from tests.servers import newest

# The engine on a CPU reads some 400 tokens a second, each prompt in one piece, and everybody waits meanwhile: so its
# operator lets no prompt be long.
SETTINGS = {"STREAMFLEET_MAX_PROMPT_BYTES": "4096", "STREAMFLEET_LOG_LEVEL": "warning"}
_MUCH = "1000000000"
UNLIMITED = {
    **{
        f"STREAMFLEET_MAX_{name}": _MUCH
        for name in (
            *("SEQUENCES", "OUTPUT_TOKENS", "PROMPT_BYTES", "INPUTS", "MESSAGES", "VALUES", "OPTIONS", "LOGPROBS"),
            *("GRAMMAR_BYTES", "GRAMMAR_MS", "PATTERN_SIZE", "PATTERN_WAYS"),
        )
    },
    "STREAMFLEET_MAX_DEPTH": "500",
    "STREAMFLEET_ALLOW": "beam_search,chat_templates,embeds,grammars,media_urls,processor_kwargs,prompt_logprobs",
}
WORSE = 3.0
# Good requests alone. The hostile set brings the same work at any rate: long answers, choices, seeds. If all of it
# comes within less than about three minutes, the engine is full, and everybody is late by that alone.
SHARE_OF_CAPACITY = 0.15
CALIBRATING = 48


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__, formatter_class=_Plain)
    parser.add_argument("--good", type=int, default=500, help="good requests (500)")
    parser.add_argument("--hostile", type=int, default=500, help="hostile requests (500)")
    parser.add_argument("--rate", type=float, help="good requests a second (0.15 of what this machine answers)")
    parser.add_argument("--seed", type=int, default=1, help="of bodies and times (1)")
    parser.add_argument("--families", default="", help=f"only these, comma-separated, of: {', '.join(FAMILIES)}")
    parser.add_argument("--unlimited", action="store_true", help="with all cost limits out of the way")
    parser.add_argument("--within", type=float, default=180.0, help="seconds for the last ones to end (180)")
    parser.add_argument("--log", type=Path, help="keep the worker's output here")
    return parser.parse_args()


class _Plain(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


async def both(asked: argparse.Namespace, log: Path, url: str) -> int:
    """Run A, run B, and what they say."""
    families = tuple(name for name in asked.families.split(",") if name)
    settings = {**SETTINGS, **(UNLIMITED if asked.unlimited else {})}
    began = time.monotonic()
    async with scene(url, model_folder(), log, settings) as running:
        print(f"ready after {time.monotonic() - began:.0f} s; seed {asked.seed}", flush=True)
        # The first requests of an engine are slow; they are nobody's latency.
        await play(url, lambda: running.alive, plan(8, 0, 5.0, asked.seed + 9), 60, lambda _: None)
        await _forget(running)
        rate = asked.rate or SHARE_OF_CAPACITY * await _capacity(running, asked.seed)
        ends: dict[str, dict[str, Ended | None]] = {}
        for name, hostile in (("A", 0), ("B", asked.hostile)):
            planned = plan(asked.good, hostile, rate, asked.seed, families)
            print(f"run {name}: {len(planned)} requests over {planned[-1].at_s:.0f} s", flush=True)
            ends[name] = await play(
                url, lambda: running.alive, planned, asked.within, lambda line: print(f"  {line}", flush=True)
            )
            print(figures(f"run {name}", ends[name]), flush=True)
            if name == "A":
                await _forget(running)
        outstanding = await _outstanding(running)
        alive = running.alive
    print("\n".join(table(ends["B"])))
    return verdict(ends["A"], ends["B"], alive=alive, outstanding=outstanding)


async def _capacity(running: Scene, seed: int) -> float:
    """Good requests a second that this machine answers when all come at once."""
    planned = plan(CALIBRATING, 0, 1_000.0, seed + 8)
    began = time.monotonic()
    await play(running.url, lambda: running.alive, planned, 120, lambda _: None)
    took_s = time.monotonic() - began - planned[0].at_s
    await _forget(running)
    print(f"capacity: {CALIBRATING / took_s:.1f} good requests a second", flush=True)
    return CALIBRATING / took_s


def verdict(alone: dict[str, Ended | None], among: dict[str, Ended | None], *, alive: bool, outstanding: int) -> int:
    """The last line; 0 when all is well."""
    p99 = [percentile(latencies(ends), 0.99) for ends in (alone, among)]
    times = p99[1] / max(1, p99[0])
    terminal = sum(end is not None for end in among.values())
    good = len(latencies(among))
    well = alive and not outstanding and terminal == len(among) and good == len(latencies(alone)) and times <= WORSE
    print(
        f"{'ok' if well else 'NOT OK'}: requests={len(among)} terminal={terminal} outstanding={outstanding} "
        f"worker_alive={alive} good_succeeded={good} p99_alone_ms={p99[0]} p99_among_hostile_ms={p99[1]} "
        f"times={times:.2f}"
    )
    return 0 if well else 1


async def _forget(running: Scene) -> None:
    """The second run has the ids of the first."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(running.url)
    async with client:
        async for key in client.scan_iter(match="{default}:result:*", count=1_000):
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
