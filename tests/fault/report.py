"""Output of a run: its progress, and a summary at its end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamfleet.common.keys import ORIGINS
from tests.fault.journal import read
from tests.fault.plan import FaultKind, Plan
from tests.fault.run import Ran

SHOWN = 10
TAIL_LINES = 30


class Shown:
    """Progress of one run: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console, self._plan = console, plan
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("requests", total=plan.requests)
        self._said = 0

    def __enter__(self) -> Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, ended: int, faults: int, started: int, what: str) -> None:
        """Show the progress."""
        total = self._plan.requests
        self._bar.update(self._task, completed=ended, description=f"{faults}/{len(self._plan.faults)} faults")
        if not self._console.is_terminal and ended >= self._said:
            self._said = ended + max(1, total // 20)
            print(
                f"{ended:>6}/{total} ended  {faults:>4}/{len(self._plan.faults)} faults  {started:>4} workers  {what}",
                flush=True,
            )


def fault_table(ran: Ran) -> Table:
    """Returns a table of the faults that struck, and of those that found nothing to strike."""
    table = Table("fault", "struck", "found nothing", title="faults")
    for key in sorted({*ran.struck, *ran.missed}):
        table.add_row(" ".join(key).strip(), str(ran.struck.get(key, 0)), str(ran.missed.get(key, 0)))
    return table


def left_table(ran: Ran) -> Table:
    """Returns a table of what is left in the queues' keys, and of what may be left."""
    table = Table("queue", "key", "keys", "items in the largest", "may be left", title="left when all has ended")
    for queue, found in ran.history.leftovers.items():
        for kind, keys, largest, _ in found:
            table.add_row(queue, kind, str(keys), str(largest), ORIGINS[kind].left if kind else "")
    return table


def kills(ran: Ran) -> int:
    """Workers that were killed, whatever killed them."""
    return sum(end.code == -9 for end in ran.history.exits)


def stops(ran: Ran) -> int:
    return sum(
        number for (kind, what), number in ran.struck.items() if kind == FaultKind.STOP or what.endswith(" stop")
    )


@dataclass(frozen=True)
class Figures:
    """Figures of a run, or of several together."""

    counted: dict[str, int]
    executions: int
    requests: int
    seed: int
    servers: tuple[str, ...]

    @property
    def violations(self) -> int:
        return self.counted["violations"]

    def __add__(self, other: Figures) -> Figures:
        counted = {name: value + other.counted[name] for name, value in self.counted.items()}
        return Figures(
            counted,
            self.executions + other.executions,
            self.requests + other.requests,
            self.seed,
            self.servers + other.servers,
        )

    def line(self) -> str:
        """All of it on one line."""
        first = ("accepted", "terminal", "lost", "duplicate_results")
        words = [f"{name}={self.counted[name]}" for name in first]
        words.append(f"executions_per_request={self.executions / max(1, self.requests):.3f}")
        words += [f"{name}={value}" for name, value in self.counted.items() if name not in first]
        return " ".join([*words, f"servers={','.join(self.servers)}", f"seed={self.seed}"])


def figures(ran: Ran, seed: int, server: str) -> Figures:
    """Of one run."""
    counted = {
        **ran.verdict.figures,
        "kills": kills(ran),
        "stops": stops(ran),
        "restarts": ran.struck.get((FaultKind.REDIS_KILL, ""), 0),
        "faults": sum(ran.struck.values()),
        "seconds": round(ran.seconds),
    }
    executions = [len(each) for each in ran.history.executions.values() if each]
    return Figures(counted, sum(executions), len(executions), seed, (server,))


def violations(ran: Ran, folder: Path) -> Iterator[str]:
    """The violations, with the whole history of the requests that the first ones are about."""
    for violation in ran.verdict.violations[:50]:
        yield f"VIOLATION {violation.kind}: {violation.id} {violation.message}"
    ids = list(dict.fromkeys(violation.id for violation in ran.verdict.violations if violation.id))
    for name in ids[:SHOWN]:
        yield f"--- {name}"
        yield from story(ran, folder, name)
    if any(violation.kind in ("exit", "stuck") for violation in ran.verdict.violations):
        for end in ran.history.exits:
            if any(end.worker in violation.message.split() for violation in ran.verdict.violations):
                yield f"--- log of {end.worker} ({end.code})"
                log = folder / f"{end.worker}.log"
                yield from (log.read_text(errors="replace").splitlines() if log.exists() else [])[-TAIL_LINES:]


def story(ran: Ran, folder: Path, name: str) -> Iterator[str]:
    """Every line about a request in any log, in order, with what became of the workers that ran it."""
    request = ran.history.accepted.get(name)
    nonce = request.nonce if request else name
    lines = [
        (line["at"], path.name, line)
        for pattern in ("*.journal", "*.witness", "events.jsonl")
        for path in folder.glob(pattern)
        for line in read(path)
        if name in (line.get("id"), line.get("nonce")) or nonce == line.get("nonce")
    ]
    ran_by = {execution.worker for execution in ran.history.executions.get(name, [])}
    lines += [
        (line["at"], "events", line)
        for line in read(folder / "events.jsonl")
        if line.get("worker") in ran_by or line["e"].startswith("outage")
    ]
    for at, source, line in sorted(lines, key=lambda each: each[0]):
        rest = " ".join(f"{key}={value}" for key, value in line.items() if key not in ("at", "e"))
        yield f"  {at} {source} {line['e']} {rest}"
    yield f"  at the end: {ran.history.results.get(name)}"


def tidy(folder: Path, keep: bool) -> str:
    """Remove the folder of a good run; says where that of another one is."""
    if keep:
        return f"logs: {folder}"
    shutil.rmtree(folder, ignore_errors=True)
    return ""
