"""Homes of sessions: who gets what, what becomes of homes that die, and that nothing waits long or is left behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from streamfleet.common.broker.types import Home, Pulled, Role, TenantRule
from streamfleet.worker.services.homes import keep_homes
from streamfleet.worker.services.turn import take_turn
from tests.scripts.harness import NOW, PATIENCE, Queue, ids
from tests.scripts.mutants import fails_without

D = 1_000
"""Longest time for which an idle worker leaves a request to another."""


async def pull(queue: Queue, worker: str, wanted: int = 1, start: str = "a", held: int = 0, **more: Any) -> Pulled:
    """A pull of a worker with a prefix cache."""
    return await queue.pull(worker, wanted, home=Home(start, held), **more)


async def meet(queue: Queue, *workers: str) -> None:
    """Make workers known as homes: a session is there, and each has asked for work."""
    await queue.add("low", "1-1", session="first", deadline=NOW + 9_000_000)
    (claim,) = (await pull(queue, workers[0])).claims
    for worker in workers:
        await pull(queue, worker, 0)
    await queue.complete(workers[0], claim.lease)


def prompt(text: str, length: int = 1_100) -> str:
    """A body whose prompt begins with a text of that length."""
    return json.dumps({"messages": [{"role": "system", "content": text * (length // len(text))}]})


async def take(queue: Queue, worker: str, wanted: int = 5, **more: Any) -> Sequence[str]:
    return ids((await pull(queue, worker, wanted, **more)).claims)


async def home_and_other(queue: Queue) -> tuple[str, str]:
    """Of w1 and w2, the one for which tenant a's requests wait, and the other; a is the first in turn."""
    dump = await queue.dump()
    assert next(tenant for tenant, tokens in dump["turns:high"] if tokens >= 0) == "a"
    (number,) = {ticket.partition(" ")[0] for ticket in dump["tickets"].values()}
    return ("w1", "w2") if number == "1" else ("w2", "w1")


