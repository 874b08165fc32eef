"""The scripts as files: small, with a header, and put together in the right order."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import resources

import pytest

from streamfleet.common import scripts
from streamfleet.common.limits import QueueLimits
from streamfleet.common.scripts import marked, pieces, sha, source, without_marks
from streamfleet.gateway import broker as gateway_broker
from streamfleet.gateway.webhook_messages import WebhookLimits

FOLDERS = [(resources.files(each.PACKAGE).joinpath("lua"), each.VERBS) for each in (scripts, gateway_broker)]
LUA = {verb: folder for folder, verbs in FOLDERS for verb in verbs}
"""Folder of each verb."""
MAX_LINES = 60
INCLUDE = re.compile(r"-- @include (\w+)")


def text_of(verb: str) -> str:
    return LUA[verb].joinpath(f"{verb}.lua").read_text("utf-8")


def test_there_is_a_file_for_every_verb_and_none_besides() -> None:
    for folder, verbs in FOLDERS:
        assert {file.name.removesuffix(".lua") for file in folder.iterdir() if file.name.endswith(".lua")} == set(verbs)
    assert len(LUA) == sum(len(verbs) for _, verbs in FOLDERS), "a verb is in two packages"


@pytest.mark.parametrize("verb", LUA)
def test_every_verb_is_short_and_says_what_it_takes_and_returns(verb: str) -> None:
    lines = without_marks(text_of(verb)).splitlines()
    assert len(lines) <= MAX_LINES
    header = [line for line in lines if line.startswith("--")]
    for word in ("KEYS: ", "ARGV: ", "Returns"):
        assert any(word in line for line in header), f"the header of {verb}.lua does not say {word.strip(': ')}"


@pytest.mark.parametrize("verb", LUA)
def test_every_part_comes_once_and_before_those_that_need_it(verb: str) -> None:
    """A policy's files come once in each of its functions."""
    came: list[str] = []
    for piece in pieces(verb):
        if piece.number == 1 and piece.path.startswith("lib/"):
            assert piece.path not in came
        for needed in INCLUDE.findall(piece.text):
            assert {f"{folder}/{needed}.lua" for folder in ("lib", *scripts.FOLDERS)} & {*came}
        came.append(piece.path)
    assert came[-1] == f"{verb}.lua"
    assert "".join(piece.text for piece in pieces(verb) if piece.path == came[-1]) == text_of(verb)


def test_a_policy_that_is_left_out_has_a_function_that_returns_false() -> None:
    whole, without = (source("pull", left_out) for left_out in ((), ("tenants",)))
    assert "local function make_tenants()\n" in whole
    assert "local function make_tenants() return false end\n" in without
    assert "charge_words" in whole
    assert "charge_words" not in without
    made = re.findall(r"local function make_(\w+)\(\)\n", source("pull", scripts.POLICIES))
    assert made == ["lengths"], "what only policies ask for"


@pytest.mark.parametrize("verb", LUA)
def test_redis_gets_no_marks(verb: str) -> None:
    assert "-- @" not in source(verb)
    assert source(verb).splitlines() == [line for line in marked(verb).splitlines() if "-- @" not in line]


def test_what_follows_the_keys_stands_in_a_function_of_its_own() -> None:
    assert source("renew").count("\nreturn (function()\n") == 1
    assert source("renew").endswith("\nreturn codes\nend)()\n")


def test_a_script_is_known_by_its_content() -> None:
    assert sha("pull") == hashlib.sha1(source("pull").encode(), usedforsecurity=False).hexdigest()
    assert len({sha(verb) for verb in LUA}) == len(LUA)


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
