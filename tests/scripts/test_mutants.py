"""Every guard of the scripts, taken out: the tests must notice."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any

import pytest
from redis.exceptions import RedisError

from streamfleet.common import scripts
from streamfleet.common.errors import StreamfleetError
from tests.scripts.conftest import CAUGHT_BY, open_queue
from tests.scripts.histories.steps import make_history
from tests.scripts.mutants import (
    affinity,
    deadlines,
    endings,
    filling,
    forgetting,
    gateway_batches,
    gateway_responses,
    hooks,
    housekeeping,
    leases,
    producers,
    programs,
    pulls,
    repairs,
    same_request,
    tenants,
    tokens,
    webhooks,
)
from tests.scripts.mutants.mutant import HISTORY, LABELLED, MARK, VERBS, Mutant, taken_out, without
from tests.scripts.test_histories import LENGTH, play
from tests.scripts.test_labelled_histories import play as play_labelled
from tests.shifted_clock import ShiftedServer, no_shifting
from tests.support.redis_server import RedisServer

MUTANTS = (
    *endings.MUTANTS,
    *pulls.MUTANTS,
    *leases.MUTANTS,
    *hooks.MUTANTS,
    *housekeeping.MUTANTS,
    *producers.MUTANTS,
    *forgetting.MUTANTS,
    *repairs.MUTANTS,
    *same_request.MUTANTS,
    *tenants.MUTANTS,
    *affinity.MUTANTS,
    *programs.MUTANTS,
    *filling.MUTANTS,
    *deadlines.MUTANTS,
    *tokens.MUTANTS,
    *webhooks.MUTANTS,
    *gateway_batches.MUTANTS,
    *gateway_responses.MUTANTS,
)
HISTORIES = 40
GIVE_UP_S = 20.0

Test = Callable[..., Coroutine[Any, Any, None]]


def test_every_mark_has_a_mutant_and_every_mutant_its_mark() -> None:
    packages = [resources.files(f"streamfleet.{name}").joinpath("lua") for name in ("common", "gateway")]
    folders = [folder for lua in packages for folder in (lua, *map(lua.joinpath, ("lib", *scripts.FOLDERS)))]
    files = [file for each in folders if each.is_dir() for file in each.iterdir() if file.name.endswith(".lua")]
    marks = [mark for file in files for mark in MARK.findall(file.read_text("utf-8"))]
    assert len(marks) == len(set(marks)), "two statements have the same mark"
    assert set(marks) == {mutant.marked_by for mutant in MUTANTS} - {""}


@pytest.mark.parametrize(
    "statement",
    [
        "if a then b() end",
        "if a\n    and b == 'end' then\n  for i = 1, 2 do b({\n    1,\n  }) end\nend",
        "call('XADD',   -- if (\n  1)",
        "local all =\n  a\n  or b",
    ],
)
def test_a_mark_covers_its_statement_in_any_layout(statement: str) -> None:
    assert without(f"a()\n-- @guard it\n{statement}\nb()\n", "it") == "a()\n-- @guard it\nb()\n"


def test_every_mutant_changes_a_script_and_names_a_test_that_exists() -> None:
    texts = [scripts.source(verb) for verb in VERBS]
    assert [
        mutant.guard for mutant in MUTANTS if not mutant.marked_by and not any(mutant.old in each for each in texts)
    ] == []
    assert all(map(callable, map(named_test, {mutant.caught_by for mutant in MUTANTS} - {HISTORY, LABELLED})))


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, marks=[pytest.mark.long] if at % 8 else []) for at, mutant in enumerate(MUTANTS)],
    ids=lambda mutant: mutant.guard,
)
async def test_a_guard_taken_out_is_noticed(
    mutant: Mutant, redis_server: RedisServer, record_property: Callable[[str, object], None]
) -> None:
    assert mutant.verbs, f"no script has {mutant.old or mutant.marked_by!r} any more: change this mutant with the guard"
    with taken_out(mutant):
        catcher = await (history_that_fails if mutant.caught_by in (HISTORY, LABELLED) else verb_test_that_fails)(
            mutant, redis_server.url
        )
    assert catcher, f"{mutant.guard}: no test fails without this guard"
    record_property(CAUGHT_BY, catcher)


async def history_that_fails(mutant: Mutant, url: str) -> str:
    """The first history that notices; empty when none does."""
    if mutant.caught_by == LABELLED:
        return f"labelled history {mutant.seed}" if await _fails(play_labelled(url, mutant.seed)) else ""
    for seed in [mutant.seed, *(seed for seed in range(HISTORIES) if seed != mutant.seed)]:
        if await _fails(play(url, make_history(seed, LENGTH))):
            return f"history {seed}"
    return ""


def named_test(caught_by: str) -> Test:
    module, _, name = caught_by.partition(".")
    test: Test = getattr(importlib.import_module(f"tests.scripts.test_{module}"), f"test_{name}")
    return test


async def verb_test_that_fails(mutant: Mutant, url: str) -> str:
    """The test that notices; empty when it does not."""
    test = named_test(mutant.caught_by)
    asked = inspect.signature(test).parameters
    if "redis_url" in asked:
        return mutant.caught_by if await _fails(test(url)) else ""
    if "shifted_clock" not in asked:
        return mutant.caught_by if await _fails(_run(test, mutant, url)) else ""
    if (reason := no_shifting()) is not None:
        pytest.skip(reason)
    with ShiftedServer() as server:
        return mutant.caught_by if await _fails(test(server)) else ""


async def _run(test: Test, mutant: Mutant, url: str) -> None:
    async with open_queue(url) as queue:
        await (test(queue, mutant.argument) if len(inspect.signature(test).parameters) > 1 else test(queue))


async def _fails(tested: Coroutine[Any, Any, None]) -> bool:
    """True if a test notices something: by an assertion, what it misses, or an error of the scripts or the broker.

    Any other error, such as of a name or a type, is one of the test itself, and is raised.
    """
    try:
        await asyncio.wait_for(tested, GIVE_UP_S)
    except (AssertionError, LookupError, ValueError, RedisError, StreamfleetError, TimeoutError):
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("caught_by", sorted({mutant.caught_by for mutant in MUTANTS} - {HISTORY, LABELLED}))
def test_the_test_passes_with_every_guard_in_place(caught_by: str, redis_server: RedisServer) -> None:
    """Or what fails without a guard would say nothing about it."""
    for mutant in MUTANTS:
        if mutant.caught_by == caught_by:
            assert not asyncio.run(verb_test_that_fails(mutant, redis_server.url)), mutant.guard
