"""Today's scripts do what the kept ones did: the same histories, on two servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamfleet.common import scripts
from streamfleet.common.connection import Connection
from tests.scripts.compare import playing
from tests.scripts.compare.differences import ALLOWED, Allowed, Key, Reply
from tests.scripts.compare.kept import ARCHIVE
from tests.scripts.compare.playing import KINDS, against_kept, play
from tests.scripts.compare.twins import Different, TwinQueue, Twins
from tests.scripts.harness import LIMITS
from tests.scripts.mutants.mutant import taken_out
from tests.scripts.test_mutants import MUTANTS
from tests.shifted_clock import no_shifting

LENGTH = 100
MOST_BYTES = 150_000
NOTICED = {
    "choose: credit is kept": ("every-verb", 0),
    "finish: an id goes with its result": ("every-verb", 0),
    "tenants: nothing is left of turns of who has gone": ("fleet", 3),
}
"""Mutants, and a history that tells each from what it was."""
NOTICED_WITHIN = 150


@pytest.fixture(scope="module")
def both() -> Iterator[Twins]:
    if (reason := no_shifting()) is not None:
        pytest.skip(reason)
    with against_kept() as twins:
        yield twins


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
async def test_no_history_tells_them_apart(both: Twins, kind: str, seed: int) -> None:
    await play(both, kind, seed, LENGTH)


async def test_histories_call_every_script(both: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    called, evaluate = set(), Connection._evaluate

    async def noted(connection: Connection, clients: Any, verb: str, *rest: Any) -> Any:
        called.add(verb)
        return await evaluate(connection, clients, verb, *rest)

    monkeypatch.setattr(Connection, "_evaluate", noted)
    await play(both, "every-verb", 1, 3 * LENGTH)
    assert called == set(scripts.VERBS)


@pytest.mark.parametrize("guard", NOTICED)
async def test_a_mutant_is_told_with_the_steps_that_show_it(
    both: Twins, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "SHORTEN_S", 3.0)
    mutant, (kind, seed) = next(mutant for mutant in MUTANTS if mutant.guard == guard), NOTICED[guard]
    with taken_out(mutant), pytest.raises(AssertionError, match=r"(?s)kept: .*today: .*shortened to:\nStep"):
        await play(both, kind, seed, NOTICED_WITHIN)


def _in_sched(_: str, key: dict[str, Any]) -> dict[str, Any]:
    return {"sched": key | {"value": {b"pace": key["value"][b"now"]}}}


async def test_what_differs_is_told_unless_it_is_meant(both: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    async with both.opened():
        (today, kept), queue = both.connections, TwinQueue(both, LIMITS)
        await kept.command("HSET", "{q}:sched", "1", "5", "pace", "9")
        await today.command("HSET", "{q}:sched", "1", "5")
        await today.command("HSET", "{q}:pace", "now", "9")
        monkeypatch.setattr(both, "allowed", Allowed([Reply("command", lambda _: None, "numbers of fields differ")]))
        await queue.command("HLEN", "{q}:sched")
        with pytest.raises(
            Different, match=r"HLEN.*\nleave other keys: /sched/value/pace\n  kept: b'9'\n  today: None"
        ):
            await queue.dump()
        monkeypatch.setattr(both, "allowed", Allowed(keys=[Key("pace", _in_sched, "split by owner")]))
        await both.compare()
        with pytest.raises(Different, match=r"'HLEN', '{q}:sched'.* replies otherwise: /1\n  kept: 2\n  today: 1"):
            await queue.command("HLEN", "{q}:sched")


def test_each_difference_that_is_meant_has_a_reason() -> None:
    assert all([rule.reason for rule in ALLOWED.replies] + [rule.reason for rule in ALLOWED.keys])


def test_what_is_kept_stays_small() -> None:
    assert ARCHIVE.stat().st_size < MOST_BYTES
