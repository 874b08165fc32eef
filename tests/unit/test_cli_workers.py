"""Output of `streamfleet workers` from anything that workers, or others, write about them."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from streamfleet.common.replies import description
from streamfleet.operator.commands.workers_view import render, summary
from streamfleet.operator.fleet import WorkerView, worker_views
from streamfleet.operator.json_view import worker_object

NOW = 1_000_000_000
GOOD = {"state": "ready", "engine": "vllm", "models": ["/models/small"], "slots": 32, "version": "0.1.0"}


def views(words: dict[str, Any], held: dict[str, int] | None = None) -> list[WorkerView]:
    return worker_views({"w1": words}, {"w1": held} if held else {}, NOW)


def shown(found: list[WorkerView]) -> str:
    written = StringIO()
    Console(file=written, width=200, force_terminal=True, color_system=None).print(render(found))
    return written.getvalue()


def test_one_that_works() -> None:
    words = {**GOOD, "seen_ms": NOW - 2_000, "started_ms": NOW - 7_200_000, "oldest_held_ms": NOW - 3_000}
    text = shown(views(words, {"high": 2, "low": 1}))
    for part in ("w1", "ready", "vllm: /models/small", "0.1.0", "2 h", "2 s ago", "3/32", "high 2, low 1", "3 s"):
        assert part in text
    assert "1 alive, 1 ready, running 3 of 32 slots" in text


@pytest.mark.parametrize(
    ("told", "cells", "values"),
    [
        ({"kv_use": 0.42, "mean_batch": 6.5}, ["42%", "6.5"], (0.42, 6.5)),
        ({"kv_use": 0, "mean_batch": 12}, ["0%", "12"], (0.0, 12.0)),
        ({"kv_use": None, "mean_batch": None}, ["-", "-"], (None, None)),
        ({}, ["-", "-"], (None, None)),
        *(({"kv_use": wrong, "mean_batch": wrong}, ["-", "-"], (None, None)) for wrong in (-1, "1", True, 1e300, [1])),
    ],
)
def test_kv_use_and_mean_batch(told: dict[str, Any], cells: list[str], values: tuple[float | None, ...]) -> None:
    found = views({**GOOD, "seen_ms": NOW, **told})
    row = next(line for line in shown(found).splitlines() if line.strip().startswith("w1")).split()
    assert row[row.index("0/32") + 1 :][:2] == cells
    value = worker_object(found[0])
    assert (value["kv_use"], value["mean_batch"]) == values


@pytest.mark.parametrize(("told", "limited"), [({"limited": True}, True), ({"limited": "yes"}, False), ({}, False)])
def test_one_whose_server_takes_fewer_says_how_many(told: dict[str, Any], limited: bool) -> None:
    found = views({**GOOD, "seen_ms": NOW, "slots": 8, **told})
    assert ("ready, limited to 8 by the server" in shown(found)) is limited
    assert worker_object(found[0])["limited"] is limited


def test_one_that_does_not_take_requests_says_why() -> None:
    words = {**GOOD, "state": "unfit", "unready": "every request fails: the engine answered 500", "seen_ms": NOW}
    (view,) = views(words)
    assert (view.takes_requests, view.why_not) == (False, "every request fails: the engine answered 500")
    assert "1 alive, 0 ready" in shown([view])
    (hung,) = views({**GOOD, "unready": "the event loop does not answer", "seen_ms": NOW})
    assert not hung.takes_requests


def test_silent_ones_are_shown_while_they_hold_something() -> None:
    silent = {**GOOD, "seen_ms": NOW - 60_000}
    text = shown(views(silent, {"normal": 4}))
    assert "silent" in text
    assert "1 silent with requests" in text
    (idle,) = views(silent)
    assert summary([idle], 1) == (
        "no worker is alive: start one with `streamfleet worker`; 1 silent without requests left out"
    )
    assert "w1" not in shown([idle])
    assert worker_object(idle)["name"] == "w1"


@pytest.mark.parametrize(
    ("lease_ms", "alive"),
    [(10_000, False), (60_000, True), (10**12, True), (-1, False), (True, False), ("60000", False)],
)
def test_who_has_a_long_lease_may_be_silent_for_longer(lease_ms: object, alive: bool) -> None:
    words = {**GOOD, "lease_ms": lease_ms}
    assert views({**words, "seen_ms": NOW - 60_000})[0].alive is alive
    assert not views({**words, "seen_ms": NOW - 601_000})[0].alive, "nobody lives for ever by saying so"


@pytest.mark.parametrize("field", ["state", "engine", "version", "unready"])
def test_a_terminal_is_neither_told_what_to_do_nor_coloured(field: str) -> None:
    evil = "\x1b]0;owned\x07[red]no[/red][/]\nw2 ready\x9b2J\ud800"
    text = shown(views({**GOOD, "seen_ms": NOW, field: evil, "models": [evil]}, {"[bold]x": 1}))
    assert not set(text) & {"\x1b", "\x07", "\x9b"}
    assert not any(line.startswith("w2 ready") for line in map(str.strip, text.splitlines()))
    assert "[red]no[/red]" in text.replace("\n", "").replace(" ", "")
    json.dumps(worker_object(views({**GOOD, field: evil})[0]), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[1]",
        b'{"state":{"a":[1]},"engine":7,"models":[[],{}],"slots":true,"version":null,"seen_ms":"now"}',
        b'{"slots":1e999,"seen_ms":NaN,"started_ms":-5,"oldest_held_ms":1e300}',
        b'{"kv_use":NaN,"mean_batch":Infinity}',
        b'{"models":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ],
)
def test_what_is_no_description_breaks_nothing(text: bytes) -> None:
    found = worker_views({"w1": description(text)}, {"w1": {"low": 1}}, NOW)
    assert "w1" in shown(found)
    json.dumps([worker_object(each) for each in found], allow_nan=False)


def test_a_book_is_cut_short() -> None:
    assert len(shown(views({**GOOD, "seen_ms": NOW, "state": "x" * 1_000_000}))) < 20_000
