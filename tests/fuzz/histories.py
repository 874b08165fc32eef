"""Random histories of both kinds against the scripts, and against scripts without a guard of tenants and homes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from tests.scripts import by_history, test_damage, test_histories, test_labelled_histories
from tests.scripts.histories.labelled_fleet import make
from tests.scripts.histories.steps import make_history
from tests.scripts.mutants import Mutant, mutants_of_tests, taken_out
from tests.scripts.test_histories import tell_shortest

Told = Callable[[int], None]
DAMAGE = 100
"""Steps of other histories that stand for one queue that is damaged."""


def play_plain(url: str, first: int, steps: int, told: Told) -> list[str]:
    """Play histories without sessions until so many steps are played. Returns what went wrong."""
    length = test_histories.LENGTH

    def play(seed: int) -> Coroutine[Any, Any, None]:
        return tell_shortest(seed, make_history(seed, length), lambda some: test_histories.play(url, some))

    return _play(play, first, steps, length, told)


def play_labelled(url: str, first: int, steps: int, told: Told) -> list[str]:
    """The same with tenants, sessions and limits."""
    length = test_labelled_histories.LENGTH

    def play(seed: int) -> Coroutine[Any, Any, None]:
        steps_of = make(seed, length)[1]
        return tell_shortest(seed, steps_of, lambda some: test_labelled_histories.play(url, seed, some))

    return _play(play, first, steps, length, told)


def play_damaged(url: str, first: int, steps: int, told: Told) -> list[str]:
    """Damaged keys under load: one seed for so many steps."""
    return _play(lambda seed: test_damage.play(url, seed), first, steps, DAMAGE, told)


def _play(
    play: Callable[[int], Coroutine[Any, Any, None]], first: int, steps: int, length: int, told: Told
) -> list[str]:
    problems: list[str] = []
    for number in count():
        told(min(steps, number * length))
        if number * length >= steps:
            return problems
        try:
            asyncio.run(play(first + number))
        except Exception as error:  # noqa: BLE001 - what is found is told, and the rest goes on
            problems.append(str(error))
    raise AssertionError


def break_scripts(url: str, told: Told) -> list[str]:
    """Take each guard of tenants and homes out that a history notices. Returns those whose history does not notice."""
    missed = []
    mutants = {mutant.guard: mutant for mutant in (*mutants_of_tests(), *by_history.MUTANTS)}
    for number, (guard, seed) in enumerate(by_history.SEEDS.items(), 1):
        if not _notices(url, mutants[guard], seed):
            missed.append(f"{guard}: history {seed} passes without it")
        told(number)
    return missed


def _notices(url: str, mutant: Mutant, seed: int) -> bool:
    with taken_out(mutant):
        try:
            asyncio.run(test_labelled_histories.play(url, seed))
        except Exception:  # noqa: BLE001 - a script that aborts is noticed as well
            return True
    return False
