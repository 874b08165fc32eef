"""Ranking by program: turns of an older program go before those of younger ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamfleet.common.broker.types import Claim, Home
from streamfleet.common.protocol import Lane
from streamfleet.worker.services.homes import keep_homes
from tests.scripts.harness import NOW, PATIENCE, Queue, ids
from tests.scripts.mutants import fails_without

OLD, YOUNG = {"program": "old"}, {"program": "young"}
MINUTE = 60_000


def ranking(queue: Queue) -> Queue:
    return queue.with_limits(rank_by_program="on")


async def first_turns(queue: Queue, *labels: Mapping[str, str]) -> None:
    """Each program's first turn was a minute ago, one ms behind the other, and has ended."""
    for number, label in enumerate(labels):
        at = NOW - MINUTE + number
        await queue.at(at).add("low", f"{at}-0", **label)
        lease = (await queue.at(at).pull("w1")).claims[0].lease
        await queue.complete("w1", lease)


async def taken(queue: Queue, wanted: int = 10) -> Sequence[str]:
    """Sequence numbers of what a pull takes, in its order."""
    return [name.rpartition("-")[2] for name in ids((await queue.pull("w1", wanted)).claims)]


async def ranks(queue: Queue) -> dict[str, int]:
    """Ranks of what waits in lane high, by sequence number, relative to NOW."""
    await queue.pull("w9", 0)
    sets = [rows for key, rows in (await queue.dump()).items() if re.match(r"ready:high(:t:|$)", key)]
    return {member.split()[0].rpartition("-")[2]: int(score) - NOW for rows in sets for member, score in rows}


async def test_a_later_turn_of_an_older_program_goes_before_a_younger_programs(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD, YOUNG)
    await queue.add("high", f"{NOW}-1")
    await queue.add("high", f"{NOW}-2", **YOUNG)
    await queue.add("high", f"{NOW}-3", program="new")
    await queue.add("high", f"{NOW}-4", **OLD)
    assert await taken(queue) == ["4", "2", "1", "3"]


async def test_off_they_go_by_their_own_arrival_and_nothing_is_kept(queue: Queue) -> None:
    await first_turns(queue, OLD, YOUNG)
    await queue.add("high", f"{NOW}-1", **YOUNG)
    await queue.add("high", f"{NOW}-2", **OLD)
    assert await taken(queue) == ["1", "2"]
    assert "sessions" not in await queue.dump()


async def test_requests_of_no_program_keep_their_rank_and_nothing_is_kept(queue: Queue) -> None:
    queue = ranking(queue)
    await queue.add("high", f"{NOW}-1", tenant="t")
    assert await ranks(queue) == {"1": PATIENCE}
    assert "sessions" not in await queue.dump()


async def test_a_session_is_a_program_where_none_is_named(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, {"session": "s"}, {"session": "s", "program": "a"})
    await queue.add("high", f"{NOW}-1", session="s", program="b")  # new
    await queue.add("high", f"{NOW}-2", session="s", program="a")
    await queue.add("high", f"{NOW}-3", session="s")
    await queue.add("high", f"{NOW}-4", session="a")  # a session is no program of the same name
    await queue.add("high", f"{NOW}-5", program="a", tenant="t")  # another tenant's is another
    assert await ranks(queue) == {
        "3": PATIENCE - MINUTE, "2": PATIENCE - MINUTE + 1, "1": PATIENCE, "4": PATIENCE, "5": PATIENCE,
    }  # fmt: skip


