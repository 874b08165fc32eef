"""The releases that are kept: what is in them, and what they and today's code have to agree on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.upgrade.agreed import BODIES, digests, rights
from tests.upgrade.kept import FOLDER, REPOSITORY, kept, name_of, unpack

MOST_BYTES = 200_000

each_release = pytest.mark.parametrize("archive", kept(), ids=name_of)


def test_there_is_one_and_the_page_names_each() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert kept()
    assert {path.name for path in kept()} == {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert all(f"`{path.name}`" in page for path in kept())


@each_release
def test_it_holds_sources_and_nothing_else(archive: Path) -> None:
    assert archive.stat().st_size < MOST_BYTES
    with tarfile.open(archive) as packed:
        members = packed.getmembers()
    assert all(member.isfile() and member.name.startswith("streamfleet/") for member in members)
    assert {Path(member.name).suffix for member in members} <= {".py", ".lua", ".typed"}
    packages = {member.name.split("/")[1] for member in members}
    assert {"common", "producer", "worker", "cli"} <= packages <= {"common", "producer", "worker", "operator", "cli"}


@cache
def said_by(archive: Path, folder: Path) -> Any:
    """Returns the output of `agreed` in a release."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.upgrade.agreed"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(unpack(archive, folder))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("releases")


@each_release
def test_the_same_request_is_the_same_in_every_release(archive: Path, folder: Path) -> None:
    assert said_by(archive, folder)["digests"] == digests()
    assert len(set(digests())) == len(BODIES)  # two bodies that are one request, and another endpoint


@each_release
def test_todays_rules_for_redis_do_for_every_release(archive: Path, folder: Path) -> None:
    allowed = {tuple(each) for each in rights()}
    assert allowed
    assert {tuple(each) for each in said_by(archive, folder)["rights"]} <= allowed
