"""The kept release, and that no rollout from one that does not fit can pass. `make upgrade` plays the rollouts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import program
from tests.upgrade import release as releases
from tests.upgrade.__main__ import QUICK, roll
from tests.upgrade.release import Release

pytestmark = [pytest.mark.kill, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def release() -> Release:
    return releases.last()


@pytest.mark.long
def test_a_commit_can_become_the_next_release() -> None:
    """Its archive has all that the processes of a rollout import."""
    if subprocess.run([program("git"), "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("this copy has no history")
    assert releases.pack("HEAD").protocol >= releases.last().protocol


def test_a_release_that_speaks_another_protocol_cannot_pass(release: Release) -> None:
    """Mutants of it are noticed: `make upgrade`."""
    (line,) = roll(release._replace(protocol=7), QUICK, 20_262)
    assert "protocol 7" in line


def test_what_is_kept_of_a_release_is_read_again(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "FOLDER", tmp_path)
    releases.keep(release, tmp_path)
    assert releases.last() == release
