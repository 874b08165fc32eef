"""CPU time that others used while something was measured: a verdict on time says little on a busy machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

QUIET = 0.1
"""Largest share of the machine's CPU time that others may use where a verdict on time is judged."""
NOISY = "noisy, not judged"
TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """CPU seconds until a moment: of all (stolen ones too), and of this process and its children; number of CPUs."""

    at_s: float
    all_s: float
    own_s: float
    cpus: int


class Others:
    """The load of others since this was made."""

    def __init__(self) -> None:
        self._before = usage()

    def noise(self) -> str:
        """Reason to judge no time; empty where others were quiet."""
        return noise(share(self._before, usage()))


def share(before: Usage | None, after: Usage | None) -> float | None:
    """Share of the machine that others used between two looks; None where /proc does not tell."""
    if before is None or after is None:
        return None
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, others_s / max(0.01, after.at_s - before.at_s) / after.cpus)


def noise(others: float | None) -> str:
    """Reason to judge no time when others used this share of the machine; empty if there is none."""
    if others is None:
        return f"{NOISY}: /proc/stat is not there"
    return f"{NOISY}: others used {others:.0%} of the CPUs" if others > QUIET else ""


def usage(proc: Path = Path("/proc"), own: int | None = None) -> Usage | None:
    """A look at /proc. Children that have ended count once their parent has waited for them."""
    try:
        lines = (proc / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    # user, nice, system, (idle, iowait,) irq, softirq, steal; time of guests is part of user.
    user, nice, system, _, _, irq, softirq, steal = map(int, lines[0].split()[1:9])
    cpus = sum(line.startswith("cpu") for line in lines) - 1
    ticks = user + nice + system + irq + softirq + steal
    return Usage(time.monotonic(), ticks / TICKS, _of_tree(proc, own or os.getpid()) / TICKS, cpus)


def _of_tree(proc: Path, root: int) -> int:
    """Ticks of a process, of its living descendants, and of the children that each of them has waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total
