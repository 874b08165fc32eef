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
    pytest.param(
        "worker/streamfleet/worker/planted.py",
        "import streamfleet.producer",
        "all above common",
        id="producer",
    ),
    pytest.param(
        "producer/streamfleet/producer/planted.py",
        "import streamfleet.worker",
        "all above common",
        id="worker",
    ),
    pytest.param("common/streamfleet/common/planted.py", "import streamfleet.cli", "all above common", id="upwards"),
    pytest.param("worker/streamfleet/worker/planted.py", "import redis", "talk to Redis", id="redis in worker"),
    pytest.param(
        "producer/streamfleet/producer/planted.py",
        "def late() -> None:\n    from redis.asyncio import Redis",
        "talk to Redis",
        id="redis in producer, inside a function",
    ),
    pytest.param("common/streamfleet/common/planted.py", "import redis", "talk to Redis", id="redis in common"),
    pytest.param(
        "gateway/streamfleet/gateway/planted.py", "import streamfleet.worker", "knows producers", id="gateway to worker"
    ),
    pytest.param("gateway/streamfleet/gateway/planted.py", "import redis", "talk to Redis", id="redis in gateway"),
    pytest.param(
        "gateway/streamfleet/gateway/broker/planted.py",
        "import fastapi",
        "needs no web server",
        id="web server in the gateway's broker",
    ),
    pytest.param(
        "producer/streamfleet/producer/planted.py",
        "import streamfleet.gateway",
        "all above common",
        id="to gateway",
    ),
    pytest.param("worker/streamfleet/worker/planted.py", "import vllm", "imports vllm", id="vllm"),
    pytest.param(
        "worker/streamfleet/worker/engine/openai.py",
        "import streamfleet.worker.engine.simulated",
        "engines do not import each other: openai",
        id="engine in engine",
    ),
]


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


@pytest.mark.parametrize(("module", "line", "contract"), PLANTED)
def test_planted_import_fails(sources: Path, module: str, line: str, contract: str) -> None:
    path = sources / module
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    status, said = lint(sources)
    assert status == 1, said
    broken = [text for text in said.splitlines() if " BROKEN" in text]
    assert len(broken) == 1
    assert contract in broken[0]


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
