"""The measurements at small size, one after the other, then one table of ratios and targets with hold or MISS.

A miss is printed and does not count as an error: small sizes on a busy machine say little. A failed measurement does.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.rule import Rule

from bench.core.reports import QUICK, ROOT, load
from bench.overview import Line, lines, shown_lines
from bench.saved import BENCHMARKS

LEFT_OUT = ("front_end", "shards", "gateway")
"""Only where they are asked for: ten minutes are for what the fleet itself is asked to reach."""
USUAL = tuple(name for name in BENCHMARKS if name not in LEFT_OUT)
LIMIT_S = 1200.0
"""After this long a measurement counts as hanging. On a quiet machine each takes two to four minutes."""
STOP_S = 40.0
EXAMPLES = """\
examples:
  make bench-quick                                the usual ones
  python -m bench.quick --only shards             one of those that are left out
  python -m bench.quick --only broker,scheduling  those two (no vLLM needed)
"""


@dataclass(frozen=True)
class Ran:
    """Result of a measurement: "" if it succeeded, otherwise the reason."""

    problem: str
    seconds: float


def run_one(name: str, out: Path, limit_s: float) -> Ran:
    """Run one measurement in a process of its own, which writes to this terminal."""
    started = time.monotonic()
    # A report of an earlier run would pass for the figures of a run that fails now.
    (out / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", f"bench.{name}", "--quick", "--out", str(out)]
    # In a group of its own: Ctrl-C reaches it once, from here, so that a second one does not interrupt its clean-up.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0) as process:
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stop(process)
            return Ran(f"did not end within {limit_s:.0f} s", time.monotonic() - started)
        except KeyboardInterrupt:
            stop(process)
            raise
    seconds = time.monotonic() - started
    if status:
        return Ran(f"ended with status {status}; what it said is above", seconds)
    if not (out / f"{name}.json").is_file():
        return Ran("left no report", seconds)
    return Ran("", seconds)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a measurement, so that it ends its processes; if that is not enough, kill all of them."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(names: Sequence[str], ran: Mapping[str, Ran], out: Path) -> list[Line]:
    """One line for each ratio and target, and for each measurement that failed."""
    found: list[Line] = []
    for name in names:
        if ran[name].problem:
            found.append(Line(name, ran[name].problem, "", "", "FAILED"))
        else:
            found += lines(load(out / f"{name}.json"))
    return found


def main() -> int:
    """Run all; returns 0 if all ran, even with misses, 1 if one failed, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quick",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        default=",".join(USUAL),
        metavar="NAMES",
        help=f"some of {','.join(BENCHMARKS)} (default: all but {', '.join(LEFT_OUT)})",
    )
    parser.add_argument(
        "--out", type=Path, default=QUICK, metavar="DIR", help="for their reports (default: build/bench/quick)"
    )
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, metavar="S", help="for each (default: %(default)s)")
    args = parser.parse_args()
    names = [name.strip() for name in args.only.split(",") if name.strip()]
    if not names or set(names) - set(BENCHMARKS):
        parser.error(f"--only {args.only}: choose from {', '.join(BENCHMARKS)}")
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    ran: dict[str, Ran] = {}
    started = time.monotonic()
    try:
        for number, name in enumerate(names, 1):
            console.print(Rule(f"{number} of {len(names)}: {name} ({time.monotonic() - started:.0f} s so far)"))
            ran[name] = run_one(name, out, args.limit_s)
    except KeyboardInterrupt:
        console.print("interrupted; nothing of it is left running")
        return 130
    console.print(Rule("all ratios and targets, at small sizes"))
    console.print(shown_lines(summary(names, ran, out)))
    took = ", ".join(f"{name} {ran[name].seconds:.0f} s" for name in names)
    console.print(
        f"{time.monotonic() - started:.0f} s in all: {took}. Reports: {args.out}. Full sizes: docs/performance.md."
    )
    return 1 if any(each.problem for each in ran.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
