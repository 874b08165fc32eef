"""The services of the housekeeping: after a step of Redis's clock, with an error of one, and each rule of theirs."""

from __future__ import annotations

import inspect
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import NamedTuple

import pytest
import structlog.testing

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.worker.housekeeping import SERVICES
from streamfleet.worker.services import homes, pace, tenants, turn
from streamfleet.worker.services.turn import PART, Turn, take_turn
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants.mutant import Mutant
from tests.scripts.test_affinity import meet
from tests.scripts.test_mutants import verb_test_that_fails

HOUR_MS, MANY = 3_600_000, 700
"""More records than a turn looks at usually."""


async def fill(queue: Queue) -> None:
    """Sessions, programs and tenants of now, many of each."""
    await meet(queue, "w1")
    await queue.add("high", f"{NOW}-1", tenant="t1", deadline=NOW + HOUR_MS)
    await queue.pull(wanted=0)
    record = struct.pack("<8d", 0, 1, 1, 1, 0, 0, NOW, NOW)
    words = {f"s{number:016x}": f"{NOW} 1.00 1" for number in range(MANY)}
    words |= {f"f{number:016x}": f"{NOW} {NOW} " for number in range(MANY)}
    await queue.command("HSET", queue.keys.sessions, *(word for item in words.items() for word in item))
    await queue.command(
        "HSET", queue.keys.served, *(word for number in range(MANY) for word in (f"t|many{number}", record))
    )


async def times(queue: Queue) -> list[int]:
    """All times that services look after."""
    dump = await queue.dump()
    found = [int(words.split()[0]) for name, words in dump["sessions"].items() if name[0] in "spfw"]
    found += [int(words.split()[1]) for name, words in dump["sessions"].items() if name[0] == "f"]
    found += [int(word) for name, words in dump["served"].items() if name[:2] == "t|" for word in words.split()[6:8]]
    found += [int(value) for value in (await queue.command("HGETALL", queue.keys.clock))[1::2]]
    return [*found, json.loads(await queue.command("GET", queue.keys.pace))["at"]]


async def test_nothing_is_ahead_of_a_clock_that_was_set_back(queue: Queue) -> None:
    await fill(queue)
    await queue.command("HSET", queue.keys.clock, "forgot", NOW)
    await queue.broker.serve()
    back = queue.at(NOW - 500_000)
    await back.broker.serve()
    found = await times(back)
    assert len(found) >= 2 * MANY
    assert max(found) == NOW - 500_000


async def test_a_turn_looks_at_a_part_of_the_records(queue: Queue) -> None:
    await fill(queue)
    later = queue.at(NOW + HOUR_MS + 1)
    await later.broker.serve()
    left = await queue.command("HLEN", queue.keys.sessions), await queue.command("HLEN", queue.keys.served)
    assert min(left) > MANY // 2
    for _ in range(20):
        await later.broker.serve()
    assert await queue.command("HLEN", queue.keys.served) < 9
    assert not await queue.command("EXISTS", queue.keys.sessions)


