"""Terminal output of `streamfleet backlog`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from streamfleet.common.durations import in_words
from streamfleet.operator.commands.fitted_table import FittedTable
from streamfleet.operator.commands.plain import cell, one_line
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.lateness import QUIET, lateness
from streamfleet.operator.rates import Rates
from streamfleet.operator.snapshot import LaneView, Snapshot

URGENT_S = 5.0


def render(snapshot: Snapshot, moving: Rates | None) -> RenderableType:
    """Render lanes, reasons for lateness, workers and totals."""
    why = [Text(line, style="yellow") for line in reasons(snapshot)]
    queue = Text(f"queue {snapshot.queue}", style="bold")
    return Group(queue, _lanes(snapshot), *why, _workers(snapshot), Text(totals(snapshot, moving)))


def reasons(snapshot: Snapshot) -> list[str]:
    """The reason for each lane that is late, will be late, or waits for something else than its turn; a line each."""
    told = [found for found in lateness(snapshot) if found.cause not in QUIET]
    return [one_line(f"{found.lane}: {found.line()}") for found in told]


def totals(snapshot: Snapshot, moving: Rates | None) -> str:
    """The bottom lines."""
    ended = ", ".join(f"{count} {status}" for status, count in snapshot.ended.items() if count) or "nothing"
    line = (
        f"accepted {snapshot.accepted}, outstanding {snapshot.outstanding}, delayed {snapshot.delayed}, "
        f"dead letters {snapshot.dead_letters}; ended: {ended}"
    )
    told = [] if moving is None else [f"{moving.enqueued:.1f} enqueued/s", f"{moving.finished:.1f} finished/s"]
    if snapshot.pace_per_s is not None:
        told.append(f"while any wait, {snapshot.pace_per_s:.1f} taken/s")
    return "\n".join([line, *([", ".join(told)] if told else [])])


def _lanes(snapshot: Snapshot) -> FittedTable:
    numbers = ("outstanding", "ready", "running", "delayed", "mean wait", "oldest", "nearest")
    table = FittedTable("lane", *numbers, right=numbers)
    for lane in snapshot.lanes:
        table.add_row(
            lane.lane.value,
            str(lane.outstanding),
            str(lane.ready),
            str(lane.running),
            "?" if lane.delayed is None else str(lane.delayed),
            in_words(lane.mean_wait_s),
            in_words(lane.oldest_s),
            _nearest(lane),
        )
    return table


def _nearest(lane: LaneView) -> str:
    text = in_words(lane.nearest_s)
    if lane.nearest_s is None:
        return text
    colour = "red" if lane.nearest_s < 0 else "yellow" if lane.nearest_s < URGENT_S else ""
    return f"[{colour}]{text}[/{colour}]" if colour else text


def _workers(snapshot: Snapshot) -> RenderableType:
    if not snapshot.workers:
        return Text("no workers: start one with `streamfleet worker`", style="yellow")
    texts, numbers = ("worker", "state", "engine: model"), ("running", "slots", "last seen")
    table = FittedTable(*texts, *numbers, right=numbers, fold=texts)
    for worker in snapshot.workers:
        table.add_row(
            cell(worker.name),
            _state(worker),
            cell(f"{worker.engine}: {', '.join(worker.models)}"),
            str(worker.running),
            "-" if worker.slots is None else str(worker.slots),
            "never" if worker.silent_s is None else f"{in_words(max(0.0, worker.silent_s))} ago",
        )
    return table


def _state(worker: WorkerView) -> str:
    if not worker.alive:
        return "[red]silent[/red]"
    return cell(worker.state)
