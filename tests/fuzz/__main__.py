"""Random histories, then real workers under two hundred thousand raw entries of any kind, and garbage.

The last line has the figures.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tests.fuzz.fleet import Findings, FuzzedFleet
from tests.fuzz.histories import break_scripts, play_damaged, play_labelled, play_plain
from tests.scripts.by_history import SEEDS
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers


def main() -> int:
    """The exit status: 0 when everything held, else 1."""
    given = _arguments()
    print(f"seed={given.seed}; `python -m tests.fuzz --seed {given.seed}` sends the same again", flush=True)
    began = time.monotonic()
    binary = find_servers()[given.server] if given.server else newest(find_servers())
    with RedisServer(binary) as server:
        problems = _play(server.url, given.seed, given.steps)
    # A folder that stays: the logs say what went wrong.
    folder = Path(tempfile.mkdtemp(prefix="streamfleet-fuzz-"))
    with RedisServer(binary) as server, FuzzedFleet(server.url, folder, given.seed, given.workers) as fleet:
        print(f"{server.label}, {given.workers} workers, their logs in {folder}", flush=True)
        found = _run(fleet, given.entries)
    problems += found.problems
    for problem in problems:
        print(f"PROBLEM: {problem}")
    endings = ", ".join(f"{name} {count}" for name, count in sorted(found.statuses.items()))
    print(f"{time.monotonic() - began:.0f} s; how they ended: {endings}")
    print(found.audit)
    print(found.line())
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--entries", type=int, default=200_000, help="how many to send (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20_000, help="of each kind of histories (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="of what is sent (default: random)")
    parser.add_argument("--server", choices=sorted(find_servers()), help="which server (default: the newest Redis)")
    return parser.parse_args()


COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def _play(url: str, seed: int, steps: int) -> list[str]:
    """Histories of all kinds, and those that must notice a missing guard."""
    problems = []
    with Progress(*COLUMNS) as progress:
        played = {"plain histories": play_plain, "labelled histories": play_labelled, "damaged queues": play_damaged}
        for name, play in played.items():
            task = progress.add_task(name, total=steps)
            problems += play(url, seed, steps, partial(_tell, progress, task))
        if steps:
            task = progress.add_task("missing guards", total=len(SEEDS))
            problems += break_scripts(url, partial(_tell, progress, task))
    return problems


def _tell(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


def _run(fleet: FuzzedFleet, entries: int) -> Findings:
    with Progress(*COLUMNS) as progress:
        task = progress.add_task("entries", total=entries)
        return fleet.run(entries, lambda sent: progress.update(task, completed=sent))


if __name__ == "__main__":
    sys.exit(main())
