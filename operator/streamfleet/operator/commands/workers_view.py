"""Terminal and JSON output of `streamfleet workers`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from streamfleet.common.durations import in_words
from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.commands.plain import cell
from streamfleet.operator.fleet import WorkerView


def render(workers: Sequence[WorkerView]) -> RenderableType:
    """Render the live workers, the silent ones that hold requests, and a summary."""
    shown = [worker for worker in workers if worker.alive or worker.running]
    last = Text(summary(workers, len(workers) - len(shown)))
    return Group(_table(shown), last) if shown else last


def summary(workers: Sequence[WorkerView], left_out: int) -> str:
    """The bottom line."""
    ready = [worker for worker in workers if worker.takes_requests]
    running, slots = sum(worker.running for worker in ready), sum(worker.slots or 0 for worker in ready)
    alive = sum(worker.alive for worker in workers)
    line = f"{alive} alive, {len(ready)} ready, running {running} of {slots} slots"
    if not alive:
        line = "no worker is alive: start one with `streamfleet worker`"
    silent = sum(not worker.alive and worker.running > 0 for worker in workers)
    if silent:
        line += f"; {silent} silent with requests, which others take over when the lease is over"
    return line + (f"; {left_out} silent without requests left out" if left_out else "")


def _table(workers: Sequence[WorkerView]) -> FittedTable:
    texts, numbers = ("worker", "ready", "engine: model", "version"), ("age", "seen", "running", "KV", "mean batch")
    table = FittedTable(*texts, *numbers, "held", "oldest held", right=(*numbers, "oldest held"), fold=texts)
    for worker in workers:
        table.add_row(
            cell(worker.name),
            _ready(worker),
            cell(f"{worker.engine}: {', '.join(worker.models)}"),
            cell(worker.version or "-"),
            in_words(worker.age_s),
            "never" if worker.silent_s is None else f"{in_words(max(0.0, worker.silent_s))} ago",
            f"{worker.running}/{'?' if worker.slots is None else worker.slots}",
            "-" if worker.kv_use is None else f"{worker.kv_use:.0%}",
            "-" if worker.mean_batch is None else f"{worker.mean_batch:g}",
            cell(", ".join(f"{lane} {count}" for lane, count in worker.held.items()) or "-"),
            in_words(worker.oldest_held_s),
        )
    return table


def _ready(worker: WorkerView) -> str:
    if worker.takes_requests:
        return "[green]ready[/green]" + f", limited to {worker.slots} by the server" * worker.limited
    return f"[{'yellow' if worker.alive else 'red'}]{cell(worker.why_not)}[/]"
