"""Finds the processes below this one in /proc, and ends them, so that none is left behind.

The engine thread compares them before and after an engine starts, and ends those that outlive it. Without /proc there
are none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from a later one with the same id by its start.

    Attributes:
        pid: process id.
        started_ticks: time of its start, in clock ticks since boot.
    """

    pid: int
    started_ticks: int


def descendants(pid: int) -> frozenset[Process]:
    """All processes below ``pid`` that still run. Empty if there is no /proc."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        found = _read(int(folder.name))
        if found is not None:
            children.setdefault(found[0], []).append(found[1])
    below: set[Process] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            below.add(child)
            waiting.append(child.pid)
    return frozenset(below)


def alive(process: Process) -> bool:
    """True if it still runs. A zombie, which only waits for its parent to reap it, does not."""
    found = _read(process.pid)
    return found is not None and found[1] == process


def command_line(process: Process) -> str:
    """Its command line; empty if it is gone."""
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def end_all(processes: frozenset[Process], timeout_s: float) -> frozenset[Process]:
    """SIGKILL the processes that still run and wait until they are gone. Blocks.

    Returns:
        the processes that outlived ``timeout_s`` (stuck in the kernel).
    """
    deadline = time.monotonic() + timeout_s
    remaining = frozenset(filter(alive, processes))
    while remaining and time.monotonic() < deadline:
        for process in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        remaining = frozenset(filter(alive, remaining))
    return remaining


def _read(pid: int) -> tuple[int, Process] | None:
    """Parent id and identity of a process that runs; None if there is none, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    state, parent, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else (int(parent), Process(pid, int(rest[17])))
