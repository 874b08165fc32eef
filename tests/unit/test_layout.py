"""Promises of the layout: one name for each module, a light client, Lua, complete contracts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

SOURCE_ROOTS = ("common", "producer", "worker", "operator", "gateway", "cli")
ENGINES = ("vllm", "openai", "simulated")


@pytest.fixture(scope="module")
def pyproject(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


def modules(repository: Path) -> list[tuple[str, str]]:
    """(source root, dotted name) of every module."""
    found = []
    for root in SOURCE_ROOTS:
        for path in (repository / root).rglob("*.py"):
            parts = path.relative_to(repository / root).with_suffix("").parts
            found.append((root, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def test_every_module_has_one_name(repository: Path) -> None:
    names = [name for _, name in modules(repository)]
    assert len(names) == len(set(names))
    assert all(name.startswith("streamfleet.") for name in names)


def test_source_roots_are_no_packages(repository: Path) -> None:
    """With an `__init__.py` there, `common.streamfleet.common` would import beside `streamfleet.common`."""
    for root in SOURCE_ROOTS:
        assert not (repository / root / "__init__.py").exists()
        assert not (repository / root / "streamfleet" / "__init__.py").exists(), "the namespace has to stay open"
        assert [path.name for path in (repository / root / "streamfleet").iterdir() if path.is_dir()] == [root]


def test_tests_and_benchmarks_call_scripts_through_the_broker(repository: Path) -> None:
    """Arguments made by hand go on in an older form when a script changes: its long runs break, and nobody sees it."""
    by_hand = re.compile(r"broker\._(config|shared)\b")
    found = [
        f"{path.relative_to(repository)}: {match[0]}"
        for folder in ("tests", "bench", "tools", "monitoring")
        for path in (repository / folder).rglob("*.py")
        if "node_modules" not in path.parts
        for match in by_hand.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def imported(path: Path) -> set[str]:
    """First parts of everything that a file imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.split(".")[0] for name in names}


def test_imports_use_the_one_name(repository: Path) -> None:
    roots = set(SOURCE_ROOTS) - {"operator"}  # a module of Python
    suspicious = re.compile(rf"\b(?:from|import) +(?:{'|'.join(roots)})\b")  # parsing every file takes seconds
    for folder in (*SOURCE_ROOTS, "tests", "tools", "examples"):
        for path in (repository / folder).rglob("*.py"):
            if suspicious.search(path.read_text(encoding="utf-8")):
                assert not imported(path) & roots, f"{path}: import it as streamfleet.…"


def test_every_package_carries_its_types(repository: Path) -> None:
    assert all((repository / root / "streamfleet" / root / "py.typed").exists() for root in SOURCE_ROOTS)


def test_every_source_root_is_in_the_wheel(pyproject: dict[str, Any]) -> None:
    build = pyproject["tool"]["hatch"]["build"]
    assert build["dev-mode-dirs"] == list(SOURCE_ROOTS)
    assert build["targets"]["wheel"]["packages"] == [f"{root}/streamfleet" for root in SOURCE_ROOTS]


def test_a_client_loads_itself_alone() -> None:
    """Nothing of a gateway, a worker or an operator, none of their settings and libraries, and nothing to log with."""
    code = (
        "import sys; from streamfleet.producer import Client\n"
        "ours = {name for name in sys.modules if name.startswith('streamfleet.')}\n"
        "assert {name.split('.')[1] for name in ours} == {'common', 'producer'}, ours\n"
        "assert len(ours) <= 45, (len(ours), sorted(ours))\n"
        "assert not ours & {'streamfleet.common.settings', 'streamfleet.common.settings_gateway'}, ours\n"
        "heavy = {'typer', 'httpx', 'fastapi', 'uvicorn', 'vllm', 'structlog', 'rich', 'difflib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from streamfleet.common.queue_configuration import _given\n"
        "assert not _given.cache_info().currsize, 'builds the class of all settings'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_installed_metadata_says_the_same(pyproject: dict[str, Any]) -> None:
    """An installed checkout that is older than pyproject.toml would make other tests look at the past."""
    always = {line for line in metadata.requires("streamfleet") or [] if "extra ==" not in line}
    assert always == set(pyproject["project"]["dependencies"])


def test_every_target_of_make_has_one_rule(repository: Path) -> None:
    text = (repository / "Makefile").read_text(encoding="utf-8")
    names = sorted(" ".join(re.findall(r"^\.PHONY: (.*)", text, re.MULTILINE)).split())
    rules = re.findall(r"^([a-z0-9-]+):(?!=)", text, re.MULTILINE)
    assert sorted(rules) == names


def test_entry_points_exist() -> None:
    ours = [
        point for point in metadata.distribution("streamfleet").entry_points if point.value.startswith("streamfleet.")
    ]
    assert {point.name for point in ours} == {"streamfleet", "streamfleet_orphan_guard"}
    assert all(callable(point.load()) for point in ours)


@pytest.mark.parametrize("package", ["common", "gateway"])
def test_lua_is_in_the_package(repository: Path, package: str) -> None:
    there = {path.name for path in (repository / f"{package}/streamfleet/{package}/lua").rglob("*.lua")}
    folder = resources.files(f"streamfleet.{package}").joinpath("lua")
    assert there
    assert {path.name for path in folder.iterdir() if path.name.endswith(".lua")} <= there


@pytest.mark.parametrize("engine", ENGINES)
def test_contracts_know_every_engine_module(repository: Path, pyproject: dict[str, Any], engine: str) -> None:
    """The contract's lists are written by hand; a module left out would be free to import anything."""
    folder = repository / "worker/streamfleet/worker/engine"
    mine = {
        f"streamfleet.worker.engine.{path.stem}"
        for path in folder.iterdir()
        if path.stem == engine or path.name.startswith(f"{engine}_")
    }
    contracts = {contract["id"]: contract for contract in pyproject["tool"]["importlinter"]["contracts"]}
    assert set(contracts[f"engine-{engine}"]["source_modules"]) == mine
    for other in set(ENGINES) - {engine}:
        assert mine <= set(contracts[f"engine-{other}"]["forbidden_modules"])


def test_requirements_name_no_machine(repository: Path) -> None:
    for path in (repository / "requirements").iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"file:|--(extra-)?index|--find-links|https?://|@ /", text), path


def test_pinned_files_agree(repository: Path) -> None:
    """All are installed into one environment, one after the other and in any order."""
    lines = set().union(
        *(
            (repository / f"requirements/{name}.txt").read_text(encoding="utf-8").splitlines()
            for name in ("dev", "vllm", "bench")
        )
    )
    names = [line.partition("==")[0] + line.partition(";")[2] for line in lines]
    assert len(names) == len(set(names))
