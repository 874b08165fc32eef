"""Redis's CPU of each verb, with this checkout's scripts beside those of another commit, by turns.

Each side has a server of its own, of the same program, on the same core; a process of the side's own code calls it. The
servers are started anew several times, because where a process lies in memory changes its speed.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from bench.core.redis import own_server
from bench.core.reports import ROOT, Report, Table, Target, new_report
from bench.core.rounds import Sample, interleave, middle
from bench.shards.costs import LONE_PAUSE_S

LABELS = {"plain": "", "tenants": ", 1,000 tenants", "sessions": ", sessions", "both": ", tenants and sessions"}
DRAWS, ENOUGH, NARROW = 2_000, 30, 0.03
DEAR = ("keep_house", "reclaim")
MOST_LOAD_MS = 10.0
LOAD = "longest load"
"""In the place of a verb: the longest of the commands that load the scripts into a new server."""
FLEET = "fleet"
"""In the place of a verb: half as many requests a second as there are workers."""
ALL = ("common", "producer", "worker", "operator", "gateway", "cli")
"""Roots of the sources of a commit."""
Measure = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """A verb, the number of its requests in a call, and the labels of its queue.

    To add is to enqueue and to stage; to drain is to pull and to complete.
    A lone call comes after a pause, as calls of a fleet do: the server sleeps, and its caches are cold.
    """

    verb: str
    number: int = 0
    labels: str = "plain"
    lone: bool = False

    @property
    def name(self) -> str:
        """For readers."""
        of = f" of {self.number}" if self.number else ""
        return f"{'lone ' if self.lone else ''}{self.verb}{of}{LABELS[self.labels]}"


ROWS = (
    *(Row(verb) for verb in ("return 1", "renew", "heartbeat", "ask_to_cancel", *DEAR, "cancel", LOAD)),
    *(Row(verb, 1) for verb in ("enqueue", "renew", "complete", "release", "retry_later")),
    *(Row(verb, lone=True) for verb in ("return 1", "renew")),
    *(Row(verb, 1, lone=True) for verb in ("enqueue", "pull", "renew", "complete", "retry_later")),
    *(Row(verb, 64) for verb in ("enqueue", "renew", "complete", "release", "retry_later")),
    *(Row("pull", number, labels) for labels in LABELS for number in (1, 8, 64)),
    *(Row("add", 64, labels) for labels in LABELS),
    *(Row("drain", 64, labels) for labels in LABELS),
    Row(FLEET, 200),
)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement.

    Attributes:
        depth: waiting requests of each queue.
        pairs: pairs of samples after each start of the servers.
        starts: number of these starts.
        calls: single calls of a sample.
        fleet_s: seconds for which a fleet is looked at.
    """

    depth: int = 20_000
    pairs: int = 5
    starts: int = 6
    calls: int = 200
    fleet_s: float = 10.0

    def calls_of(self, row: Row) -> int:
        """Calls of a sample: fewer of those that do more."""
        return max(1, self.calls // (10 if row.verb in DEAR else max(1, row.number // 4)))


def run(commit: str, sizes: Sizes, rows: Sequence[Row] = ROWS, most: float = 1.03) -> Report:
    """Run the measurement.

    Args:
        commit: whose scripts stand beside this checkout's.
        sizes: sizes of the measurement.
        rows: what is measured.
        most: largest ratio of medians.

    Raises:
        CalledProcessError: git does not know the commit.
    """
    samples: dict[str, list[Sample]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="streamfleet-before-") as folder:
        whole = unpack(commit, Path(folder))
        for start in range(sizes.starts):
            with _side(Path(folder), sizes) as before, _side(ROOT, sizes) as now:
                pairs = {row.name: _pair({"before": before(row), "now": now(row)}) for row in rows}
                for pair in pairs.values():
                    pair()  # loads the scripts, and fills the queue
                for name, found in interleave(pairs, sizes.pairs, seed=start, title="pairs").items():
                    samples[name] += found
    settings = asdict(sizes) | {"commit": whole, "most": most}
    report = new_report("scripts", settings)
    report.data = dict(samples)
    table = [_judged(name, found, most) for name, found in samples.items()]
    report.tables.append(Table(f"Redis's CPU of a call, beside {whole[:12]}", list(table[0]), table))
    missed = [str(row["call"]) for row in table if row["verdict"] != "no dearer"]
    report.targets.append(Target("calls that may be dearer", len(missed), 0, "at most", "", "; ".join(missed)))
    if LOAD in samples:
        longest_ms = middle(samples[LOAD], "now") / 1_000
        report.targets.append(Target("longest load of a script", longest_ms, MOST_LOAD_MS, "at most", "ms"))
    return report


def interval(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Ratio of the medians, now to before, and the bounds of its 95 % interval by bootstrapping pairs."""
    chance = random.Random(1)
    drawn = sorted(_ratio(chance.choices(samples, k=len(samples))) for _ in range(DRAWS))
    return _ratio(samples), drawn[DRAWS // 40], drawn[-DRAWS // 40 - 1]


def verdict(ratio: float, low: float, high: float, pairs: int, most: float) -> str:
    """Returns "no dearer" if the ratio is small enough, or enough pairs cannot tell it from 1."""
    if ratio <= most or (pairs >= ENOUGH and low <= 1 <= high and high - low < 2 * NARROW):
        return "no dearer"
    return "DEARER" if low > 1 else "not known"


def _ratio(samples: Sequence[Sample]) -> float:
    return median(each["now"] for each in samples) / median(each["before"] for each in samples)


def _judged(name: str, samples: Sequence[Sample], most: float) -> dict[str, object]:
    ratio, low, high = interval(samples)
    before, now = (median(each[side] for each in samples) for side in ("before", "now"))
    judged = verdict(ratio, low, high, len(samples), most)
    shown = {"ratio": f"{ratio:.3f}", "95 %": f"{low:.3f} to {high:.3f}", "verdict": judged}
    return {"call": name, "before, µs": before, "now, µs": now, **shown}


def _pair(sides: dict[str, Measure]) -> Callable[[], Sample]:
    order = [*sides]

    def pair() -> Sample:
        order.reverse()  # who comes second finds warmer caches
        return {side: sides[side]() for side in order}

    return pair


@contextmanager
def _side(folder: Path, sizes: Sizes) -> Iterator[Callable[[Row], Measure]]:
    """Start a server, and a process of the sources in a folder. Yields what makes a row's measure, in µs of a call."""
    cores = sorted(os.sched_getaffinity(0))
    with own_server() as server:
        words = [sys.executable, "-m", "bench.scripts.side", server.url, str(sizes.depth)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(words, cwd=ROOT, env=environment(folder), text=True, **pipes) as side:  # type: ignore[call-overload]
            if len(cores) > 1:
                os.sched_setaffinity(server.pid, cores[-1:])
                os.sched_setaffinity(side.pid, cores[:-1])

            def measure(row: Row) -> Measure:
                if row.verb == FLEET:
                    return partial(_fleet, folder, row.number, sizes.fleet_s)
                asked = json.dumps([row.labels, row.verb, row.number, sizes.calls_of(row), LONE_PAUSE_S * row.lone])

                def once() -> float:
                    print(asked, file=side.stdin, flush=True)
                    answer = side.stdout.readline()
                    assert answer, f"{row.name}: the side of {folder} ended"
                    return float(json.loads(answer))

                return once

            try:
                yield measure
            finally:
                side.kill()


def _fleet(folder: Path, workers: int, seconds: float) -> float:
    """Redis's CPU of a request, in µs, in a fleet of the sources in a folder."""
    words = [sys.executable, "-m", "bench.scripts.side", FLEET, str(workers), str(seconds)]
    return float(subprocess.run(words, cwd=ROOT, env=environment(folder), stdout=subprocess.PIPE, check=True).stdout)


def unpack(commit: str, folder: Path) -> str:
    """Write a commit's sources into a folder. Returns the whole commit.

    Raises:
        CalledProcessError: there is no such commit; git's errors go to standard error.
    """
    words = ("git", "-C", str(ROOT), "archive", "--format=tar", commit, *ALL)
    archive = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:  # Python 3.11.2, which Debian 12 has
            packed.extractall(folder)  # noqa: S202 - an archive of this project's own
        return packed.pax_headers["comment"]


def environment(folder: Path) -> dict[str, str]:
    """Environment of a process that runs the sources in a folder where it would run this checkout's."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / root) for root in ALL)}
