"""Every guard of a remote server's presence, taken out: a test of the openai engine must notice."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType

import pytest

from streamfleet.worker.engine import openai, presence
from tests.unit import test_engine_openai as engine

SOURCE = inspect.getsource(presence)
UNCOUNTED_ONCE = partial(engine.test_a_request_that_was_sent_goes_back_uncounted_once, engine.RESET)
MUTANTS: dict[str, tuple[str, str, Callable[[], Awaitable[None]]]] = {
    "the first fault never counts": ("return before is not None and (", "return (", UNCOUNTED_ONCE),
    "later ones count": ("return before is not None and (", "return False and (", UNCOUNTED_ONCE),
    "an answer clears a suspect": ("self.suspects.pop(request_id, None)", "pass", UNCOUNTED_ONCE),
    "503 counts only where the server is there": (
        " and (not told or before != self._shown)",
        "",
        engine.test_a_503_counts_where_others_are_answered,
    ),
    "answers to others show that it is there": (
        "        self._shown += 1\n",
        "",
        engine.test_a_503_counts_where_others_are_answered,
    ),
    "so does the first question": (
        "self._shown += at_once",
        "pass",
        partial(engine.test_what_a_server_says_to_one_request_alone_counts_from_the_second_time, 503),
    ),
    "a later one does not": (
        "self._shown += at_once",
        "self._shown += 1",
        engine.test_a_503_counts_where_others_are_answered,
    ),
    "not all suspects are remembered": (
        "if before is None and len(faults) >= MOST_REMEMBERED:",
        "if False:",
        engine.test_only_so_many_suspects_are_remembered,
    ),
    "nothing is sent meanwhile": (
        "self.unready, self.allowance = why, 0",
        "self.unready, self.allowance = why, None",
        engine.test_while_a_server_is_away_only_a_question_reaches_it,
    ),
    "an answer from before ends no absence": (
        "        if self._asking is None:\n            self.unready",
        "        if True:\n            self.unready",
        engine.test_an_answer_of_what_ran_before_ends_no_absence,
    ),
    "an answer ends the backoff": (
        "None, 0.0\n\n",
        "None, self._wait_s\n\n",
        engine.test_after_an_answer_the_next_fault_is_the_first_again,
    ),
    "waits have an end": (
        "min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2 * self._wait_s))",
        "max(FIRST_WAIT_S, 2 * self._wait_s)",
        engine.test_while_a_server_is_away_only_a_question_reaches_it,
    ),
    "after an absence one request begins": (
        "not at_once or (",
        "(",
        engine.test_after_an_absence_it_begins_anew_though_a_request_still_runs,
    ),
    "after a reset of all, too": (
        "(wait_s or self._several)",
        "wait_s",
        partial(engine.test_resets_of_all_that_runs_begin_anew_with_one_request, 3, 1),
    ),
    "not where another one still runs": (
        " and not self._runs()",
        "",
        partial(engine.test_resets_of_all_that_runs_begin_anew_with_one_request, 2, 8),
    ),
    "not after one reset": (
        "(wait_s or self._several)",
        "True",
        engine.test_one_reset_does_not_slow_down_a_server_that_is_there,
    ),
    "but after the next one": (
        "(wait_s or self._several)",
        "self._several",
        engine.test_one_reset_does_not_slow_down_a_server_that_is_there,
    ),
    "its log names no request": (", context=Context()", "", engine.test_the_log_of_questions_names_no_request),
    "it ends with its engine": ("self._asking.cancel()", "return", engine.test_an_engine_that_stops_asks_no_more),
}


@pytest.mark.parametrize("guard", MUTANTS)
async def test_a_guard_taken_out_is_noticed(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, test = MUTANTS[guard]
    assert SOURCE.count(old) == 1, f"{old!r} is not the guard any more: change this mutant along with it"
    module = ModuleType("presence_without_a_guard")
    exec(compile(SOURCE.replace(old, new), module.__name__, "exec"), module.__dict__)  # noqa: S102 - our own
    monkeypatch.setattr(openai, "Presence", module.Presence)
    with pytest.raises(AssertionError):
        await test()
