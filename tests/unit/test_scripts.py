"""The scripts as files: small, with a header, and put together in the right order."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import resources

import pytest

from streamfleet.common import scripts
from streamfleet.common.limits import QueueLimits
from streamfleet.common.scripts import Piece, _needed, marked, pieces, sha, source, without_marks
from streamfleet.common.settings import load_all
from streamfleet.gateway import broker as gateway_broker
from streamfleet.gateway.webhook_messages import WebhookLimits
from streamfleet.worker.engine.base import Engine
from streamfleet.worker.main import run_worker

FOLDERS = [(resources.files(each.PACKAGE).joinpath("lua"), each.VERBS) for each in (scripts, gateway_broker)]
LUA = {verb: folder for folder, verbs in FOLDERS for verb in verbs}
"""Folder of each verb."""
MAX_LINES = 60
INCLUDE = re.compile(r"-- @include (\w+)")


def text_of(verb: str) -> str:
    return LUA[verb].joinpath(f"{verb}.lua").read_text("utf-8")


def test_no_verb_is_in_two_packages() -> None:
    assert len(LUA) == sum(len(verbs) for _, verbs in FOLDERS)


@pytest.mark.parametrize("verb", LUA)
def test_every_verb_is_short_and_says_what_it_takes_and_returns(verb: str) -> None:
    lines = without_marks(text_of(verb)).splitlines()
    assert len(lines) <= MAX_LINES
    header = [line for line in lines if line.startswith("--")]
    for word in ("KEYS: ", "ARGV: ", "Returns"):
        assert any(word in line for line in header), f"the header of {verb}.lua does not say {word.strip(': ')}"


@pytest.mark.parametrize("verb", LUA)
def test_every_part_comes_once_and_before_those_that_need_it(verb: str) -> None:
    """A policy's files come once in each of its functions; a part of which nothing is used does not come."""
    came: list[str] = []
    parts = {piece.path for piece in pieces(verb)}
    for piece in pieces(verb):
        if piece.number == 1 and piece.path.startswith("lib/"):
            assert piece.path not in came
        for needed in INCLUDE.findall(piece.text):
            of_name = {f"{folder}/{needed}.lua" for folder in ("lib", *scripts.FOLDERS)} & parts
            assert not of_name or of_name & {*came}
        came.append(piece.path)
    assert came[-1] == f"{verb}.lua"
    assert "".join(piece.text for piece in pieces(verb) if piece.path == came[-1]) == text_of(verb)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("local function a()\nend\nlocal function b() return a() end\nreturn b()\n", "ab"),
        (
            "-- What it does.\nlocal function a()\n  if b() then\n  end\nend\nlocal function b() return a() end\nc()\n",
            "",
        ),
        (
            "local function a() end   -- alone\n-- a()\nfunction t.b() end\nfunction h.c() end\nreturn t.b(), b.a, c\n",
            "b",
        ),
        ("local c\nfunction c()\n  local function a() end\n  function b() a() end\nend\nreturn 1\n", ""),
        ("local function a() return 1 end\nlocal b = {a}\nreturn 'text'..a\n", "a"),
    ],
)
def test_a_function_that_nothing_else_names_is_left_out(text: str, kept: str) -> None:
    needed = _needed([Piece("one.lua", 1, "-- @inside\n"), Piece("two.lua", 3, text)])
    assert re.findall(r"function (?:\w\.)?(\w)", "".join(each.text for each in needed)) == [*kept]
    assert needed[0].text == "-- @inside\n"
    lines = ["", "", "", *text.splitlines(keepends=True)]
    for each in needed[1:]:
        assert each.text == "".join(lines[each.number : each.number + each.text.count("\n")])


def test_a_policy_that_is_left_out_has_a_function_that_returns_false() -> None:
    whole, without = (source("pull", left_out) for left_out in ((), ("tenants",)))
    assert "local function make_tenants()\n" in whole
    assert "local function make_tenants() return false end\n" in without
    assert "charge_words" in whole
    assert "charge_words" not in without
    made = re.findall(r"local function make_(\w+)\(\)\n", source("pull", scripts.POLICIES))
    assert made == [], "lengths are what only policies ask for"


@pytest.mark.parametrize("verb", LUA)
def test_redis_gets_no_marks(verb: str) -> None:
    assert "-- @" not in source(verb)
    assert source(verb).splitlines() == [line for line in marked(verb).splitlines() if "-- @" not in line]


def test_a_script_is_known_by_its_content() -> None:
    assert sha("pull") == hashlib.sha1(source("pull").encode(), usedforsecurity=False).hexdigest()
    assert len({sha(verb) for verb in LUA}) == len(LUA)


def test_a_worker_reads_all_scripts_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is put together at its first call holds the event loop up."""

    def make_engine(*_: object) -> Engine:
        raise StopIteration

    source.cache_clear()
    monkeypatch.setattr("streamfleet.worker.main.logs.configure", lambda _: None)
    with pytest.raises(StopIteration):
        run_worker(*load_all(engine="simulated", health_port=0), make_engine)
    assert source.cache_info().currsize == len(scripts.VERBS)


def test_a_script_that_does_not_exist_is_said() -> None:
    with pytest.raises(KeyError, match="no script is called 'push'"):
        source("push")


@pytest.mark.parametrize(
    ("part", "limits"),
    [
        ("keys", {"prefix", "lanes", "name_chars", "meta_bytes", *QueueLimits().in_scripts()}),
        ("webhooks", set(json.loads(WebhookLimits(now_ms=1).encoded()))),
    ],
)
def test_the_scripts_read_the_limits_that_they_get(part: str, limits: set[str]) -> None:
    """And no others: a name that is misspelt would be nil."""
    with_part = [source(verb) for verb in LUA if any(piece.path == f"lib/{part}.lua" for piece in pieces(verb))]
    assert {name for text in with_part for name in re.findall(r"\bcfg\.(\w+)", text)} == limits