async def test_turns_look_at_all_records_one_after_another(queue: Queue) -> None:
    await fill(queue)
    seen: list[bytes] = []

    async def look(turn: Turn) -> None:
        async for fields in turn.scan(turn.keys.sessions):
            seen.extend(fields)
            break

    number = await queue.command("HLEN", queue.keys.sessions)
    for _ in range(number // PART + 1):
        await queue.broker.serve(look)
    assert len({*seen}) == number


async def test_an_error_of_a_service_is_logged_and_the_others_run(queue: Queue) -> None:
    await fill(queue)
    await queue.broker.serve()
    await queue.command("SET", queue.keys.loads, "by hand")
    back = queue.at(NOW - 500_000)
    with structlog.testing.capture_logs() as logs:
        await take_turn(back.broker, SERVICES)
    assert [(row["event"], row["service"]) for row in logs] == [("service_failed", "keep_homes")]
    assert json.loads(await queue.command("GET", queue.keys.pace))["at"] == NOW - 500_000
    await queue.command("DEL", queue.keys.loads)
    await back.broker.serve()
    assert max(await times(back)) == NOW - 500_000, "the next turn knows that the clock was set back"


async def test_a_full_server_is_no_error(queue: Queue) -> None:
    await fill(queue)
    async with queue.full_memory():
        await queue.broker.serve()
    await queue.broker.serve()
    assert json.loads(await queue.command("GET", queue.keys.pace))["at"] == NOW


async def test_a_server_that_is_away_ends_the_turn(queue: Queue) -> None:
    async def away(_: Turn) -> None:
        raise BrokerUnavailable("it is away")

    with pytest.raises(BrokerUnavailable):
        await take_turn(queue.broker, [away])


@contextmanager
def without(rule: Rule) -> Iterator[None]:
    """Its module runs without it meanwhile."""
    source = inspect.getsource(rule.module)
    assert rule.old in source, "change this rule with the service"
    changed = ModuleType(rule.module.__name__)
    exec(compile(source.replace(rule.old, rule.new), "without", "exec"), vars(changed))  # noqa: S102 - our own source
    with pytest.MonkeyPatch.context() as patch:
        for name, one in _functions(rule.module).items():
            patch.setattr(one, "__code__", _functions(changed)[name].__code__)
        yield


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    own = {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    methods = {
        f"{name}.{each}": method
        for name, one in own.items()
        if inspect.isclass(one)
        for each, method in vars(one).items()
        if isinstance(method, FunctionType)
    }
    return methods | {name: one for name, one in own.items() if isinstance(one, FunctionType)}


class Rule(NamedTuple):
    """A rule of a service, taken out.

    Attributes:
        module: the service.
        old: text in its source.
        new: what stands in its place.
        caught_by: as in `Mutant`.
    """

    module: ModuleType
    old: str
    new: str
    caught_by: str


RULES = {
    "pace: neither a step of the clock counts nor time in which nobody looked": Rule(
        pace,
        "if not 0 <= passed <= STALE_MS:",
        "if passed == math.inf:",
        "expected.a_clock_that_was_set_back_or_forward_is_not_measured_by",
    ),
    "pace: an idle fleet does not show how fast it is": Rule(
        pace,
        'if before and pace["busy"] and before["busy"]:',
        "if before:",
        "expected.the_time_of_an_idle_fleet_is_that_of_when_it_was_busy",
    ),
    "pace: a burst does not go on": Rule(
        pace,
        "each = min(came, lately, ",
        "each = max(came, lately, ",
        "expected_turns.a_burst_is_not_expected_to_go_on",
    ),
    "pace: the number of senders is bounded": Rule(
        pace, "[MOST_SENDERS:]", "[10**9 :]", "expected_turns.senders_are_bounded_and_fade"
    ),
    "pace: what was written by hand is measured anew": Rule(
        pace,
        "except (LookupError, TypeError,",
        "except (OSError, TypeError,",
        "expected.a_pace_without_all_its_parts_is_unknown",
    ),
    "homes: one that asks for nothing loses what waits for it": Rule(
        homes, "ms < SILENT_MS for ms", "True for ms", "affinity.who_asks_for_nothing_loses_what_waits"
    ),
    "homes: what is no number is none": Rule(
        homes, "if not name.isdigit()", "if False", "affinity.what_hands_add_to_the_homes_is_taken_out"
    ),
    "homes: the number of sessions is bounded": Rule(
        homes, "max(0, known - MOST_RECORDS)", "0", "affinity.the_number_of_sessions_is_bounded"
    ),
    "homes: sessions that nobody uses are forgotten": Rule(
        homes, "now_ms - ms > UNUSED_MS", "False", "affinity.nothing_is_left_of_sessions_that_nobody_uses"
    ),
    "homes: without sessions nothing is asked": Rule(
        homes, "else len(names)", "else None", "affinity.nothing_is_left_of_sessions_that_nobody_uses"
    ),
    "homes: one that has been silent for a minute is lost": Rule(
        homes,
        " or silent[name] >= GONE_MS",
        "",
        "affinity.times_of_homes_and_sessions_are_not_ahead_of_a_clock_that_was_set_back",
    ),
    "homes: nothing is ahead of a clock that was set back": Rule(
        homes, "if ms > now_ms]", "if False]", "services.nothing_is_ahead_of_a_clock_that_was_set_back"
    ),
    "homes: programs are bounded": Rule(homes, 'in b"spfw"', 'in b"spw"', "programs.the_number_of_programs_is_bounded"),
    "homes: a program is known while it is used": Rule(
        homes, 'in b"spf" ', 'in b"sp" ', "programs.what_nobody_uses_is_forgotten_and_then_nothing_is_asked"
    ),
    "homes: no program is ahead of a clock that was set back": Rule(
        homes, 'name.startswith(b"f")', "False", "services.nothing_is_ahead_of_a_clock_that_was_set_back"
    ),
    "tenants: what operators set counts within seconds": Rule(
        tenants, '"rules" if rules else "1"', '"1"', "tenants.a_limit_counts_what_began_since_it_was_set"
    ),
    "tenants: without them nothing is asked": Rule(
        tenants, "names or in_lanes", "True", "tenants.nothing_is_left_of_a_tenant_that_has_gone"
    ),
    "tenants: turns without a record are looked at": Rule(
        tenants, "*sorted(in_lanes.difference(names))", "", "tenants.nothing_is_left_of_a_tenant_that_has_gone"
    ),
    "tenants: where nobody has a turn, the next one starts at the beginning": Rule(
        tenants, "if turns_left == 0", "if False", "tenants.a_lane_in_which_nobody_has_a_turn_begins_anew"
    ),
    "homes: after the clock was set back all records are looked at": Rule(
        homes, " and not turn.set_back:", ":", "services.nothing_is_ahead_of_a_clock_that_was_set_back"
    ),
    "tenants: after the clock was set back all records are looked at": Rule(
        tenants, "if not turn.set_back:", "if True:", "services.nothing_is_ahead_of_a_clock_that_was_set_back"
    ),
    "turn: after the clock was set back a scan begins anew": Rule(
        turn, "0 if self.set_back else ", "", "services.nothing_is_ahead_of_a_clock_that_was_set_back"
    ),
    "turn: what was told of the clock before comes to now": Rule(
        turn, "[*ahead, LAST]", "[LAST]", "services.nothing_is_ahead_of_a_clock_that_was_set_back"
    ),
    "turn: with an error all is looked at once more": Rule(
        turn, "failed and turn.set_back", "False", "services.an_error_of_a_service_is_logged_and_the_others_run"
    ),
    "turn: a scan goes on where the last one ended": Rule(
        turn, "self.scans.get(name, 0)", "0", "services.turns_look_at_all_records_one_after_another"
    ),
}


@pytest.mark.parametrize("name", RULES)
async def test_a_rule_taken_out_is_noticed(name: str, redis_url: str) -> None:
    rule = RULES[name]
    with without(rule):
        assert await verb_test_that_fails(Mutant(name, caught_by=rule.caught_by), redis_url)
