"""The table of the last long runs in docs/reliability.md, made from their results.

python -m tests.long.page    # writes it; every long run does so too
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.long.results import GREEN, PAGE, read
from tests.long.rows import ROWS

NOT_SHOWN = ("observe", "pods", "clients", "test-long")
TARGETS = tuple(dict.fromkeys(row.target for row in ROWS if row.target not in NOT_SHOWN))
BEGIN, END = "<!-- long -->\n", "<!-- /long -->"
HEAD = "| run | verdict | when, commit | what it said |\n|---|---|---|---|\n"
WORDS = {
    "accepted": "accepted", "lost": "lost", "duplicate_results": "results twice", "undone": "undone",
    "executions_per_request": "executions a request", "innocent_dead": "innocent given up", "violations": "violations",
    "kills": "SIGKILLs", "stops": "SIGSTOPs", "restarts": "Redis restarts", "faults": "faults in all",
    "mutants": "guards taken out", "caught": "noticed", "median": "median", "max": "longest", "told": "told",
    "forgotten": "forgotten", "run_again": "run again", "answer_gap_max": "longest wait", "replicas": "replicas",
    "single_p50": "p50", "requests": "requests", "terminal": "ended", "good_succeeded": "good ones answered",
    "times": "p99 times", "entries": "entries", "workers_alive": "workers alive", "problems": "problems",
    "rss_mb_before": "MB of workers before", "rss_mb_after": "and after", "servers": "servers",
}  # fmt: skip
"""Figures that the page shows, by their names in a run's last line; it passes over all others."""
ZERO_TOO = ("lost", "duplicate_results", "replicas")
"""Those that the page shows when they are 0, too."""


def table(root: Path, targets: Iterable[str] = TARGETS) -> str:
    """A row for each target that has run."""
    rows = [(target, result) for target in targets if (result := read(root, target))]
    return HEAD + "".join(
        f"| `{target}` | {verdict(result['verdict'], result['last_green'])} | {result['date']}, {result['commit'][:8]} "
        f"| {'<br>'.join(map(said, result['figures']))} |\n"
        for target, result in rows
    )


def verdict(last: str, last_green: str) -> str:
    """The last verdict; where it is not green, the commit that was."""
    return last if last == GREEN else f"{last}; last green: {last_green[:8] or 'never'}"


def said(line: str) -> str:
    """A run's last line in words."""

    def figure(found: re.Match[str]) -> str:
        shown = found[1] in WORDS and (found[2] != "0" or found[1] in ZERO_TOO)
        return f"{WORDS[found[1]]} {found[2]}," if shown else ""

    words = re.sub(r"(\w+)=([^\s\]]+)", figure, line.strip(" =")).replace(" | ", "; ")
    return re.sub(r",? *(?=[\];]|$)|,(?= *\()", "", re.sub(r" +", " ", words))


def filled(page: str, root: Path) -> str:
    """The page with its table made again."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(root) + END + rest.partition(END)[2]


def write(root: Path) -> None:
    """Write the table into the page, where the repository has it."""
    path = root / PAGE
    if path.exists():
        path.write_text(filled(path.read_text(encoding="utf-8"), root), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[2])
