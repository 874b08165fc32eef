"""Results of the long runs: a committed file for each target, of its last run and the commit that was last green."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path("tests/long/results")
PAGE = Path("docs/reliability.md")
"""Shows them: `tests.long.page` writes its table."""
GREEN = "green"


def write(root: Path, target: str, result: dict[str, Any]) -> None:
    """Write a target's result; the commit that was last green stays, where this one is not."""
    path = root / FOLDER / f"{target}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    last_green = result["commit"] if result["verdict"] == GREEN else read(root, target).get("last_green", "")
    path.write_text(json.dumps({**result, "last_green": last_green}, indent=2) + "\n", encoding="utf-8")


def read(root: Path, target: str) -> dict[str, Any]:
    """A target's result; empty before the first."""
    path = root / FOLDER / f"{target}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def ages(root: Path, targets: Iterable[str]) -> Iterator[str]:
    """A line for each target: when it was last green, and the verdict of a later run that was not."""
    yield "long runs              last green (make long)"
    for target in targets:
        result = read(root, target)
        later = result.get("verdict", GREEN)
        yield f"  {target:<20} {age(root, result.get('last_green', ''))}{'' if later == GREEN else f'; later {later}'}"


def age(root: Path, commit: str) -> str:
    """Number of commits since one, in words."""
    if not commit:
        return "never"
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return "unknown"
    count = git(root, "rev-list", "--count", f"{commit}..HEAD")
    return "unknown" if count is None else f"{count} commit{'' if count == '1' else 's'} ago"


def head(root: Path) -> str:
    """The commit that is run; one with changes is none of the history. Results of earlier runs are no change."""
    commit = git(root, "rev-parse", "HEAD") or "unknown"
    return f"{commit}-changed" if git(root, "status", "--porcelain", "--", ".", f":!{FOLDER}", f":!{PAGE}") else commit


def git(root: Path, *words: str) -> str | None:
    """Output of git; None where it fails, is not there, or there is no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=root, check=False, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
