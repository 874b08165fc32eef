"""Makes tables, targets and series from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from bench.broker.systems import System
from bench.core.reports import Table, Target
from bench.core.rounds import Sample
from bench.core.tables import shown

Samples: TypeAlias = Mapping[str, Sequence[Sample]]
Failures: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]

MOST_BYTES = 760.0
COLUMNS = (
    "",
    "enqueue/s",
    "enqueue, of raw",
    "drain/s",
    "drain, of raw",
    "p50 / p99 ms, defaults",
    "p50 / p99 ms, tuned",
    "Redis bytes a job",
)


def middle(samples: Sequence[Sample], figure: str) -> float | None:
    """The median of the rounds that have the figure; None if no round has it."""
    values = [sample[figure] for sample in samples if figure in sample]
    return median(values) if values else None


def of_raw(samples: Sequence[Sample], figure: str) -> float | None:
    """The median ratio to raw redis-py measured beside, round by round."""
    base = f"raw_{figure}"
    ratios = [sample[figure] / sample[base] for sample in samples if figure in sample and base in sample]
    return median(ratios) if ratios else None


def against(ours: Sequence[Sample], theirs: Sequence[Sample], figure: str) -> float | None:
    """The median ratio to another system, round by round."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [mine[figure] / other[figure] for mine, other in pairs if figure in mine and figure in other]
    return median(ratios) if ratios else None


def fastest(systems: Sequence[System], samples: Samples, figure: str, kinds: Sequence[str]) -> System | None:
    """The peer of these kinds with the largest median; None if none was measured."""
    found = [(middle(samples[each.name], figure), each) for each in systems if each.kind in kinds]
    return max(((value, each) for value, each in found if value is not None), default=(0, None), key=_first)[1]


def _first(pair: tuple[float, System]) -> float:
    return pair[0]


def main_table(systems: Sequence[System], samples: Samples, failures: Failures) -> Table:
    """One row for each system; a figure that is missing shows the reason."""
    rows = []
    for system in systems:
        mine, failed = samples[system.name], failures.get(system.name, {})
        cells: list[Any] = [
            middle(mine, "enqueue"),
            of_raw(mine, "enqueue"),
            middle(mine, "drain"),
            of_raw(mine, "drain"),
            _round_trip(mine, "defaults"),
            _round_trip(mine, "tuned"),
            middle(mine, "bytes"),
        ]
        said: set[str] = set()
        for at, figure in ((0, "enqueue"), (2, "drain"), (4, "defaults"), (5, "tuned")):
            if cells[at] is None and figure in failed:
                reason = failed[figure][-1]
                cells[at] = "not measured" if reason in said else f"not measured: {reason}"
                said.add(reason)
        rows.append(dict(zip(COLUMNS, [system.title, *cells], strict=True)))
    return Table("Queues side by side", COLUMNS, rows)


def _round_trip(samples: Sequence[Sample], way: str) -> str | None:
    p50, p99 = middle(samples, f"{way}_p50"), middle(samples, f"{way}_p99")
    return None if p50 is None or p99 is None else f"{shown(p50)} / {shown(p99)}"


def settings_table(systems: Sequence[System], versions: Mapping[str, Mapping[str, str]]) -> Table:
    """Settings and release of each system."""
    columns = ("", "versions", "enqueue and drain", "round trip, defaults", "round trip, tuned")
    rows = [
        {
            "": system.title,
            "versions": ", ".join(f"{name} {version}" for name, version in versions[system.name].items()),
            "enqueue and drain": system.settings,
            "round trip, defaults": system.defaults,
            "round trip, tuned": system.tuned,
        }
        for system in systems
    ]
    return Table("Settings of each queue", columns, rows)


def targets(systems: Sequence[System], samples: Samples) -> list[Target]:
    """Targets of streamfleet; empty if it was not measured."""
    if "streamfleet" not in samples:
        return []
    ours, node = samples["streamfleet"], samples.get("bullmq-node", ())

    def best(figure: str, kinds: Sequence[str]) -> tuple[str, float | None]:
        peer = fastest(systems, samples, figure, kinds)
        return (peer.title, against(ours, samples[peer.name], figure)) if peer else ("none measured", None)

    any_peer, python = best("enqueue", ("python", "node")), best("drain", ("python",))
    memory = [value for value in (middle(ours, "bytes"), middle(ours, "staged_bytes")) if value is not None]
    by_node = [against(ours, node, figure) if node else None for figure in ("enqueue", "drain")]
    return [
        Target("Bulk enqueue, of raw redis-py pipelines", of_raw(ours, "enqueue"), 0.75, "at least", "x"),
        Target("Bulk enqueue, of BullMQ on Node", by_node[0], 1.4, "at least", "x"),
        Target("Bulk enqueue, of the fastest peer", any_peer[1], 1.0, "at least", "x", any_peer[0]),
        Target("Drain, of raw redis-py pipelines", of_raw(ours, "drain"), 0.9, "at least", "x"),
        Target("Drain, of the fastest Python peer", python[1], 5.0, "at least", "x", python[0]),
        Target("Drain, of BullMQ on Node", by_node[1], 1.0, "at least", "x"),
        Target("Round trip p50, on defaults", middle(ours, "defaults_p50"), 0.8, "at most", "ms"),
        Target("Round trip p99, on defaults", middle(ours, "defaults_p99"), 2.0, "at most", "ms"),
        Target("Memory of a queued request", max(memory, default=None), MOST_BYTES, "at most", "B", _memory_note(ours)),
    ]


def _memory_note(ours: Sequence[Sample]) -> str:
    queued, staged = middle(ours, "bytes"), middle(ours, "staged_bytes")
    return f"undelivered {shown(queued)} B, staged {shown(staged)} B"


def series(systems: Sequence[System], samples: Samples) -> list[dict[str, Any]]:
    """Series for plots: one row for each system, medians and ratios, None if there is none."""
    figures = ("enqueue", "drain", "bytes", "staged_bytes", "defaults_p50", "defaults_p99", "tuned_p50", "tuned_p99")
    return [
        {
            "name": system.name,
            "title": system.title,
            "kind": system.kind,
            **{figure: middle(samples[system.name], figure) for figure in figures},
            "enqueue_of_raw": of_raw(samples[system.name], "enqueue"),
            "drain_of_raw": of_raw(samples[system.name], "drain"),
        }
        for system in systems
    ]
