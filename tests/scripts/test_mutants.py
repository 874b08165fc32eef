"""Every guard of the scripts and of the housekeeping's services, taken out: the tests must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import resources
from inspect import getsource, signature
from typing import Any

import pytest
from redis.exceptions import RedisError

from streamfleet.common import scripts
from streamfleet.common.errors import StreamfleetError
from streamfleet.gateway import broker as gateway
from tests.scripts import by_history
from tests.scripts.conftest import CAUGHT_BY, open_queue
from tests.scripts.histories.steps import make_history
from tests.scripts.mutants import LABELLED, MARK, Mutant, Test, mutants_of_tests, service, taken_out, without
from tests.scripts.test_histories import LENGTH, play
from tests.scripts.test_labelled_histories import play as play_labelled
from tests.shifted_clock import ShiftedServer, no_shifting
from tests.support.redis_server import RedisServer

BY_TESTS = mutants_of_tests()
MUTANTS = (*BY_TESTS, *by_history.MUTANTS)
HISTORIES = 40
GIVE_UP_S = 20.0


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


def test_every_mutant_of_a_value_changes_something() -> None:
    texts = "".join(map(scripts.source, (*scripts.VERBS, *gateway.VERBS)))
    assert [each.guard for each in MUTANTS if not each.service and each.old not in texts] == []
    assert [each.guard for each in MUTANTS if each.service and each.old not in getsource(service(each.service))] == []


def _parameter(at: int, mutant: Mutant) -> Any:
    return pytest.param(mutant, marks=[pytest.mark.long] if at % 8 and not mutant.service else [], id=mutant.guard)


@pytest.mark.parametrize("mutant", map(_parameter, *zip(*enumerate(MUTANTS), strict=True)))
async def test_a_guard_taken_out_is_noticed(
    mutant: Mutant, redis_server: RedisServer, record_property: Callable[[str, object], None]
) -> None:
    with taken_out(mutant):
        if callable(mutant.caught_by):
            noticed = await fails_in_test(mutant, mutant.caught_by, redis_server.url)
            catcher = mutant.caught_by.__name__ if noticed else ""
        else:
            catcher = await history_that_fails(mutant, redis_server.url)
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


async def fails_in_test(mutant: Mutant, test: Test, url: str) -> bool:
    """True if a test notices."""
    asked = signature(test).parameters
    if "redis_url" in asked:
        return await _fails(test(url))
    if "shifted_clock" not in asked:
        return await _fails(_run(test, mutant, url))
    if (reason := no_shifting()) is not None:
        pytest.skip(reason)
    with ShiftedServer() as server:
        return await _fails(test(server))


async def _run(test: Test, mutant: Mutant, url: str) -> None:
    async with open_queue(url) as queue:
        await (test(queue, mutant.argument) if len(signature(test).parameters) > 1 else test(queue))


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
@pytest.mark.parametrize(
    "mutant", {(each.caught_by, each.argument): each for each in BY_TESTS}.values(), ids=lambda mutant: mutant.guard
)
async def test_the_test_passes_with_every_guard_in_place(mutant: Mutant, redis_server: RedisServer) -> None:
    """Or what fails without a guard would say nothing about it."""
    assert callable(mutant.caught_by)
    assert not await fails_in_test(mutant, mutant.caught_by, redis_server.url)
