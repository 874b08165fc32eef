"""List of all pictures: the data of each, and its description in words. Only drawing needs matplotlib."""

from __future__ import annotations

import hashlib
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

from bench.core.reports import Report

HERE = Path(__file__).parent
HEAD_BYTES = 4096
"""The fingerprint stands in an SVG's metadata, which come first."""


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: name of its module here, of its file, and of its place on the page.
        report: measurement with its data.
        needs: keys of `Report.data` without which it cannot be drawn.
        alt: description for readers who cannot see it.
    """

    name: str
    report: str
    needs: tuple[str, ...]
    alt: str

    def missing(self, report: Report) -> list[str]:
        """Keys that it needs and the report does not have."""
        return [name for name in self.needs if not report.data.get(name)]

    def fingerprint(self, report_bytes: bytes) -> str:
        """Hash of everything that decides its look: the report, its module, and the modules that all pictures share."""
        digest = hashlib.sha256()
        sources = sorted([*HERE.glob(f"{self.report}_*.py"), HERE / "parts.py", HERE / "style.py"])
        for part in (report_bytes, *(path.read_bytes() for path in sources)):
            digest.update(hashlib.sha256(part).digest())
        return f"{self.report}.json sha256:{digest.hexdigest()}"

    def draw(self, report: Report, path: Path, fingerprint: str) -> None:
        """Draw it into a file; needs matplotlib."""
        from bench.plots import style

        module = importlib.import_module(f"bench.plots.{self.name}")
        with style.rules():
            style.save(module.draw(report.data), path, fingerprint)


def fingerprint_of(path: Path) -> str:
    """The fingerprint in a drawn picture; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        found = re.search(rb"\w+\.json sha256:[0-9a-f]{64}", file.read(HEAD_BYTES))
    return found[0].decode() if found else ""


PICTURES: tuple[Picture, ...] = (
    Picture(
        "broker_throughput",
        "broker",
        ("systems",),
        "Bulk enqueue and drain by one worker of streamfleet and other queues, as ratios to raw redis-py",
    ),
    Picture(
        "goodput_first_token",
        "goodput",
        ("urgent",),
        "Time from enqueueing to the first token of urgent requests on full engines, by the way to run both kinds",
    ),
)
