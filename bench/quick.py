"""The measurements at small size, one after the other, then one table of ratios and targets with hold or MISS.

A miss is printed and does not count as an error: small sizes on a busy machine say little. A failed measurement does.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

from bench.core.reports import QUICK, ROOT
from bench.core.tables import targets_markdown
from bench.saved import BENCHMARKS, read_reports, targets

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


def run_one(name: str) -> str:
    """Run one measurement in a process of its own, which writes to this terminal; returns why it failed, or ""."""
    # A report of an earlier run would pass for the figures of a run that fails now.
    (QUICK / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", f"bench.{name}", "--quick", "--out", str(QUICK)]
    # In a group of its own: Ctrl-C reaches it once, from here, so that a second one does not interrupt its clean-up.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0) as process:
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            stop(process)
            return f"did not end within {LIMIT_S:.0f} s"
        except KeyboardInterrupt:
            stop(process)
            raise
    if status:
        return f"ended with status {status}; what it said is above"
    return "" if (QUICK / f"{name}.json").is_file() else "left no report"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a measurement, so that it ends its processes; if that is not enough, kill all of them."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    """Run all; returns 0 if all ran, even with misses, 1 if one failed, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quick",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = f"some of {','.join(BENCHMARKS)} (default: all but {', '.join(LEFT_OUT)})"
    parser.add_argument("--only", default=",".join(USUAL), metavar="NAMES", help=words)
    names = parser.parse_args().only.split(",")
    if set(names) - set(BENCHMARKS):
        parser.error(f"--only {','.join(names)}: choose from {', '.join(BENCHMARKS)}")
    failed = {}
    try:
        for number, name in enumerate(names, 1):
            print(f"-- {number} of {len(names)}: {name}", flush=True)
            if problem := run_one(name):
                failed[name] = problem
    except KeyboardInterrupt:
        print("interrupted; nothing of it is left running")
        return 130
    print(targets_markdown(targets(report for name, (report, _) in read_reports(QUICK).items() if name in names)))
    for name, problem in failed.items():
        print(f"FAILED: {name} {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
