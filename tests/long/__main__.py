"""Run the long targets, or the named ones, one part after the other, and write the result of each into a small file.

    python -m tests.long                      # all of them, for about two hours
    python -m tests.long fault hostile        # these
    python -m tests.long fault --part 1/2     # half of their parts
    python -m tests.long --turn               # the part whose turn it is by the number of commits; writes no file
    python -m tests.long --ages               # when each was last green

A part that fails runs once more with the same seed; when one fails twice, this ends with 1. A part is cut off after 20
minutes, and passed over if it cannot run here (without root, podman or npm, it ends with status 77); both are named.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.long import page
from tests.long.others import NOISY
from tests.long.parts import WHOLE, part, share
from tests.long.results import GREEN, ages, git, head, write
from tests.long.rows import ROWS, Row

ROOT = Path(__file__).parent.parent.parent
LIMIT_S, LEAVE_S = 1_200.0, 60.0
NOT_HERE = 77
RED, CUT_OFF, PASSED_OVER = "red", "cut off", "cannot run here"
WORST_FIRST = (RED, CUT_OFF, NOISY, GREEN)


class Ran(NamedTuple):
    """A part that ran: verdict, minutes, last line."""

    verdict: str
    minutes: float
    said: str


def judge(row: Row, status: int | None, said: str) -> str:
    """The verdict on a part from its exit status, None if it was cut off, and its last line."""
    if status is None:
        return CUT_OFF
    if status == NOT_HERE:
        return PASSED_OVER
    if row.expected_until:
        return GREEN if status else RED
    return RED if status else NOISY if NOISY in said else GREEN


def tried(attempt: Callable[[], Ran]) -> Ran:
    """Outcome of a part; one that is red runs once more."""
    first = attempt()
    if first.verdict != RED:
        return first
    print(f"red: {first.said}\nonce more, with the same seed", flush=True)
    again = attempt()
    return again._replace(minutes=first.minutes + again.minutes)


def run(row: Row, seed: int, root: Path, limit_s: float) -> Ran:
    """Run a part, and let its output through."""
    began, last = time.monotonic(), [""]
    command = [sys.executable, "-m", *shlex.split(row.command.format(seed=seed))]
    process = subprocess.Popen(
        command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    # In a thread: whatever a part leaves behind may hold the pipe open.
    reading = threading.Thread(target=_let_through, args=(process, last), daemon=True)
    reading.start()
    status: int | None = None
    try:
        while status is None and (left_s := began + limit_s - time.monotonic()) > 0:
            try:
                status = process.wait(min(60.0, left_s))
            except subprocess.TimeoutExpired:
                print(f"  {row.target}: {(time.monotonic() - began) / 60:.1f} min", flush=True)  # some are silent
    finally:
        _end(process)
        reading.join(5)
    return Ran(judge(row, status, last[0]), (time.monotonic() - began) / 60, last[0])


def _let_through(process: subprocess.Popen[str], last: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            print(line, end="", flush=True)
            last[0] = line.strip() or last[0]


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt a part, so that it can clean up; then end whatever is left of it."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def turn(rows: Sequence[Row], commits: str | None) -> Row:
    """The row whose turn it is after so many commits; the first where git does not tell."""
    return rows[int(commits or 0) % len(rows)]


def result(ran: Sequence[Ran], commit: str) -> dict[str, object]:
    """Result of a target: the worst verdict of its parts, and the last line of each."""
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
        "commit": commit,
        "minutes": round(sum(each.minutes for each in ran), 1),
        "verdict": min((each.verdict for each in ran), key=WORST_FIRST.index),
        "figures": [each.said for each in ran],
    }


def main(argv: Sequence[str], rows: Sequence[Row] = ROWS, root: Path = ROOT, limit_s: float = LIMIT_S) -> int:
    """The exit status: 1 when a part was red twice."""
    targets = list(dict.fromkeys(row.target for row in rows))
    parser = argparse.ArgumentParser(
        prog="python -m tests.long", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(targets)} (default: all)")
    parser.add_argument("--part", type=part, default=WHOLE, metavar="I/N", help="only one of N parts of these")
    parser.add_argument("--turn", action="store_true", help="the part whose turn it is by the number of commits")
    parser.add_argument("--ages", action="store_true", help="print when each was last green, and stop")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="of all parts")
    args = parser.parse_args(argv)
    if unknown := set(args.targets) - set(targets):
        parser.error(f"no long run is called {', '.join(sorted(unknown))}; there are {', '.join(targets)}")
    if args.ages:
        print("\n".join(ages(root, targets)))
        return 0
    chosen = [row for row in rows if not args.targets or row.target in args.targets]
    chosen = [turn(rows, git(root, "rev-list", "--count", "HEAD"))] if args.turn else share(chosen, args.part)
    commit, ran = head(root), list[Ran]()
    for number, row in enumerate(chosen):
        print(f"\n=== {number + 1} of {len(chosen)}: {row.target}: {row.command.format(seed=args.seed)}", flush=True)
        ran.append(tried(lambda row=row: run(row, args.seed, root, limit_s)))  # type: ignore[misc]
    print()
    for row, each in zip(chosen, ran, strict=True):
        until = f" (expected until {row.expected_until})" if row.expected_until else ""
        command = row.command.format(seed=args.seed)
        print(f"{row.target:<15} {each.minutes:5.1f} min  {each.verdict}{until}  {command}\n  {each.said}")
    for target in targets if not args.turn else ():
        mine = [each for row, each in zip(chosen, ran, strict=True) if row.target == target]
        whole = len(mine) == sum(row.target == target for row in rows)
        if whole and not any(each.verdict == PASSED_OVER for each in mine):
            write(root, target, result(mine, commit))
    if not args.turn:
        page.write(root)
    return 1 if any(each.verdict == RED for each in ran) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
