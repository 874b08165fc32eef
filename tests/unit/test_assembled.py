"""The check of the assembled scripts in `make lint`."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from streamfleet.common import scripts
from tests import programs
from tests.scripts import assembled
from tests.scripts.assembled import findings, free, main, naming, passed, tightened

HELPERS = """\
local function used() return misspelt end
local function used_by_one() return 1 end
local function used_by_none() return 2 end
"""
BOUNDS = '# the queue\n"pull" = {lines = 100, free = 10}\n'


def test_findings_are_told_by_the_lines_of_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.program("luacheck")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scripts, "_PACKAGES", {})
    files = {
        "__init__.py": "",
        "lua/lib/helpers.lua": HELPERS,
        "lua/lib/other.lua": "local function other() return used() end\n",
        "lua/a_verb.lua": "-- @include helpers\n-- @include other\nreturn other()\n",
        "lua/other_verb.lua": "-- @include other\n-- @include helpers\nreturn other() + used_by_one() + used()\n",
    }
    for name, text in files.items():
        path = tmp_path / "made_up_scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert findings({"made_up_scripts": scripts.add("made_up_scripts")}) == [
        "made_up_scripts/lua/lib/helpers.lua:1: accessing undefined variable 'misspelt' (W113)",
        "made_up_scripts/lua/lib/helpers.lua:3: no script needs the function used_by_none",
        "made_up_scripts/lua/lib/other.lua:1: accessing undefined variable 'used' (W113, in other_verb)",
    ]


def test_what_could_not_be_checked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(assembled, "sizes", lambda **_: iter([("pull", {"lines": 100})]))
    monkeypatch.setattr(assembled, "BOUNDS", tmp_path / "bounds.toml")
    assembled.BOUNDS.write_text(BOUNDS, "utf-8")
    assert main() == 0
    said = "not run: 1 (needs luac5.1: sudo apt-get install lua5.1), 1 (needs luacheck: sudo apt-get install lua-check)"
    assert said in capsys.readouterr().out.splitlines()


def test_local_variables_are_added_until_a_server_refuses() -> None:
    def load(more: str) -> None:
        if more.count("free_") > 7:
            raise redis.ResponseError("main function has more than 200 local variables")

    assert free(load) == 7


def test_a_size_beyond_its_bound_is_named_with_what_to_do() -> None:
    bounds = {"pull": {"lines": 100, "free": 10}, "push": {"lines": 9}}
    assert passed({"pull": {"lines": 100, "free": 10, "upvalues": 40}, "push": {"lines": 9}}, bounds) == []
    assert passed({"pull": {"lines": 1010, "free": 9, "bytes": 5, "upvalues": 41}}, bounds) == [
        "push is gone: take its line out of bounds.toml",
        *(
            f"pull: {said}: write less, or argue for another bound in bounds.toml"
            for said in ("lines 1,010, bound 100", "free 9, bound 10", "bytes 5, bound None", "upvalues 41, bound 40")
        ),
    ]


def test_bounds_are_tightened_and_never_loosened() -> None:
    assert tightened(BOUNDS, {"pull": {"lines": 50, "free": 30}}) == BOUNDS.replace("100", "53").replace("10}", "27}")
    assert tightened(BOUNDS, {"pull": {"lines": 200, "free": 5}}) == BOUNDS


def test_files_that_name_a_policy_are_told(tmp_path: Path) -> None:
    files = {
        "common/a.py": "tenant",
        "common/lua/b.lua": "-- homes",
        "common/envelope.py": "tenant",
        "common/connection/c.py": "home",
        "worker/d.py": "broker.connection.home(1); homely; tenanted",
        "worker/e.py": "Home()",
        "gateway/f.py": "tenant home",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert naming("tenants", tmp_path) == ["common/a.py"]
    assert naming("homes", tmp_path) == ["common/lua/b.lua", "worker/e.py"]
