"""Programs that tests need and a machine may lack: `make test` fetches what it can, and says what was not run."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "programs"
"""Programs that the set-up put beside this Python: Node, Chromium, and those of Debian packages."""
BROWSERS = ("chromium", "chromium-browser")
PACKAGES = {
    "promtool": "prometheus",
    "chromium": "chromium",
    "node": "nodejs",
    "luacheck": "lua-check",
    "luac5.1": "lua5.1",
}
"""Debian packages whose name is not that of their program."""


def on_path() -> None:
    """Let tests and what they start find the programs of the set-up."""
    os.environ["PATH"] = f"{FOLDER}{os.pathsep}{os.environ['PATH']}"


def program(*names: str) -> str:
    """Path of the first program that is there; without any, the test is skipped."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or pytest.skip(needs(names[0]))


def needs(name: str) -> str:
    """The reason for what is not run without a program."""
    return f"needs {name}: sudo apt-get install {PACKAGES.get(name, name)}"


def skip_without(what: str, remedy: str) -> str:
    """Skip the test for want of something, with what brings it. Never returns."""
    pytest.skip(f"needs {what}: {remedy}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Ends a run with what was not run, and what that needs."""
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.line(not_run(report.longrepr[2] for report in skipped))


def not_run(reasons: Iterable[str]) -> str:
    """The line that ends a run of the tests: how many were skipped for which reason."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    told = [f"{count} ({reason})" for reason, count in sorted(counts.items())]
    return f"not run: {', '.join(told) or 'nothing'}"
