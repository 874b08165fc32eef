"""Write the tables of docs/gpu.md from the report of `make gpu-proof` in bench/results, of a real GPU.

The text between `<!-- gpu:proof:begin -->` and `<!-- gpu:proof:end -->` is made; the rest is by hand.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from bench.core.reports import FULL, ROOT, Report, load
from bench.core.tables import targets_markdown
from bench.gpu.tables import steps
from bench.pages import PageError, about, refilled, titled

PAGE = ROOT / "docs" / "gpu.md"
LEFT_OUT = (steps({}).title, "SIGKILL: ")
"""Beginnings of the titles of tables that the page leaves out: its steps, and one of which the targets say all."""
SPEED = "tokens/s of the worker, "
"""Beginning of the names of targets that the page leaves out: the table of speeds has their figures."""


def fill(text: str, results: Path) -> str:
    """Returns the page with every block filled.

    Args:
        text: the present page.
        results: folder of reports.

    Raises:
        PageError: a block's name is unknown, or a report is not of a GPU.
    """
    return refilled(text, "gpu", {"proof": partial(proof, results)})


def proof(results: Path) -> str:
    """Machine, targets and tables of the last proof; without one, its steps as not yet run."""
    path = results / "gpu.json"
    if not path.is_file():
        return titled(steps({}))
    report = of_gpu(path)
    targets = [target for target in report.targets if not target.name.startswith(SPEED)]
    tables = [titled(table) for table in report.tables if not table.title.startswith(LEFT_OUT)]
    return "\n\n".join([about(report), sizes(report), targets_markdown(targets), *tables])


def sizes(report: Report) -> str:
    """Settings of a report, in one line."""
    words = {
        name.replace("_", " "): f"`{value}`" if str(value).startswith("--") else value
        for name, value in report.settings.items()
    }
    return f"Sizes: {'; '.join(f'{name} {value}' for name, value in words.items())}."


def of_gpu(path: Path) -> Report:
    """Load a report of a GPU.

    Raises:
        PageError: it is of a dry run, or of a machine without a GPU.
    """
    report = load(path)
    if report.settings.get("dry run") or "gpu" not in report.machine:
        raise PageError(f"{path.name} is not of a GPU; this page shows nothing else")
    return report


def main() -> int:
    """Write the page, or with `--check` tell if it is up to date."""
    known = argparse.ArgumentParser(prog="python -m bench.gpu.page", description=__doc__)
    known.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is out of date")
    checks = known.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    try:
        after = fill(before, FULL)
    except (PageError, OSError, ValueError, KeyError, TypeError) as error:
        print(f"bench.gpu.page: {error}", file=sys.stderr)
        return 1
    if checks and after != before:
        print(f"{PAGE.name}: its tables are not those of the results; run: python -m bench.gpu.page", file=sys.stderr)
        return 1
    if not checks:
        PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