@fails_without("program: a deadline that was given stays")
async def test_a_deadline_that_was_given_stays(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    await queue.add("high", f"{NOW}-1", deadline=NOW + 50_000, **OLD)
    await queue.add("high", f"{NOW}-2", deadline=NOW + 40_000)
    assert await ranks(queue) == {"2": 40_000, "1": 50_000}


@fails_without("program: close deadlines of others go first")
async def test_close_deadlines_of_others_go_first(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    later = NOW + 2 * PATIENCE
    await queue.at(later).add("high", f"{later}-1", **OLD)
    await queue.at(later).add("high", f"{later}-2", deadline=later + PATIENCE // 2 - 1)
    await queue.at(later).add("high", f"{later}-3", deadline=later + PATIENCE // 2 + 1)
    assert await taken(queue.at(later)) == ["2", "1", "3"]


async def test_a_turn_with_a_ttl_goes_ahead_too_by_at_most_half_of_it(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    await queue.add("high", f"{NOW}-1", ttl=600_000, **OLD)
    await queue.add("high", f"{NOW}-2", ttl=10_000, **OLD)
    assert await ranks(queue) == {"2": 5_000, "1": 600_000 - MINUTE}


@fails_without("program: a turn that has waited long goes by its own deadline")
async def test_a_turn_with_a_ttl_ends_in_time(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    await queue.add("high", f"{NOW}-1", id="r", ttl=10_000, **OLD)
    assert await ranks(queue) == {"1": 5_000}
    _, seen = await queue.at(NOW + 5_000).broker.expire()
    assert await ranks(queue) == {"1": 10_000}  # it has waited for so long that it goes by its own deadline
    ended, seen = await queue.at(NOW + 9_999).broker.expire(seen)
    assert ended == 0
    assert (await queue.at(NOW + 10_000).broker.expire(seen))[0] == 1
    assert (await queue.dump())["result:r"]["status"] == "expired"


async def test_a_turn_that_goes_ahead_to_just_the_patience_ends_in_time(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    await queue.add("high", f"{NOW}-1", ttl=PATIENCE + MINUTE, **OLD)
    assert await ranks(queue) == {"1": PATIENCE + 1}
    _, seen = await queue.at(NOW + PATIENCE + 1).broker.expire()
    assert (await queue.at(NOW + PATIENCE + MINUTE).broker.expire(seen))[0] == 1


@fails_without("program: the housekeeping looks for deadlines among ranks to come only")
async def test_a_turn_that_comes_back_ends_in_time(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    await queue.add("high", f"{NOW}-1", id="r", ttl=10_000, **OLD)
    (claim,) = (await queue.pull("w1")).claims
    late = queue.at(NOW + 6_000)
    _, seen = await late.broker.expire()
    await late.broker.release("w1", [claim.lease])
    assert await ranks(late) == {"1": 10_000}  # the rank ahead of it is past: nobody would look there again
    assert (await queue.at(NOW + 10_000).broker.expire(seen))[0] == 1


async def test_a_turn_that_comes_back_keeps_its_place(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD, YOUNG)
    await queue.add("high", f"{NOW}-1", **OLD)
    (claim,) = (await queue.pull("w1")).claims
    await queue.broker.release("w1", [claim.lease])
    assert await ranks(queue) == {"1": PATIENCE - MINUTE}


@fails_without("homes: a program is known while it is used", 'in b"spf" ', 'in b"sp" ', service="homes")
async def test_what_nobody_uses_is_forgotten_and_then_nothing_is_asked(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD)
    await queue.at(NOW + 3_500_000).broker.serve(keep_homes)
    assert [name for name in (await queue.dump())["sessions"] if name[0] == "f"]
    await queue.at(NOW + 3_600_001).broker.serve(keep_homes)
    assert {"sessions", "lanes"}.isdisjoint(await queue.dump())


@fails_without("homes: programs are bounded", 'in b"spfw"', 'in b"spw"', service="homes")
async def test_the_number_of_programs_is_bounded(queue: Queue) -> None:
    queue = ranking(queue)
    many = [word for number in range(100_000) for word in (f"f{number:016x}", f"{NOW - number} 1.00 ")]
    for start in range(0, len(many), 10_000):
        await queue.command("HSET", queue.keys.sessions, *many[start : start + 10_000])
    for number in range(20):
        await queue.add("high", f"{NOW}-{number}", program=f"new-{number}")
    assert len(await taken(queue, 20)) == 20
    await queue.broker.serve(keep_homes)
    assert await queue.command("HLEN", queue.keys.sessions) <= 100_000


async def test_with_homes_and_tenants_nothing_is_left_behind(queue: Queue) -> None:
    queue = ranking(queue)
    await first_turns(queue, OLD, YOUNG)
    for turn in range(12):
        label = OLD if turn % 2 else YOUNG
        await queue.add("high", f"{NOW}-{turn}", session=f"s{turn % 3}", tenant=("", "a")[turn % 4 // 2], **label)
    claims: list[Claim] = []
    for worker in ("w1", "w2"):
        claims += (await queue.pull(worker, 0, home=Home("a", 0))).claims
    for worker in ("w1", "w2", "w1", "w2"):
        pulled = await queue.at(NOW + 2_000).pull(worker, 10, home=Home("a", 0))
        claims += pulled.claims
        await queue.complete(worker, *[claim.lease for claim in pulled.claims])
    assert len(claims) == 12
    assert {claim.lease.lane for claim in claims} == {Lane.HIGH}
    assert {"tickets", "ready:high"}.isdisjoint(await queue.dump())
