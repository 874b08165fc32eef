"""Tests with a real engine share a process, however many processes there are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import longest_first, scope_of


@pytest.mark.parametrize(
    ("test", "scope"),
    [
        ("tests/e2e/test_vllm_worker.py::test_a[1]", "engines"),
        ("tests/contract/test_engines.py::test_a[vllm-x@y]", "engines"),
        ("tests/e2e/test_packaging.py::test_a", "tests/e2e/test_packaging.py"),
        ("tests/e2e/test_demo_model.py::test_a", "tests/e2e/test_demo_model.py::test_a"),
        ("tests/unit/test_deploy_docs.py::test_a", "manifests"),
        ("tests/integration/test_gateway_keys.py::test_a", "tests/integration/test_gateway_keys.py"),
        ("tests/integration/test_k8s_overlays.py::test_a[b]", "manifests"),
        ("tests/unit/test_keys.py::test_a", "tests/unit/test_keys.py::test_a"),
    ],
    ids=["e2e", "contract", "packaging", "model", "deploy", "gateway", "k8s", "any other"],
)
def test_the_group_of_a_test(test: str, scope: str) -> None:
    assert scope_of(test) == scope


def test_all_tests_with_a_real_engine_are_of_one_group(repository: Path) -> None:
    files = (repository / "tests").rglob("test_*.py")
    mark = "mark." + "needs_vllm"  # in two parts, because this file has it too
    marked = [file for file in files if mark in file.read_text(encoding="utf-8")]
    groups = {file.name: scope_of(f"{file.relative_to(repository)}::test_a") for file in marked}
    assert len(groups) > 3
    assert set(groups.values()) == {"engines"}, groups


def test_the_tests_with_the_longest_limits_begin_first() -> None:
    def test(name: str, *limit_s: float) -> Any:
        marker = SimpleNamespace(args=limit_s) if limit_s else None
        return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: marker)

    items = [
        test("tests/a.py::a"),
        test("tests/b.py::b", 120),
        test("tests/contract/c.py::c", 600),
        test("tests/d.py::d", 240),
    ]
    names = [item.nodeid for item in longest_first(items)]
    assert names == ["tests/d.py::d", "tests/b.py::b", "tests/a.py::a", "tests/contract/c.py::c"]


def test_pytest_xdist_heeds_it(repository: Path, tmp_path: Path) -> None:
    """With whatever releases of both are installed."""
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "tests" / "e2e" / f"test_vllm_{number}.py").write_text("def test_it(worker_id): print(worker_id)\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.hookimpl(optionalhook=True)\n"
        "def pytest_xdist_make_scheduler(config, log):\n"
        "    from tests.scheduling import Scheduler\n"
        "    return Scheduler(config, log)\n"
    )
    words = ["-m", "pytest", "-n", "2", "-v", "-p", "xdist", "-o", f"pythonpath={repository}"]
    ran = subprocess.run(
        [sys.executable, *words, f"--rootdir={tmp_path}", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    by = {line.split("]")[0] for line in ran.stdout.splitlines() if "PASSED" in line}
    assert len(by) == 1, ran.stdout
