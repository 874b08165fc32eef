"""`python -m tests.fault`: real workers, real Redis, real faults; says what was lost, if anything."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import uuid
from pathlib import Path

from rich.console import Console

from tests.fault import report
from tests.fault.harness import harness_on, left_over
from tests.fault.judge import judge
from tests.fault.plan import Plan
from tests.fault.random_plan import FULL, QUICK, SHORT, make_plan
from tests.fault.redis_faults import server_binary
from tests.fault.report import Figures
from tests.fault.run import run_plan
from tests.fault.vllm_plan import vllm_plan
from tests.long.parts import WHOLE, part, share
from tests.support.redis_server import find_servers
from tests.waiting import eventually

GONE_S = 5.0
SIZES = {"full": FULL, "short": SHORT, "quick": QUICK}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat a run: the same requests, the same faults")
    parser.add_argument(
        "--server", default="", help="only this one: 6.2, 7.0, 8.2, valkey; the newest with one of below"
    )
    parser.add_argument(
        "--servers",
        choices=["all", "one"],
        help="all: a run on the newest Redis, then a short one on each other server",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one run of less than a minute")
    size.add_argument("--short", action="store_true", help="one run of a minute and a half")
    size.add_argument("--engine", choices=["vllm"], help="a small run with real vLLM, one worker, SmolLM2-135M")
    parser.add_argument("--part", type=part, default=WHOLE, metavar="I/N", help="only one of N parts of those runs")
    parser.add_argument("--plan", action="store_true", help="print the schedule of faults and stop")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs of a good run too")
    return parser


async def one_run(binary: Path | None, plan: Plan, console: Console, keep: bool) -> Figures:
    """A run, with all that it says; its figures."""
    mark = uuid.uuid4().hex
    with report.Shown(console, plan) as shown:
        async with harness_on(binary, plan.setup, mark=mark) as harness:
            ran = await run_plan(harness, plan, shown.say)
            folder, server = harness.folder, harness.redis.server.label
    ran.history.orphans = await _orphans(mark)
    ran.verdict = judge(ran.history)
    console.print(report.fault_table(ran))
    console.print(report.left_table(ran))
    for line in report.violations(ran, folder):
        print(line)
    bad = bool(ran.verdict.violations)
    print(report.tidy(folder, keep or bad), end="\n" if keep or bad else "")
    return report.figures(ran, plan.seed, server)


async def _orphans(mark: str) -> list[str]:
    with contextlib.suppress(AssertionError):
        await eventually(lambda: not left_over(mark), GONE_S)
    return left_over(mark)


def runs(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Servers and sizes of this part, in order."""
    return share(all_runs(args), args.part, lambda run: SIZES[run[1]].seconds)


def all_runs(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Servers and sizes, in order."""
    size = "quick" if args.quick else "short" if args.short else "full"
    alone = args.server or args.engine or size != "full"
    if args.servers == "one" or (alone and args.servers is None):
        return [(args.server, size)]
    chosen = server_binary(args.server)
    others = [label for label, path in find_servers().items() if path != chosen]
    return [(args.server, size), *((label, "quick" if args.quick else "short") for label in others)]


def command(args: argparse.Namespace, server: str, size: str, seed: int) -> str:
    """Returns the command that repeats a run."""
    how = "--engine vllm" if args.engine else f"--{size}" if size != "full" else "--servers one"
    return f"python -m tests.fault --seed {seed} {how}{f' --server {server}' if server else ''}"


def main() -> int:
    args = arguments().parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    console = Console()
    done: list[Figures] = []
    for server, size in runs(args):
        plan = vllm_plan(seed) if args.engine else make_plan(seed, SIZES[size])
        if args.plan:
            print("\n".join(plan.lines()))
            continue
        done.append(asyncio.run(one_run(server_binary(server), plan, console, args.keep)))
        if done[-1].violations:
            print(f"again: {command(args, server, size, seed)}")
        print(done[-1].line(), flush=True)
    if len(done) > 1:
        print(sum(done[1:], done[0]).line())
    return 1 if any(figures.violations for figures in done) else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
