"""`make release`: one version everywhere, no test code in the wheel, the first request of README."""

from __future__ import annotations

import shutil
import sys
import tomllib
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import release  # noqa: E402

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_version_is_the_same_everywhere_and_the_changelog_begins_with_it() -> None:
    release.check_version(VERSION)


@pytest.mark.parametrize(
    ("version", "first", "good"),
    [
        ("7.8.9", "7.8.9 (2026-11-28)", True),
        ("7.8.9", "7.8.9", True),
        ("7.8.9", "7.8.90 (2026-11-28)", False),
        ("7.8.9", "Not released yet", False),
        ("7.8.9.dev0", "Not released yet", True),
        ("7.8.9.dev0", "7.8.9.dev0", False),
        ("7.8.9.dev0", "7.8.9 (2026-11-28)", False),
    ],
)
def test_first_heading_of_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, first: str, good: bool
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "other_versions", lambda _: [])
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {first}\n\n## 7.8.8 (2026-11-27)\n", encoding="utf-8")
    with nullcontext() if good else pytest.raises(release.CheckFailed, match=r"CHANGELOG\.md does not begin with"):
        release.check_version(version)


@pytest.mark.parametrize(("new", "of_chart"), [("7.8.9", "7.8.9"), ("7.8.9.dev0", "7.8.9-dev.0")])
def test_setting_the_version_leaves_no_other(tmp_path: Path, new: str, of_chart: str) -> None:
    for name in release.PLACES:
        for path in ROOT.glob(name):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    release.set_version(new, tmp_path)
    assert release.other_versions(new, tmp_path) == []
    assert f'\nversion: {of_chart}\nappVersion: "{new}"\n' in (tmp_path / "k8s/Chart.yaml").read_text(encoding="utf-8")
    assert f"README.md:{line_of_version(tmp_path / 'README.md')} has {new}" in release.other_versions(VERSION, tmp_path)
    (tmp_path / "README.md").write_text("", encoding="utf-8")
    assert release.other_versions(new, tmp_path) == ["README.md has none"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["wroker"], "no extra wroker; there are "),
        (["--set", "v0.2.0"], "and not v0.2.0"),
        (["--set", "0.3.0-dev.0"], "and not 0.3.0-dev.0"),
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