@fails_without("affinity: a session stays where its cache is")
async def test_turns_of_a_session_go_to_the_worker_of_the_first(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    for turn in range(1, 6):
        await queue.add("high", f"{NOW}-{turn}", session="first")
        assert await take(queue, "w2") == []
        assert await take(queue, "w1") == [f"{NOW}-{turn}"]


async def test_sessions_spread_over_the_least_loaded(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    for number in range(6):
        await queue.add("high", f"{NOW}-{number}", session=f"s{number}")
    assert len(await take(queue, "w1")) == 3
    assert len(await take(queue, "w2")) == 3


@fails_without("affinity: homes spread in an idle fleet")
async def test_homes_spread_in_an_idle_fleet(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    taken = []
    for number in range(12):
        await queue.add("high", f"{NOW}-{number}", session=f"s{number}")
        for worker in ("w1", "w2"):
            for claim in (await pull(queue, worker)).claims:
                taken.append(worker)
                await queue.complete(worker, claim.lease)
    assert 3 <= taken.count("w1") <= 9


@fails_without("affinity: what waits for another is left to it for a second")
@fails_without("affinity: who takes it is its home")
@fails_without("affinity: it is left to its home for a whole second", ", URGENT, AHEAD = 1000", ", URGENT, AHEAD = 500")
async def test_an_idle_worker_takes_what_has_waited_long(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    await queue.add("high", f"{NOW}-2", session="first")
    pulled = await pull(queue, "w2", 5)
    assert (pulled.claims, pulled.role, pulled.soonest_ms) == ([], Role.WATCHER, D)
    later = queue.at(NOW + D)
    claims = (await pull(later, "w2", 5)).claims
    assert [(claim.lease.stream_id, claim.passed_ms) for claim in claims] == [(f"{NOW}-1", D), (f"{NOW}-2", D)]
    await later.add("high", f"{NOW + D}-1", session="first")  # its home is the taker's now
    assert await take(later, "w1") == []
    assert await take(later, "w2") == [f"{NOW + D}-1"]


@fails_without("order: a clock that is set back holds nothing up")
async def test_a_clock_that_is_set_back_holds_nothing_up(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    await queue.add("high", f"{NOW + 5}-1", session="first")  # ahead of the clock: it counts as enqueued now
    await pull(queue, "w1", 0)
    assert await take(queue.at(NOW - 500_000), "w2") == [f"{NOW}-1", f"{NOW + 5}-1"]


@fails_without(
    "homes: one that has been silent for a minute is lost", " or silent[name] >= GONE_MS", "", service="homes"
)
async def test_times_of_homes_and_sessions_are_not_ahead_of_a_clock_that_was_set_back(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first", program="its")
    await take(queue, "w1")
    await queue.broker.serve(keep_homes)
    back = NOW - 500_000
    await queue.at(back).broker.serve(keep_homes)
    sessions = (await queue.dump())["sessions"]
    times = [int(words.split(" ")[0]) for name, words in sessions.items() if name[0] in "spfw"]
    assert len(times) >= 3
    assert max(times) == back
    await queue.at(back + 60_000).broker.serve(keep_homes)
    assert "loads" not in await queue.dump(), "nobody has asked since"


@fails_without("affinity: a session that has come meanwhile stays")
@fails_without("affinity: who has asked meanwhile stays a home")
async def test_what_has_come_since_the_look_stays(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w2", 0)
    sessions = (await queue.dump())["sessions"]
    homes = {name[2:].encode(): words.encode() for name, words in sessions.items() if name[0] == "w"}
    for worker in ("w1", "w2"):
        await pull(queue.at(NOW + 1), worker, 0)
    await queue.broker.lose_homes(homes, None)
    assert len((await queue.dump())["loads"]) == 2
    assert [*await take(queue, "w1", 1), *await take(queue, "w2", 1)] == [f"{NOW}-1"]
    await queue.broker.lose_homes({}, len(sessions) - 1)
    assert (await queue.dump())["sessions"].keys() == sessions.keys()


async def test_what_was_interrupted_elsewhere_goes_where_nothing_else_is(queue: Queue) -> None:
    """It goes before what another tenant has waiting for its home, which has had no time yet."""
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", tenant="b")
    lease = await queue.claim("w3")  # it has no prefix cache, and so it is no home
    await queue.broker.release("w3", [lease], gave_way=True, kept={lease: ("run", 3)}, generated={lease: 7})
    await queue.add("high", f"{NOW}-2", tenant="a", session="its")
    await pull(queue, "w1", 0)
    home, other = await home_and_other(queue)
    assert await take(queue, other, 1) == [f"{NOW}-1"]
    assert await take(queue, home, 1) == [f"{NOW}-2"]


async def interrupt(queue: Queue, number: int) -> None:
    """All that waits, this number, is claimed by w1 and interrupted."""
    leases = [claim.lease for _ in range(0, number, 64) for claim in (await queue.pull("w1", 64)).claims]
    assert len(leases) == number
    kept = dict.fromkeys(leases, ("run", 3))
    await queue.broker.release("w1", leases, gave_way=True, kept=kept, generated=dict.fromkeys(leases, 7))


@fails_without("order: a tenant at its limit hides nobody's interrupted request")
async def test_a_tenant_at_its_limit_hides_nobodys_interrupted_request(queue: Queue) -> None:
    """However many of its requests were interrupted."""
    queue = queue.with_limits(lane_limit=1_000)
    await queue.broker.set_tenant("a", TenantRule(1, 500))
    for number in range(1, 131):
        await queue.add("high", f"{NOW}-{number}", tenant="a", deadline=NOW + 60_000)
    await queue.add("high", f"{NOW}-200", tenant="b", deadline=NOW + 61_000)
    await interrupt(queue, 131)
    await queue.add("high", f"{NOW}-300", tenant="a")
    assert ids((await queue.pull("w2", 1)).claims) == [f"{NOW}-300"]
    await queue.broker.set_tenant("a", TenantRule(1, 1))
    assert ids((await queue.pull("w3", 1)).claims) == [f"{NOW}-200"]


@fails_without("order: a pull passes each interrupted request once", "held_seen[P.lane] or {passed", "{passed")
async def test_a_pull_passes_each_interrupted_request_of_a_tenant_at_its_limit_once(queue: Queue) -> None:
    """A pull of several rounds looks at no page twice."""
    queue = queue.with_limits(lane_limit=1_000)
    await queue.broker.set_tenant("a", TenantRule(1, 500))
    for number in range(192):
        await queue.add("high", f"{NOW}-{number}", tenant="a")
    await interrupt(queue, 192)
    for number in range(300, 331):
        await queue.add("high", f"{NOW}-{number}", tenant="b" if number > 300 else "a")
    assert ids((await queue.pull("w2", 1)).claims) == [f"{NOW}-300"]
    await queue.broker.set_tenant("a", TenantRule(1, 1))
    await queue.command("CONFIG", "RESETSTAT")
    assert len((await queue.pull("w3", 30)).claims) == 30
    rows = (await queue.command("INFO", "commandstats")).split()
    (pages,) = [row for row in rows if row.startswith(b"cmdstat_zrange:")]
    assert int(pages.partition(b"calls=")[2].partition(b",")[0]) < 12


async def test_a_pull_looks_at_a_bounded_number_of_interrupted_requests_whose_time_has_come(queue: Queue) -> None:
    queue = queue.with_limits(lane_limit=1_000)
    for number in range(700):
        await queue.add("high", f"{NOW}-{number}", deadline=NOW + 60_000, body="{}")
    await interrupt(queue, 700)
    queue = queue.at(NOW + 20_000)
    assert len((await queue.pull("w2", 1)).claims) == 1
    assert await queue.command("ZCARD", f"{queue.keys.ready('high')}:held") == 700 - 256


async def test_the_first_deadline_of_a_tenant_is_no_later_than_what_was_looked_at(queue: Queue) -> None:
    """A later deadline of a request that waits for its home hides no sooner one that no pull has looked at yet."""
    queue = queue.with_limits(lane_limit=2_000)
    await meet(queue, "w1", "w2")
    for number in range(1_100):
        await queue.add("high", f"{NOW - PATIENCE + 1_000 + number}-0", tenant="b", body="{}")
    await queue.add("high", f"{NOW - 5}-1", tenant="b", session="its", deadline=NOW + 2_900)
    await queue.add("high", f"{NOW - 5}-2", tenant="b", deadline=NOW + 2_500)
    while (await pull(queue, "w1", 0)).staged:
        pass
    await queue.command("ZADD", f"{queue.keys.ready('high')}:late", NOW, "b")
    await queue.pull("w3", 1)
    assert float(await queue.command("ZSCORE", f"{queue.keys.ready('high')}:late", "b")) <= NOW + 2_500


@fails_without("order: what has lost one of its two sets is found in the other")
async def test_what_lost_the_set_of_its_tenant_is_taken_once(queue: Queue) -> None:
    """A sweep of tickets finds it before its lane is made anew, and it gets another home."""
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", tenant="a", session="first")
    await pull(queue, "w1", 0)
    await queue.command("DEL", f"{queue.keys.ready('high')}:th:a")
    await queue.command("ZADD", queue.keys.loads, 1_000, "1")
    await queue.broker.sweep("tickets", "", mend=True)
    taken = [claims for worker in ("w1", "w2") if (claims := await take(queue, worker))]
    assert taken == [[f"{NOW}-1"]]
    assert (await queue.broker.audit()).problems() == []


@fails_without("affinity: names of 256 characters differ", "string.sub(name, 1, 1024)", "string.sub(name, 1, 256)")
async def test_a_session_is_known_by_the_beginning_of_its_name(queue: Queue) -> None:
    """A plain XADD may name one by megabytes, which take long to read."""
    queue = queue.with_limits(rank_by_program="on", max_entry_bytes=8192)
    await meet(queue, "w1", "w2")
    await pull(queue, "w1", 0)
    known = (await queue.dump())["sessions"].keys()
    for number in range(1, 4):
        names = {"session": "s" * 1024 + str(number), "tenant": "t" * 1024 + str(number)}
        await queue.add("high", f"{NOW + number}-1", **names)
        await queue.add("high", f"{NOW + number}-2", program="p" * 1024 + str(number), **names)
        await queue.add("high", f"{NOW + number}-3", session="\U0001f600" * 255 + str(number))
    await pull(queue, "w1", 0)
    new = (await queue.dump())["sessions"].keys() - known
    assert sorted(name[0] for name in new) == list("fffffssss"), "two programs, one of them a session; three sessions"


async def left_to_its_home(queue: Queue, deadline_ms: int, until_ms: int) -> None:
    """Beside later ones for anybody, a request of w1's is left to it by w2 until then."""
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first", deadline=NOW + deadline_ms)
    for number in range(2, 6):
        await queue.add("high", f"{NOW}-{number}", deadline=NOW + 30_000)
    assert await take(queue, "w2", 1) == [f"{NOW}-2"]
    assert await take(queue.at(NOW + until_ms - 1), "w2", 1) == [f"{NOW}-3"]
    (claim,) = (await pull(queue.at(NOW + until_ms), "w2", 1)).claims
    assert (claim.lease.stream_id, claim.passed_ms) == (f"{NOW}-1", until_ms)


@fails_without("affinity: what another home is late with goes first if it is near, or has waited for long")
async def test_what_will_be_late_soon_goes_to_anybody(queue: Queue) -> None:
    await left_to_its_home(queue, deadline_ms=D + 2_000, until_ms=D)


@fails_without(
    "affinity: what another home is late with goes first after a while, too", " or young(late, LONG) == 0 then", " then"
)
async def test_what_has_waited_long_goes_to_anybody(queue: Queue) -> None:
    await left_to_its_home(queue, deadline_ms=20_000, until_ms=10 * D)


@fails_without("affinity: in its turn another home's is taken after a while")
async def test_in_its_tenants_turn_it_goes_to_anybody_after_a_while(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", tenant="a", session="its")
    for number in (2, 3, 4):
        await queue.add("high", f"{NOW}-{number}", tenant="b")
    await pull(queue, "w1", 0)
    _, other = await home_and_other(queue)
    assert await take(queue.at(NOW + 3 * D - 1), other, 1) == [f"{NOW}-2"]
    assert await take(queue.at(NOW + 3 * D), other, 1) == [f"{NOW}-1"]


async def test_what_another_home_is_late_with_hides_nothing_that_is_taken_after_it(queue: Queue) -> None:
    """A tenant's requests are read by their places in its set: none may leave it before the others are picked."""
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", deadline=NOW + 60_000)
    await queue.add("high", f"{NOW}-2", deadline=NOW + 60_000, session="first")
    for number in (3, 4):
        await queue.add("high", f"{NOW}-{number}", tenant="b", body=json.dumps({"prompt": "x" * 1_000}))
    assert await take(queue.at(NOW + 3 * D), "w2") == [f"{NOW}-1", f"{NOW}-3", f"{NOW}-2", f"{NOW}-4"]


@fails_without("affinity: its own goes first only if its tenant has nothing that has to run soon")
@fails_without(
    "affinity: what has to run soon goes before its own",
    "if not (first <= now_ms() + URGENT and row.rank > first + W) then",
    "if true then",
)
async def test_its_own_goes_first_unless_its_tenant_has_something_that_has_to_run_soon(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    for number, deadline_ms in enumerate((12_000, 11_000, 13_000)):
        await queue.add("high", f"{NOW}-{number}", tenant="a", deadline=NOW + deadline_ms)
    for number in (3, 4):
        await queue.add("high", f"{NOW}-{number}", tenant="a", session="its", deadline=NOW + 60_000)
    await pull(queue, "w1", 0)
    home, _ = await home_and_other(queue)
    assert await take(queue, home, 1) == [f"{NOW}-3"]
    assert await take(queue.at(NOW + 1_001), home, 1) == [f"{NOW}-1"]


@fails_without("affinity: what waits for who is lost is anybody's")
@fails_without(
    "homes: one that asks for nothing loses what waits for it", "ms < SILENT_MS for ms", "True for ms", service="homes"
)
async def test_who_asks_for_nothing_loses_what_waits(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    for number in range(1, 4):
        await queue.add("high", f"{NOW}-{number}", session="first")
    await queue.add("high", f"{NOW}-4")
    later = queue.at(NOW + D + 1)
    await pull(later, "w2", 0)
    await later.broker.serve(keep_homes)
    assert await take(later, "w2", 4) == [f"{NOW}-1", f"{NOW}-2", f"{NOW}-3", f"{NOW}-4"]
    await later.add("high", f"{NOW + D}-1", session="first")
    assert await take(later, "w1") == []  # it comes back, and its session has gone
    assert await take(later, "w2") == [f"{NOW + D}-1"]


async def _waits_of_a_slow_home(queue: Queue, asks_every: int, more: int) -> dict[str, int]:
    """Ten requests of a session wait for w1, and `more` later ones for nobody; ms until each is taken by w1 or w2.

    Args:
        queue: it.
        asks_every: w1 takes a request so often, ms, beginning so late; 0 for never.
        more: w2 runs one request at a time, for 100 ms; with none of these it is idle.
    """
    await meet(queue, "w1", "w2")
    for number in range(10):
        await queue.add("high", f"{NOW}-{number}", session="first", deadline=NOW + 60_000)
    for number in range(more):
        await queue.add("high", f"{NOW + 1}-{number}", deadline=NOW + 90_000)
    await pull(queue, "w2", 0)
    waited: dict[str, int] = {}
    for ms in range(1, 4_001, 100):
        now = queue.at(NOW + ms)
        if ms % 1_000 == 901:  # the housekeeping, once a second, at the worst moment
            await now.broker.serve(keep_homes)
        asking = ["w2"] + ["w1"] * (asks_every > 0 and ms % asks_every == 1 and ms > 1)
        for worker in asking:
            taken = await take(now, worker, 1)
            while not more and taken and worker == "w2":  # it has room for more, and pulls again
                waited |= dict.fromkeys(taken, ms)
                taken = await take(now, worker, 1)
            waited |= dict.fromkeys(taken, ms)
    return {name: ms for name, ms in waited.items() if name.startswith(f"{NOW}-")}


async def test_a_home_that_is_full_for_long_holds_nothing_up(queue: Queue) -> None:
    """Its requests are anybody's D and a second after it asked last, and then it is as without homes."""
    waited = await _waits_of_a_slow_home(queue, asks_every=0, more=100)
    assert len(waited) == 10
    assert max(waited.values()) <= D + 1_000 + 10 * 100


async def test_a_home_that_takes_little_holds_nothing_up_beside_an_idle_worker(queue: Queue) -> None:
    waited = await _waits_of_a_slow_home(queue, asks_every=900, more=0)
    assert len(waited) == 10
    assert max(waited.values()) <= D + 1


@fails_without("affinity: a worker that comes back is new")
async def test_a_worker_that_comes_back_is_new(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w2", 0)
    await pull(queue, "w1", 0, start="b")  # another start: its cache is empty
    assert await take(queue, "w2") == [f"{NOW}-1"]
    await queue.add("high", f"{NOW}-2", session="first")
    assert await take(queue, "w1", start="b") == []
    assert await take(queue, "w2") == [f"{NOW}-2"]


@fails_without("order: what is freed can be taken at once")
async def test_a_worker_that_comes_back_takes_at_once_what_waited_for_it(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("low", f"{NOW}-1", session="first")  # in the last lane nothing else writes what was freed
    await pull(queue, "w2", 0)
    assert await take(queue, "w1", start="b") == [f"{NOW}-1"]


@fails_without("affinity: a home that was lost in this call is none", "load < LOST and load, nil", "load, nil")
async def test_what_comes_as_its_home_starts_again_goes_to_another(queue: Queue) -> None:
    """The pull that loses a home brings arrivals in order, too."""
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w1", 0, start="b")
    dump = await queue.dump()
    assert {ticket[0] for ticket in dump.get("tickets", {}).values()} <= {number for number, _ in dump["loads"]}
    assert await take(queue, "w2") == [f"{NOW}-1"]


@fails_without("deregister: who is gone is no home")
async def test_what_waits_for_who_leaves_goes_to_anybody(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.broker.heartbeat("w1", {})
    await queue.add("high", f"{NOW}-1", session="first")
    assert await take(queue, "w2") == []
    await queue.broker.deregister("w1")
    assert await take(queue, "w2") == [f"{NOW}-1"]


@fails_without("affinity: a beginning goes where it was read before")
async def test_a_beginning_that_comes_again_has_a_home(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", body=prompt("x"))
    assert await take(queue, "w2") == [f"{NOW}-1"]
    await queue.add("high", f"{NOW}-2", body=prompt("x") + " ")
    assert await take(queue, "w1") == []
    assert await take(queue, "w2") == [f"{NOW}-2"]
    await queue.add("high", f"{NOW}-3", body=prompt("x"), tenant="other")  # another tenant's is another's
    assert await take(queue, "w1") == [f"{NOW}-3"]


async def test_without_sessions_nothing_is_kept(queue: Queue) -> None:
    await queue.add("high", f"{NOW}-1", body=prompt("x", 900))
    await queue.add("high", f"{NOW}-2")
    assert await take(queue, "w1") == [f"{NOW}-1", f"{NOW}-2"]
    dump = await queue.dump()
    assert {"tickets", "sessions", "loads"}.isdisjoint(dump)


@fails_without("affinity: a beginning counts when it comes again")
async def test_a_beginning_that_comes_once_is_anybodys(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    for number, text in enumerate("abcdefgh"):
        await queue.add("high", f"{NOW}-{number}", body=prompt(text))
        assert await take(queue, ("w1", "w2")[number % 2]) == [f"{NOW}-{number}"]


async def test_a_hot_session_has_several_homes(queue: Queue) -> None:
    await meet(queue, "w1", "w2", "w3")
    for number in range(40):
        await queue.add("high", f"{NOW}-{number}", session="first")
        if number % 8 == 7:
            await pull(queue, "w3", 0)
    taken = {worker: len(await take(queue, worker, 13)) for worker in ("w1", "w2", "w3")}
    assert min(taken.values()) >= 8


async def test_what_was_ready_before_the_first_session_is_taken_too(queue: Queue) -> None:
    for number in range(3):
        await queue.add("low", f"{NOW}-{number}")
    await pull(queue, "w1", 0)
    await queue.add("high", f"{NOW}-3", session="first")
    assert await take(queue, "w1", 1) == [f"{NOW}-3"]
    await queue.add("low", f"{NOW}-4", session="first")
    assert await take(queue, "w2") == [f"{NOW}-{number}" for number in range(3)]
    assert await take(queue, "w1") == [f"{NOW}-4"]


@fails_without("leave: its ticket goes")
async def test_a_cancelled_request_leaves_its_sets(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    await queue.add("high", f"{NOW}-2", session="first", tenant="a")
    await pull(queue, "w2", 0)
    assert len((await queue.dump())["tickets"]) == 2
    for number in (1, 2):
        assert await queue.broker.cancel(f"high:{NOW}-{number}")
    assert not [key for key in await queue.dump() if key.startswith(("ready:", "tickets"))]


@fails_without("homes: sessions that nobody uses are forgotten", "now_ms - ms > UNUSED_MS", "False", service="homes")
@fails_without("homes: without sessions nothing is asked", "else len(names)", "else None", service="homes")
async def test_nothing_is_left_of_sessions_that_nobody_uses(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    later = queue.at(NOW + 3_600_001)
    for _ in range(5):
        await later.broker.serve(keep_homes)
    dump = await later.dump()
    assert {"tickets", "sessions", "loads"}.isdisjoint(dump)
    await later.add("high", f"{NOW}-1")
    assert await take(later, "w1") == [f"{NOW}-1"]
    assert {"tickets", "sessions", "loads"}.isdisjoint(await later.dump())


@fails_without("affinity: a key of another type is left alone")
@fails_without("order: a key of another type is left alone")
async def test_keys_of_another_type_are_left_alone(queue: Queue) -> None:
    await meet(queue, "w1")
    for number, key in enumerate((queue.keys.sessions, queue.keys.tickets, queue.keys.loads)):
        await queue.command("SET", key, "mine")
        await queue.add("high", f"{NOW}-{number}", session="first")
        assert await take(queue, "w1") == [f"{NOW}-{number}"]
        await take_turn(queue.broker, [keep_homes])
        assert await queue.command("GET", key) == b"mine"
        await queue.command("DEL", key)


@fails_without("homes: what is no number is none", "if not name.isdigit()", "if False", service="homes")
async def test_what_hands_add_to_the_homes_is_taken_out(queue: Queue) -> None:
    await meet(queue, "w1")
    await queue.add("high", f"{NOW}-1", session="first")
    await take(queue, "w1")
    await queue.command("ZADD", queue.keys.loads, 0, "x")
    await queue.broker.serve(keep_homes)
    assert await queue.command("ZSCORE", queue.keys.loads, "x") is None
    await queue.add("high", f"{NOW}-2", session="first")
    assert await take(queue, "w1") == [f"{NOW}-2"]


async def test_what_hands_add_to_a_ready_set_is_dropped(queue: Queue) -> None:
    await meet(queue, "w1")
    await queue.add("high", f"{NOW}-1", session="first")
    await queue.add("high", f"{NOW}-2")
    await pull(queue, "w1", 0)
    await queue.command("ZADD", queue.keys.ready("high"), 0, "x")
    assert await take(queue, "w1", 3) == [f"{NOW}-1", f"{NOW}-2"]
    assert not [key for key in await queue.dump() if key.startswith("ready:")]


@fails_without("affinity: a home is woken for what comes to it")
async def test_an_idle_home_is_woken_for_what_comes_to_it(queue: Queue) -> None:
    await meet(queue, "w1", "w2", "w3")
    for worker in ("w3", "w2"):
        assert (await pull(queue, worker, 5)).role is Role.WATCHER
    assert (await pull(queue, "w1", 5)).role is Role.WAITER
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w2", 5)
    assert await queue.command("LRANGE", queue.keys.wake_up("w1"), 0, -1) == [b"1"]
    await queue.broker.wait(5_000, "w1")  # returns at once
    assert await queue.command("EXISTS", queue.keys.wake_up("w1")) == 0


@fails_without("order: what waits for a home wakes nobody else")
async def test_what_waits_for_a_home_that_is_busy_wakes_nobody(queue: Queue) -> None:
    await meet(queue, "w1", "w2", "w3")
    assert (await pull(queue, "w3", 5)).role is Role.WATCHER
    await queue.read([])
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w2", 0)
    assert await queue.read([]) == []


async def test_a_watching_home_is_woken_by_the_wake_stream(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    assert (await pull(queue, "w1", 5)).role is Role.WATCHER
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w2", 0)
    assert (await queue.dump())["wake"]["undelivered"] == 1


@fails_without("affinity: a wake-up reaches the watcher that it was for")
async def test_a_wake_up_of_another_watcher_is_passed_on(queue: Queue) -> None:
    await meet(queue, "w1", "w2", "w3")
    for worker in ("w1", "w2"):
        assert (await pull(queue, worker, 5)).role is Role.WATCHER
    await queue.add("high", f"{NOW}-1", session="first")
    await pull(queue, "w3", 0)
    for left in (1, 0):  # w2 reads it, in place of w1, and once more
        hints = await queue.broker.watch(1_000)
        assert [hint.lane for hint in hints] == [None]
        assert not (await pull(queue, "w2", 5, hints=hints, owing=True)).claims
        assert (await queue.dump()).get("wake", {}).get("undelivered", 0) == left


@fails_without("order: its ticket goes")
async def test_tenants_take_turns_among_what_is_there(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW - 1}-1", session="first", tenant="a")
    claims = {worker: (await pull(queue, worker)).claims for worker in ("w1", "w2")}
    ((home, (claim,)),) = [(worker, found) for worker, found in claims.items() if found]
    other = "w2" if home == "w1" else "w1"
    await queue.complete(home, claim.lease)
    for number in range(1, 5):
        await queue.add("high", f"{NOW}-{number}", session="first", tenant="a", deadline=NOW + 10_000 + number)
    for number in range(5, 9):
        await queue.add("high", f"{NOW}-{number}", tenant="b", deadline=NOW + 20_000 + number)
    assert await take(queue, other, 2) == [f"{NOW}-5", f"{NOW}-6"]  # what waits for its home is left to it
    assert await take(queue, home, 2) == [f"{NOW}-1", f"{NOW}-2"]
    dump = await queue.dump()
    assert {name for name in dump["served"] if name[:2] == "c|"} == {f"c|2|{NOW}-{number}" for number in (1, 2, 5, 6)}
    assert await take(queue, home, 4) == [f"{NOW}-3", f"{NOW}-4", f"{NOW}-7", f"{NOW}-8"]
    assert "tickets" not in await queue.dump()


async def at_its_limit(queue: Queue, *workers: str) -> None:
    """Make homes known, and a tenant in `low` of whose requests one runs and one waits."""
    await meet(queue, *workers)
    await queue.broker.set_tenant("a", TenantRule(1, 1))
    for number in (1, 2):
        await queue.add("low", f"{NOW}-{number}", tenant="a")
    assert await take(queue, workers[0]) == [f"{NOW}-1"]


async def test_what_no_tenant_may_run_holds_up_no_other_lane(queue: Queue) -> None:
    """A worker with nothing else to do is idle, and takes what has waited long for another."""
    await at_its_limit(queue, "w1", "w2")
    await queue.add("high", f"{NOW - D}-1", session="first")
    assert await take(queue, "w2") == [f"{NOW - D}-1"]


async def test_what_no_tenant_may_run_wakes_nobody(queue: Queue) -> None:
    await at_its_limit(queue, "w1", "w2", "w3")
    await pull(queue, "w3")
    await queue.read([])
    await queue.add("high", f"{NOW}-3")
    assert await take(queue, "w2", 1) == [f"{NOW}-3"]
    assert await queue.read([]) == []


@fails_without("affinity: what has ended is no load")
async def test_what_has_ended_is_no_load(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    await queue.add("high", f"{NOW}-1", session="first")
    (claim,) = (await pull(queue, "w1")).claims
    assert (await queue.dump())["loads"] == [("2", 0), ("1", 1)]
    await queue.complete("w1", claim.lease)
    assert (await queue.dump())["loads"] == [("1", 0), ("2", 0)]


@fails_without("homes: the number of sessions is bounded", "max(0, known - MOST_RECORDS)", "0", service="homes")
async def test_the_number_of_sessions_is_bounded(queue: Queue) -> None:
    await meet(queue, "w1", "w2")
    many = [word for number in range(100_000) for word in (f"s{number:016x}", f"{NOW - number} 1.00 1")]
    for start in range(0, len(many), 10_000):
        await queue.command("HSET", queue.keys.sessions, *many[start : start + 10_000])
    before = await queue.command("HLEN", queue.keys.sessions)
    for number in range(20):
        await queue.add("high", f"{NOW}-{number}", session=f"new-{number}")
    assert len(await take(queue, "w1", 20)) + len(await take(queue, "w2", 20)) == 20
    await queue.broker.serve(keep_homes)
    assert await queue.command("HLEN", queue.keys.sessions) <= before


@fails_without("affinity: what waited for lost homes is freed in bounded calls", "room, left = room - freed,", "left =")
async def test_what_waited_for_many_lost_homes_is_freed_in_bounded_calls(queue: Queue) -> None:
    keys = queue.keys
    homes, waiting = 9, 200
    await queue.command(
        "HSET", keys.lane_states, "sessions", "1", "labelled", f"0 0 0 0;0 0 0 0;0 0 {homes * waiting} 0;"
    )
    for home in range(1, homes + 1):
        await queue.command("ZADD", keys.loads, 10**9, home)
        members = [f"F10000{home}-{'ABC'[len(str(number)) - 1]}{number}" for number in range(waiting)]
        scored = [word for number, member in enumerate(members) for word in (NOW + number, member)]
        await queue.command("ZADD", f"{keys.ready('normal')}:h:{home}", *scored)
    await queue.broker.serve(keep_homes)
    assert await queue.command("ZCARD", keys.ready("normal")) == 800
    await queue.broker.serve(keep_homes)
    await queue.broker.serve(keep_homes)
    assert await queue.command("ZCARD", keys.ready("normal")) == homes * waiting
    assert not await queue.command("EXISTS", keys.loads)
    assert not await queue.command("HEXISTS", keys.lane_states, "labelled")
