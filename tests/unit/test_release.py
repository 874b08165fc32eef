"""`make release`: one version everywhere, no test code in the wheel, the first request of README."""

from __future__ import annotations

import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import release  # noqa: E402

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_version_is_the_same_everywhere() -> None:
    assert release.other_versions(VERSION) == []


def test_setting_the_version_leaves_no_other(tmp_path: Path) -> None:
    for name in release.PLACES:
        for path in ROOT.glob(name):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    release.set_version("7.8.9", tmp_path)
    assert release.other_versions("7.8.9", tmp_path) == []
    assert f"README.md:{line_of_version(tmp_path / 'README.md')} has 7.8.9" in release.other_versions(VERSION, tmp_path)
    (tmp_path / "README.md").write_text("", encoding="utf-8")
    assert release.other_versions("7.8.9", tmp_path) == ["README.md has none"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["wroker"], "no extra wroker; there are "),
        (["--set", "v0.2.0"], "and not v0.2.0"),
        (["--set", "0.2"], "not 0.2"),
    ],
)
def test_a_misspelt_extra_and_a_version_that_is_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["release.py", *words])
    monkeypatch.setattr(release, "set_version", lambda _: pytest.fail("a version was written"))
    monkeypatch.setattr(release, "check_version", lambda _: pytest.fail("a release was begun"))
    with pytest.raises(SystemExit, match="2"):
        release.main()
    assert reason in capsys.readouterr().err


def line_of_version(page: Path) -> int:
    lines = page.read_text(encoding="utf-8").splitlines()
    return lines.index("## Status") + 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("streamfleet/cli/tests/server.py", ""),
        ("streamfleet/cli/test_server.py", ""),
        ("streamfleet/conftest.py", ""),
        ("streamfleet/cli/server.py", "    from tests.support import redis_server\n"),
        ("streamfleet/cli/server.py", "import pytest\n"),
    ],
)
def test_a_wheel_with_test_code_is_refused(tmp_path: Path, name: str, text: str) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("streamfleet/worker/latest.py", "def tested(): ...\n")
    release.check_contents(wheel)
    with zipfile.ZipFile(wheel, "a") as files:
        files.writestr(name, text)
    with pytest.raises(release.CheckFailed, match=name):
        release.check_contents(wheel)


def test_the_first_request_is_found_in_readme() -> None:
    found = release.FIRST_REQUEST.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found[1].startswith("streamfleet enqueue --wait")
