"""Reports of measurements: one JSON file each, from which tables and plots are made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from bench.core.machine import describe

ROOT = Path(__file__).parents[2]
FULL = ROOT / "bench" / "results"
"""Reports of the sizes that docs/performance.md shows: committed."""
QUICK = ROOT / "build" / "bench" / "quick"
"""Reports of small sizes, to see whether all is well: not committed."""
PARTIAL = ROOT / "build" / "bench" / "partial"
"""Reports that leave parts out, which must not take the place of whole ones: not committed."""


@dataclass(frozen=True)
class Target:
    """A limit for one figure.

    Attributes:
        name: the requirement, as one short line.
        value: measured value; None if it could not be measured.
        limit: bound of the value.
        kind: the side of the limit that holds.
        unit: unit of value and limit; "x" for a ratio, "%" for a share.
        note: reason for a miss, or a remark on small sizes.
    """

    name: str
    value: float | None
    limit: float
    kind: Literal["at least", "at most"]
    unit: str
    note: str = ""

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.kind == "at least" else self.value <= self.limit


@dataclass(frozen=True)
class Table:
    """Rows for people: each a mapping of column to text or number."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


@dataclass
class Report:
    """Report of one measurement.

    Attributes:
        name: the measurement's name, and the file name without its ending.
        made: date, YYYY-MM-DD.
        machine: description of the machine; see `machine.describe`.
        settings: sizes, rounds, and all else that decides the figures.
        tables: for docs/performance.md.
        targets: targets of the measurement.
        data: series for plots, and samples.
        commit, sources: last commit of the code that it judges, and that code's digest; see `judged`.
    """

    name: str
    made: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    sources: str = ""

    def save(self, folder: Path) -> Path:
        """Write it to `folder`; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        # Written whole or not at all: an interrupted run keeps the earlier report.
        half_done = path.with_suffix(".part")
        half_done.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        half_done.replace(path)
        return path


def new_report(name: str, settings: Mapping[str, Any]) -> Report:
    """An empty report of today, on this machine."""
    return Report(name, datetime.now(UTC).date().isoformat(), describe(), settings)


def load(path: Path) -> Report:
    """Load a saved report."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["tables"] = [Table(**table) for table in raw["tables"]]
    raw["targets"] = [Target(**target) for target in raw["targets"]]
    return Report(**raw)
