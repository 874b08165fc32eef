"""The import contracts bite: an import planted where it must not be fails what `make check` runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE_ROOTS = ("common", "producer", "worker", "operator", "gateway", "cli")
LINTER = Path(sysconfig.get_path("scripts")) / "lint-imports"

PLANTED = [
    ("worker.planted", "streamfleet.producer", "all above common"),
    ("producer.planted_1", "streamfleet.worker", "all above common"),
    ("producer.planted_2", "streamfleet.gateway", "all above common"),
    ("common.planted", "streamfleet.cli", "all above common"),
    ("worker.planted_1", "redis", "talk to Redis"),
    ("producer.planted_3", "redis", "talk to Redis"),
    ("common.planted_1", "redis", "talk to Redis"),
    ("gateway.planted", "redis", "talk to Redis"),
    ("gateway.planted_1", "streamfleet.worker", "knows producers"),
    ("gateway.broker.planted", "fastapi", "needs no web server"),
    ("worker.planted_2", "vllm", "imports vllm"),
    ("worker.engine.openai", "streamfleet.worker.engine.simulated", "engines do not import each other: openai"),
]
"""Module that imports, what it imports, and the end of the contract's name."""


@pytest.fixture
def sources(repository: Path, tmp_path: Path) -> Path:
    """A copy of everything that the contracts look at."""
    for root in SOURCE_ROOTS:
        shutil.copytree(repository / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "pyproject.toml", tmp_path)
    return tmp_path


def lint(sources: Path) -> tuple[int, str]:
    """Exit status and output of lint-imports over the copy, not over this checkout."""
    roots = os.pathsep.join(str(sources / root) for root in SOURCE_ROOTS)
    # -P and PYTHONPATH: the copy comes before the checkout that is installed in the environment.
    done = subprocess.run(
        [sys.executable, str(LINTER), "--no-cache"],
        cwd=sources,
        env={**os.environ, "PYTHONPATH": roots, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_as_it_is_it_passes(sources: Path) -> None:
    status, said = lint(sources)
    assert status == 0, said


def test_planted_imports_fail(sources: Path) -> None:
    """Inside a function, too."""
    for module, imported, _ in PLANTED:
        root, *folders = module.split(".")
        path = (sources / root / "streamfleet" / root).joinpath(*folders).with_suffix(".py")
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(f"{before}\ndef late() -> None:\n    import {imported}\n", encoding="utf-8")
    status, said = lint(sources)
    assert status == 1, said
    broken = [text for text in said.splitlines() if " BROKEN" in text]
    contracts = {contract for _, _, contract in PLANTED}
    assert {each for each in contracts if any(each in text for text in broken)} == contracts
    assert len(broken) == len(contracts)
    for module, imported, _ in PLANTED:
        assert f"streamfleet.{module} -> {imported} (l." in said


def test_bare_names_of_source_roots_are_refused(sources: Path) -> None:
    """Bare `common` would be another service's package as soon as the client is installed there."""
    planted = sources / "producer/streamfleet/producer/planted.py"
    planted.write_text('"""Planted."""\n\nimport common.streamfleet.common\n', encoding="utf-8")
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    done = subprocess.run(
        [ruff, "check", "--no-cache", "--select", "TID251", str(planted)],
        cwd=sources,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "import streamfleet.common" in done.stdout
