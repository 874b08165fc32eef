"""Measures how soon the requests of a leaving worker run elsewhere: `python -m tests.fault.recovery` (see --help)."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fault.recovery_rounds import GOES_ON, RUNNING, WAITING, Measured, Pair, Way, killed
from tests.integration.worker_process import fleet_on
from tests.long.others import Others
from tests.long.parts import WHOLE, part, share
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

SIGTERM_S = 0.1
Say = Callable[[str], None]


async def measure(way: Way, rounds: int, side_by_side: int, seed: int, say: Say) -> Measured:
    """So many rounds of a way, on several queues at the same time, each with a Redis of its own."""
    measured = Measured(way)
    left = iter(range(rounds))

    async def lane(number: int) -> None:
        with RedisServer(newest(find_servers())) as server, tempfile.TemporaryDirectory() as folder:
            async with fleet_on(server.url, Path(folder)) as fleet:
                pair = Pair(fleet, way, random.Random(f"{seed} {way.title} {number}"))
                for _ in left:
                    took_s = await pair.round()
                    measured.took_s.append(took_s)
                    say(f"  {way.title}: {len(measured.took_s)} of {rounds}: {took_s:.3f} s")

    await asyncio.gather(*(lane(number) for number in range(min(side_by_side, rounds))))
    return measured


def missed(measured: Measured) -> str | None:
    """Returns the promise of a way that this measurement did not keep; None if it kept all."""
    if (most_s := measured.way.most_s) is not None:
        worst = max(measured.took_s)
        return f"{measured.way.title}: {worst:.2f} s is more than {most_s:g} s" if worst > most_s else None
    median = measured.median_s
    late = median > SIGTERM_S
    return f"{measured.way.title}: a median of {median * 1000:.0f} ms is more than 100 ms" if late else None


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each way (default 20)")
    parser.add_argument("--leases", default="2000,10000", help="leases for SIGKILL in ms (default 2000,10000)")
    parser.add_argument("--side-by-side", type=int, default=4, help="rounds of SIGKILL at the same time (default 4)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which workers are struck")
    parser.add_argument("--part", type=part, default=WHOLE, metavar="I/N", help="only one of N parts of the ways")
    return parser.parse_args(argv)


async def run(options: argparse.Namespace, say: Say) -> int:
    """All ways of this part; 1 when one did not keep its promise and nobody else kept the machine busy."""
    leases = [int(lease) for lease in options.leases.split(",") if lease]
    results, others = [], Others()
    for way in share([WAITING, RUNNING, GOES_ON, *map(killed, leases)], options.part):
        # Those of a stopping worker run alone, since they are a matter of milliseconds.
        side_by_side = options.side_by_side if way.signum is signal.SIGKILL else 1
        results.append(await measure(way, options.rounds, side_by_side, options.seed, say))
        say(results[-1].line())
    problems, noise = [problem for problem in map(missed, results) if problem], others.noise()
    for problem in problems:
        say(f"{noise or 'MISSED'}: {problem}")
    say(" | ".join([*(result.line() for result in results), *filter(None, [noise])]))
    return 1 if problems and not noise else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse(sys.argv[1:]), lambda line: print(line, flush=True))))
