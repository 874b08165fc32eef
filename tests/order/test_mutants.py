"""Each rule is marked in the model once, and its example fails once the rule is taken out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from tests.order.rules import RULES

FOLDER = Path(__file__).parent
MODULES = ("lanes", "tenants", "homes", "picks", "model", "test_model")
SOURCES = {name: (FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
MARKS = re.findall(r"# rule: (\w+)$", "\n".join(SOURCES.values()), re.MULTILINE)
INSTEAD = {
    "urgent_lane_first": "top = lane",
    "saves_up_while_it_waits": "for lane, share in enumerate([0] * 4):",
    "share_against_the_reserve": "is_open = False",
    "rank_is_deadline_or_patience": "return enqueued + patience",
    "equal_ranks_in_order_of_arrival": "return self.rank, (0, 0)",
    "expired_is_not_started": "late = False",
    "out_of_reach_is_not_started": "return False",
    "nobody_idle_beside_work": "left = dict.fromkeys(some, 0)",
    "shared_while_a_tenant_waits": "return False",
    "least_first": "name = min(waiting, default=None)",
    "weight": "self.lane.tokens[e.tenant] = tokens + cost",
    "settled_by_the_weight_of_the_pick": "more = (cost - charge.run) / tenant.weight",
    "by_rank_in_its_turn": "return rows[-1][1]",
    "nobodys_are_one_tenant": "if e.tenant:",
    "nobodys_get_no_credit": "start = self._start(lane, tenant, cost) if cost else level",
    "unread_costs_the_usual": "return sum(tenant.estimate(e.size, e.limit))",
    "newcomer_starts_a_request_below": "return lane.level",
    "credit_once_an_hour": "if False:",
    "before_those_at_the_level": "return lane.level",
    "no_other_credit": "lane.tokens[name] = max(0, start)",
    "what_comes_back_brings_no_credit": "came = True",
    "history_is_a_run_that_ended": "return self.requests > 0",
    "new_names_among_themselves_are_close": "known = known or 1",
    "level_of_those_in_turn": "least = min(self.tokens.values())",
    "level_rises_by_turns": "level = self.lane.tokens[name]",
    "few_ahead": "return tenant.may_run",
    "a_flood_has_one_row": "found = [e for name in names for e in near[name]]",
    "keeps_its_turn": "break",
    "names_beyond_a_number_are_other": "return given",
    "limit_of_a_tenant": "return True",
    "limit_counts_since_there_is_one": "counted = True",
    "after_its_limit_no_credit": "self._enter(lane, name, 256)",
    "limits_hide_nobody": "own = self.own_rows",
    "charged_at_the_pick": "prompt = 0",
    "lengths_before_any_is_known": "unknown = (0, 0, 0, False)",
    "lengths_by_class_of_limit": "_, mean, rate, exceeded = unknown",
    "limit_that_was_exceeded": "bound = mean if limit is None else limit",
    "summed_up_at_the_end": "tenant.charged += cost - charge.run",
    "settled_by_what_was_used": "return use.prompt + use.output",
    "nothing_if_it_did_not_reach_the_engine": "return charge.run",
    "uncounted_is_charged_by_time": "return prompt + use.output",
    "failed_attempt_is_charged": "return charge.prompt",
    "generated_stays_charged": "return 0",
    "kept_once": "e.charge = Charge(kept=stays)",
    "lost_is_free": "stays = e.charge.run",
    "what_did_not_run_is_free": "tokens = self.lane.tokens[e.tenant]",
    "session_stays_at_its_home": "home = min(self.work, key=lambda n: self.work[n])",
    "least_loaded_is_home": "some = sorted(self.work, key=str)",
    "hottest_is_anybodys": "return home",
    "own_and_nobodys_by_rank": "rows = self.lane.rows()",
    "left_to_its_home_for_a_second": "return True",
    "near_ones_of_another_home_first": "near = True",
    "long_waiting_ones_of_another_home_first": "if near:",
    "with_room_left_what_waited_for_others": "return",
    "own_only_if_nothing_more_urgent": "if self.room and self.few_ahead(e):",
    "in_its_turn_after_three_seconds": "late = [e for e in others if self.foreign(e) and self.waited(e, D)]",
    "another_homes_count_as_later": "rows += [(e.rank, e) for e in late[:1]]",
    "older_program_first": "age = 0",
    "at_most_half_of_the_time": "early = rank - age",
    "after_half_by_its_deadline": "return early",
    "reserve": "reserve = 0",
    "share_is_bounded": "return slots",
    "who_gives_way": "return 0, 0, 0, lost",
    "least_work_lost": "lost = self.ran",
    "interrupted_three_times_stays": "if False:",
    "what_would_be_late_stays": "return False",
    "what_came_by_its_share_stays": "if False:",
    "none_if_not_enough": "return some",
    "back_at_its_old_rank": "e.home, e.until, e.came_back, e.rank = home, until, True, e.rank + 9",
    "held_for_a_while": "return now + HELD",
}
"""Text in the place of a marked line; `pass` where nothing is said."""


def mutated(name: str) -> dict[str, str]:
    """Sources in which a rule's line is replaced."""
    line = re.compile(rf"^( *)(\S.*)  # rule: {name}$", re.MULTILINE)
    return {
        module: line.sub(lambda found: found[1] + INSTEAD.get(name, "pass"), source)
        for module, source in SOURCES.items()
    }


@pytest.fixture
def package() -> Iterator[str]:
    """Name under which a copy of the model is imported."""
    yield "order_mutated"
    for name in MODULES:
        sys.modules.pop(f"order_mutated.{name}", None)


@cache
def compiled(package: str, name: str, source: str) -> CodeType:
    return compile(source.replace("tests.order.", f"{package}."), f"{package}/{name}.py", "exec")


def load(package: str, sources: dict[str, str]) -> ModuleType:
    """Import the copy; returns its examples."""
    module = ModuleType(package)
    for name, source in sources.items():
        module = sys.modules[f"{package}.{name}"] = ModuleType(f"{package}.{name}")
        exec(compiled(package, name, source), vars(module))  # noqa: S102 - our own source
    return module


def test_rules_are_marked_once() -> None:
    assert sorted(MARKS) == sorted(RULES)
    assert set(INSTEAD) <= set(RULES)


def test_every_rule_has_an_example(package: str) -> None:
    examples = load(package, SOURCES)
    assert {name for name in vars(examples) if name.startswith("test_")} == {f"test_{name}" for name in RULES}
    for name in RULES:
        getattr(examples, f"test_{name}")()


@pytest.mark.parametrize("name", RULES)
def test_its_example_fails_without_the_rule(name: str, package: str) -> None:
    sources = mutated(name)
    assert sources != SOURCES
    with pytest.raises(AssertionError):
        getattr(load(package, sources), f"test_{name}")()
