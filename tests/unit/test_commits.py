"""tools/commits.py: what it finds in a history, and what it says where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false")


def git(tree: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def commit(tree: Path, lines: int, *messages: str) -> str:
    (tree / "file").write_text("line\n" * lines)
    git(tree, "add", ".")
    git(tree, "commit", "--allow-empty", *(part for each in messages for part in ("-m", each)))
    return git(tree, "rev-parse", "HEAD")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, 0, "x" * 100)
    return tmp_path


@pytest.fixture
def script(repository: Path) -> Path:
    return repository / "tools/commits.py"


def checked(script: Path, tree: Path, start: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), start]
    environment = os.environ | {"PATH": path}
    return subprocess.run(command, cwd=tree, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("lines", "messages", "fault"),
    [
        (20, ("x" * 72,), ""),
        (21, ("Short", "The reason."), ""),
        (1, ("x" * 73,), "73 characters"),
        (21, ("Short",), "21 lines"),
    ],
)
def test_long_subjects_and_large_changes_without_a_body_are_found(
    script: Path, tree: Path, lines: int, messages: tuple[str, ...], fault: str
) -> None:
    start = git(tree, "rev-parse", "HEAD")
    commit(tree, lines, *messages)
    done = checked(script, tree, start)
    assert done.returncode == bool(fault)
    assert len(done.stderr.splitlines()) == bool(fault)
    assert fault in done.stderr


@pytest.mark.parametrize(
    ("start", "path", "reason"), [("0" * 40, os.environ["PATH"], "no commit 00000000"), ("HEAD", "", "no git")]
)
def test_what_cannot_be_checked_is_named(script: Path, tree: Path, start: str, path: str, reason: str) -> None:
    done = checked(script, tree, start, path)
    assert done.returncode == 0
    assert f"not checked: {reason}" in done.stderr


def test_a_shallow_clone_says_that_it_is_not_checked(script: Path, tree: Path) -> None:
    """The commit may be there, but not what lies between it and the newest."""
    start = git(tree, "rev-parse", "HEAD")
    commit(tree, 1, "x" * 73)
    commit(tree, 2, "Short")
    git(tree, "clone", "--quiet", "--depth", "1", tree.as_uri(), "shallow")
    git(tree / "shallow", "fetch", "--quiet", "--depth", "1", "origin", start)
    done = checked(script, tree / "shallow", start)
    assert done.returncode == 0
    assert "shallow" in done.stderr
    git(tree / "shallow", "fetch", "--quiet", "--unshallow")
    assert checked(script, tree / "shallow", start).returncode == 1
