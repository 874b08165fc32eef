"""Tenants: who is picked, what is charged, and that nothing is left of it."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest

from streamfleet.common.broker.types import Completion, Lease, Retry, RetryCode, Role, TenantRule
from streamfleet.common.protocol import Status
from streamfleet.operator.tenants import read_tenants
from streamfleet.worker.services.tenants import keep_tenants
from streamfleet.worker.services.turn import take_turn
from tests.scripts.harness import ERROR, NOW, PATIENCE, Queue, ids
from tests.scripts.keyspace import Dump
from tests.scripts.mutants import fails_without

FAR = NOW + 10**7
HOUR_MS = 3_600_000


def asking(limit: int) -> str:
    return json.dumps({"prompt": "hi", "max_tokens": limit})


async def flood(queue: Queue, tenant: str, number: int, limit: int = 100, first: int = 1000, **fields: Any) -> None:
    for i in range(number):
        given = {"tenant": tenant} if tenant else {}
        await queue.add("high", f"{first + i}-0", deadline=FAR + i, body=asking(limit), **given, **fields)


async def turns(queue: Queue) -> dict[str, float]:
    """Tokens of tenants in the lane, below zero if they do not wait."""
    return dict((await queue.dump()).get("turns:high", []))


async def known(queue: Queue, *tenants: str) -> None:
    """These tenants have history, and got no credit in the last hour."""
    for tenant in tenants:
        words = struct.pack("<8d", 0, 1, 0, 0, 0, 0, NOW, -HOUR_MS)
        await queue.command("HSET", queue.keys.served, f"t|{tenant}", words)


def record(dump: Dump, tenant: str) -> dict[str, int]:
    names = ("running", "requests", "charged", "tokens", "lost", "missed")
    words = dump["served"][f"t|{tenant}"].split()
    return {name: int(word) for name, word in zip(names, words, strict=False) if word != "0"}


def charge(dump: Dump, stream_id: str = "1000-0") -> list[int]:
    """Tokens that a request in lane high is charged: prompt and output of its run, and what earlier runs generated."""
    prompt, output, _, kept, _ = dump["served"][f"c|2|{stream_id}"].split(" ", 4)
    return [int(prompt), int(output), int(kept)]


async def end(queue: Queue, lease: Lease, prompt: int, output: int, **values: str) -> None:
    usage = json.dumps({"prompt_tokens": prompt, "completion_tokens": output})
    await queue.broker.complete("w1", [Completion(lease, Status.SUCCEEDED, {"usage": usage, **values}, "")])


@fails_without("tenants: the weight counts", "= x.tokens + cost_of(row) / record.weight", "= x.tokens + cost_of(row)")
@fails_without("tenants: a tenant that was charged goes back to its place", "less(x, line[place - 1])", "false")
async def test_tenants_that_wait_share_by_tokens_for_their_weight(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.tenants, "b", "3")
    await flood(queue, "a", 30)
    await flood(queue, "b", 30, first=2000)
    taken = ids((await queue.pull(wanted=24)).claims)
    assert sum(stream_id < "2000" for stream_id in taken) == 6


@fails_without("order: how many wait is known")
async def test_each_tenant_has_a_set_of_what_waits_and_nothing_is_left_of_it(queue: Queue) -> None:
    await queue.add("high", "1000-0", tenant="a", deadline=FAR, body=asking(100))
    await queue.add("high", "1001-0", tenant="b", deadline=FAR + 1)
    await queue.add("high", "1002-0", deadline=FAR + 2)
    await queue.pull(wanted=0)
    dump = await queue.dump()
    assert dump["ready:high:t:a"] == [(f"1000-0 {len(asking(100))} 100", FAR)]
    assert [dump["ready:high:t:b"], dump["ready:high"]] == [[("1001-0 15 16", FAR + 1)], [("1002-0", FAR + 2)]]
    assert (await queue.pull(wanted=0)).ready == 3
    assert len((await queue.pull(wanted=3)).claims) == 3
    assert not [key for key in await queue.dump() if key.startswith("ready:")]
    assert not await queue.command("HEXISTS", queue.keys.lane_states, "labelled")


@fails_without("tenants: what was ready before them takes turns too")
async def test_what_was_ready_before_tenants_came_is_one_tenants(queue: Queue) -> None:
    await flood(queue, "", 40)
    await queue.pull(wanted=0)
    await flood(queue, "a", 40, first=2000)
    taken = [ids((await queue.pull()).claims)[0] for _ in range(20)]
    assert sorted(taken)[:10] == [f"{1000 + i}-0" for i in range(10)]
    assert await turns(queue) == {"": 10 * 109, "a": 10 * 109}


@fails_without("tenants: what has no tenant is charged by its body once that is read")
async def test_what_has_no_tenant_costs_the_usual_until_its_body_is_read(queue: Queue) -> None:
    await flood(queue, "", 4)
    await flood(queue, "a", 4, first=2000)
    assert ids((await queue.pull(wanted=4)).claims) == ["1000-0", "2000-0", "2001-0", "2002-0"]
    dump = await queue.dump()
    assert (charge(dump), dict(dump["turns:high"])[""]) == ([9, 100, 0], 109)
    assert float(dump["served"]["usual"]) == 256 + (109 - 256) / 8


@fails_without(
    "tenants: who comes back starts at the lowest level", "start = math.max(tokens or 0, start)", "start = tokens or 0"
)
@fails_without("tenants: who comes back has the credit of a request", "start = level - cost", "start = level")
async def test_who_comes_back_starts_a_request_below_the_lowest_that_waits(queue: Queue) -> None:
    await known(queue, "back")
    await flood(queue, "a", 20)
    await queue.pull(wanted=8)
    before = (await turns(queue))["a"]
    await flood(queue, "back", 10, first=2000)
    await queue.pull(wanted=0)
    assert (await turns(queue))["back"] == pytest.approx(before - 109)


@fails_without(
    "tenants: who comes does not lower the level for the next",
    "math.max(t.least(lane) or 0, t.number(t.level_field(lane)))",
    "(t.least(lane) or 0)",
)
async def test_many_that_come_at_once_get_the_credit_of_one_request_each(queue: Queue) -> None:
    names = [f"back{i}" for i in range(6)]
    await known(queue, *names)
    await flood(queue, "a", 20)
    await queue.pull(wanted=8)
    reached = (await turns(queue))["a"] - 109
    for i, name in enumerate(names):
        await queue.add("high", f"{2000 + i}-0", tenant=name, deadline=FAR, body=asking(100))
    await queue.pull(wanted=0)
    assert min((await turns(queue)).values()) == pytest.approx(reached - 109)


@fails_without("tenants: without credit it goes before those at the level")
@fails_without(
    "tenants: a name gets its credit once an hour", "math.abs(now_ms() - record.credited) >= HOUR_MS", "true"
)
async def test_a_tenant_that_sends_little_gets_its_credit_once_an_hour(queue: Queue) -> None:
    await known(queue, "small")
    await flood(queue, "a", 30)
    await queue.pull(wanted=3)
    below = []
    for i, now_ms in enumerate((NOW, NOW + HOUR_MS - 1, NOW + HOUR_MS)):
        level = (await turns(queue))["a"]
        await queue.add("high", f"{3000 + i}-0", tenant="small", deadline=FAR, body=asking(100))
        await queue.at(now_ms).pull(wanted=0)
        below.append(level - (await turns(queue))["small"])
        while (await turns(queue))["small"] >= 0:
            await queue.at(now_ms).pull()
        await queue.at(now_ms).pull(wanted=2)
    assert below == [109, 1 / 1024, 109]


@fails_without("tenants: names without history go one behind the other")
@fails_without("tenants: names without history get no credit", "if not has_history(record) then", "if false then")
async def test_names_without_history_start_one_behind_the_other(queue: Queue) -> None:
    await known(queue, "b")
    await flood(queue, "a", 20)
    await end(queue, (await queue.pull(wanted=4)).claims[0].lease, 9, 100)
    await flood(queue, "b", 20, first=2000)
    for i in range(4):
        await queue.add("high", f"{3000 + i}-0", tenant=f"new{i}", deadline=FAR, body=asking(100))
    await queue.pull(wanted=0)
    found = await turns(queue)
    assert (found["a"], found["b"]) == (4 * 109, 3 * 109)
    assert [found[f"new{i}"] for i in range(4)] == [3 * 109 + i * 109 / 2 for i in range(4)]


@fails_without("tenants: what is made up gets what the known get together", "+ cost / with", "+ cost / UNKNOWN")
async def test_names_that_are_made_up_get_as_much_as_the_known_together(queue: Queue) -> None:
    await known(queue, "a", "b")
    await flood(queue, "a", 50)
    await flood(queue, "b", 50, first=2000)
    for i in range(1000):
        await queue.add("high", f"{3000 + i}-0", tenant=f"new{i}", deadline=FAR, body=asking(100))
    taken = [row for _ in range(10) for row in ids((await queue.pull(wanted=10)).claims)]
    assert [sum(row.startswith(first) for row in taken) for first in "123"] == [25, 25, 50]


@fails_without("tenants: a pick is charged")
@fails_without("tenants: a charge is settled by what was used")
async def test_a_charge_is_settled_by_what_was_used(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    dump = await queue.dump()
    assert (charge(dump), record(dump, "a")) == ([9, 100, 0], {}), "a record has what has ended"
    assert await turns(queue) == {"a": -1 - 109}
    await end(queue, lease, 5, 20)
    assert await turns(queue) == {"a": -1 - 25}
    dump = await queue.dump()
    assert record(dump, "a") == {"requests": 1, "charged": 25, "tokens": 25}
    assert not [field for field in dump["served"] if field.startswith("c|")]


USED = json.dumps({"prompt_tokens": 5, "completion_tokens": 20})


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED, Status.FAILED])
@pytest.mark.parametrize(
    ("values", "held", "charged"),
    [
        ({}, None, 0),  # the engine was not reached
        ({"waited_ms": "1.0"}, 70.4, 9 + 70),
        ({"waited_ms": "1.0"}, 7_000.0, 9 + 7_000),
        ({"waited_ms": "1.0"}, math.inf, 109),
        ({"waited_ms": "1.0"}, None, 109),
        ({"waited_ms": "1.0", "usage": "{}"}, None, 109),
        ({"waited_ms": "1.0", "usage": USED}, None, 25),
        ({"waited_ms": "1.0", "usage": USED}, 70.0, 5 + 70),
        ({"waited_ms": "1.0", "usage": USED}, 7.0, 5 + 20),
        ({"waited_ms": "1.0", "usage": USED}, math.inf, 5 + 100),
    ],
)
async def test_what_nobody_counted_is_charged_for_its_time_in_the_engine(
    queue: Queue, status: Status, values: dict[str, str], held: float | None, charged: int
) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.broker.complete("w1", [Completion(lease, status, values, "", ERROR, held)])
    found = record(await queue.dump(), "a")
    assert (found.get("charged", 0), found.get("tokens", 0)) == (charged, charged)


@fails_without("tenants: what nobody counted is charged for its time in the engine")
async def test_a_cancelled_run_that_nobody_counted_is_not_free(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.complete("w1", lease, status=Status.CANCELLED, waited_ms="1.0")
    assert record(await queue.dump(), "a") == {"requests": 1, "charged": 109, "tokens": 109}


@fails_without(
    "tenants: an answer that nobody counted is charged like all else",
    "elseif run.waited_ms then",
    "elseif status ~= 'succeeded' and run.waited_ms then",
)
async def test_an_answer_that_nobody_counted_is_charged_for_its_time_in_the_engine(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(9_000))
    assert charge(await queue.dump()) == [9, 256, 0]
    await queue.broker.complete("w1", [Completion(lease, Status.SUCCEEDED, {"waited_ms": "1.0"}, "", "", 7_000.0)])
    assert record(await queue.dump(), "a") == {"requests": 1, "charged": 7_009, "tokens": 7_009}


@pytest.mark.parametrize("ends", [RetryCode.DELAYED, RetryCode.DEAD, RetryCode.EXPIRED, RetryCode.ANSWERED])
@pytest.mark.parametrize(
    ("held", "charged"), [(None, 0), (0.0, 9), (70.4, 9 + 70), (7_000.0, 9 + 7_000), (math.inf, 109)]
)
async def test_an_attempt_that_fails_is_charged_for_its_time_in_the_engine(
    queue: Queue, ends: RetryCode, held: float | None, charged: int
) -> None:
    """The end of its request does not matter, nor that nobody has counted what the attempt has made."""
    deadline, most = NOW + 50 if ends is RetryCode.EXPIRED else FAR, 1 if ends is RetryCode.DEAD else 3
    lease = await queue.running(tenant="a", id="r1", deadline=deadline, body=asking(100))
    if ends is RetryCode.ANSWERED:
        await queue.broker.cancel("r1")
    assert await queue.broker.retry_later("w1", [Retry(lease, 100, ERROR, held=held)], most) == [ends]
    after = await queue.dump()
    found = record(after, "a")
    assert (found.get("running", 0), found.get("charged", 0)) == (0, charged)
    assert found.get("lost", 0) == (109 if held is None else 0)
    assert found.get("tokens", 0) == (0 if ends is RetryCode.DELAYED else charged)
    assert (await turns(queue))["a"] == -1 - charged


@fails_without("tenants: a failed attempt is charged for its time in the engine")
@fails_without("retry_later: an attempt is charged whatever becomes of its request")
async def test_each_attempt_is_charged_and_the_one_that_is_answered_too(queue: Queue) -> None:
    await queue.add("high", "1000-0", tenant="a", deadline=FAR, body=asking(100))
    for _ in range(2):
        assert await queue.broker.retry_later("w1", [Retry(await queue.claim(), 0, ERROR, held=70.0)], 5) == [1]
    await end(queue, await queue.claim(), 5, 20)
    assert record(await queue.dump(), "a") == {"requests": 1, "charged": 2 * 79 + 25, "tokens": 2 * 79 + 25}


async def test_lengths_are_learnt_by_tenant_and_asked_limit(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await end(queue, lease, 4, 10)
    for number, (tenant, limit) in enumerate((("a", 100), ("a", 7), ("b", 100)), 1):
        await queue.running("high", f"100{number}-0", tenant=tenant, deadline=FAR, body=asking(limit))
    dump = await queue.dump()
    assert [charge(dump, f"100{number}-0") for number in (1, 2, 3)] == [[4, 10, 0], [8, 7, 0], [9, 100, 0]]


@fails_without(
    "tenants: lengths are of a class", " at = string.find(record.lengths, ';' .. ", " at = string.find(record.lengths, "
)
async def test_lengths_of_one_limit_are_not_taken_for_those_of_another(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.served, "l|a", ";9 13 3 0.1;18 13 5 0.1;13 4 7 0.1;none 13 9 0.1")
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    assert charge(await queue.dump()) == [4, 7, 0]
    await end(queue, lease, 4, 7)
    assert (await queue.dump())["served"]["l|a"].startswith(";9 13 3 0.1;18 13 5 0.1;none 13 9 0.1;13 5 7 ")
    await queue.running("high", "1001-0", tenant="a", deadline=FAR, body=asking(2))
    assert charge(await queue.dump(), "1001-0") == [8, 2, 0], "class 3 is not 13"


@fails_without("lengths: a limit that runs have exceeded bounds nothing")
async def test_a_limit_that_was_exceeded_bounds_no_output(queue: Queue) -> None:
    """An engine may not keep to it: then the mean of its class counts."""
    await queue.command("HSET", queue.keys.served, "l|a", ";13 4 200 0.25")
    for stream_id, output, expected in (("1000-0", 100, 100), ("1001-0", 110, 100), ("1002-0", 90, 168)):
        lease = await queue.running("high", stream_id, tenant="a", deadline=FAR, body=asking(100))
        assert charge(await queue.dump(), stream_id)[1] == expected
        await end(queue, lease, 9, output)
    assert (await queue.dump())["served"]["l|a"].endswith(" x")


@fails_without("tenants: what was generated stays charged")
@fails_without(
    "tenants: output of earlier runs is charged once", " - math.min(charge.kept, tonumber(run.resumed_tokens) or 0)", ""
)
async def test_what_was_generated_stays_charged_and_the_rest_is_refunded(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.broker.release("w1", [lease], generated={lease: 30})
    assert record(await queue.dump(), "a") == {"charged": 30}
    again = await queue.claim()
    assert charge(await queue.dump()) == [9, 100, 30]
    assert await turns(queue) == {"a": -1 - 139}
    await end(queue, again, 9, 100, resumed_tokens="30")
    assert record(await queue.dump(), "a") == {"requests": 1, "charged": 109, "tokens": 109}


@fails_without("tenants: lost work is not charged", "stays = stays or 0", "stays = stays or charge.cost")
async def test_work_lost_with_a_worker_is_counted_and_not_charged(queue: Queue) -> None:
    await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.age("high", "1000-0", "w1")
    await queue.broker.reclaim(60_000, 9)
    assert record(await queue.dump(), "a") == {"lost": 109}


@pytest.mark.every_release
async def test_a_renewal_leaves_the_charge_of_a_deleted_entry_to_the_upkeep(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.command("XDEL", queue.keys.lane("high"), lease.stream_id)
    await queue.broker.renew("w1", [lease])
    assert charge(await queue.dump()) == [9, 100, 0]
    if b"redis_version:6." in await queue.command("INFO", "server"):
        await queue.broker.release("w1", [lease])  # the renewal went on as if it were there
    await queue.broker.serve(keep_tenants)
    assert "c|2|1000-0" not in (await queue.dump())["served"]
    assert record(await queue.dump(), "a").keys() <= {"lost"}


@fails_without("tenants: nothing is left of a charge when its entry is removed")
async def test_an_entry_that_goes_takes_its_charge_along(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.command("XDEL", queue.keys.lane("high"), lease.stream_id)
    await queue.broker.release("w1", [lease])
    dump = await queue.dump()
    assert record(dump, "a") == {}
    assert not [field for field in dump["served"] if field.startswith("c|")]


@fails_without("tenants: what did not run is not charged")
async def test_what_does_not_run_is_not_charged(queue: Queue) -> None:
    await flood(queue, "a", 1)
    await queue.pull(wanted=0)
    late = queue.at(FAR + 1)
    pulled = await late.pull()
    assert (pulled.claims, pulled.dropped) == ([], 1)
    assert record(await queue.dump(), "a") == {"missed": 1}
    assert (await turns(queue))["a"] == -1


@fails_without("tenants: a charge that nobody settled is given back")
async def test_a_charge_that_nobody_settled_is_given_back_at_the_next_pick(queue: Queue) -> None:
    """Its group is made anew."""
    await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await make_group_anew(queue)
    await queue.claim()
    dump = await queue.dump()
    assert (charge(dump), record(dump, "a"), await turns(queue)) == ([9, 100, 0], {}, {"a": -1 - 109})


async def make_group_anew(queue: Queue) -> None:
    await queue.command("XGROUP", "DESTROY", queue.keys.lane("high"), "workers")
    await queue.broker.ensure_groups()


@fails_without("tenants: who may run one more waits again")
@fails_without("tenants: somebody is woken for who may run one more")
@fails_without("tenants: who may not run one more is not in turn")
@fails_without("tenants: what no tenant may run is not there to be taken")
async def test_as_many_of_a_tenant_run_as_it_may(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.tenants, "a", "1 2")
    await flood(queue, "a", 5)
    pulled = await queue.pull(wanted=4)
    assert ids(pulled.claims) == ["1000-0", "1001-0"]
    assert (pulled.role != 0, pulled.ready) == (True, 0), "it would pull again and again"
    await queue.add("high", "2000-0", tenant="a", deadline=FAR)
    await queue.pull(wanted=0)
    assert (await turns(queue))["a"] < 0
    await queue.command("DEL", queue.keys.wake)
    await queue.broker.ensure_groups()
    await end(queue, pulled.claims[0].lease, 1, 1)
    assert (await queue.dump())["wake"], "somebody is woken for the next"
    assert len((await queue.pull(wanted=4)).claims) == 1


@fails_without("tenants: who is nearly late goes before few of its tenant")
async def test_who_is_nearly_late_goes_first_if_its_tenant_is_little_ahead(queue: Queue) -> None:
    await flood(queue, "a", 3)
    await queue.add("high", "2000-0", tenant="b", deadline=NOW + 2_000, body=asking(100))
    await queue.pull(wanted=0)
    await queue.command("ZADD", queue.keys.turns("high"), 0, "a", 6 * 109, "b")
    assert ids((await queue.pull()).claims) == ["2000-0"]
    await queue.add("high", "2001-0", tenant="b", deadline=NOW + 2_000, body=asking(100))
    assert ids((await queue.pull()).claims) == ["1000-0"]


async def test_a_deadline_of_just_the_patience_is_nearly_late_too(queue: Queue) -> None:
    await flood(queue, "a", 3)
    late = await queue.add("high", f"{NOW - PATIENCE + 2_000}-0", tenant="b", ttl=PATIENCE, body=asking(100))
    await queue.pull(wanted=0)
    await queue.command("ZADD", queue.keys.turns("high"), 0, "a", 6 * 109, "b")
    assert ids((await queue.pull()).claims) == [late]


@fails_without("hooks: no long name of a tenant is read", "#rows[i][7] <= cfg.name_chars", "true")
async def test_long_names_of_tenants_are_not_read(queue: Queue) -> None:
    """A plain XADD may name one by megabytes; it counts as `other`."""
    for number in range(2):
        await queue.add("high", f"{NOW}-{number}", tenant="t" * 257 + str(number))
    await queue.command("CONFIG", "RESETSTAT")
    await queue.pull(wanted=0)
    assert b"cmdstat_hmget:calls=2," in await queue.command("INFO", "commandstats"), "of the lanes, and of `other`"


async def nearly_late(queue: Queue, number: int, spread: int) -> None:
    """Of tenant b, two requests with deadlines, and between them many ranked by the default deadline; one of a's."""
    for each in range(number):
        await queue.add("high", f"{NOW - PATIENCE + 1_000 + each // spread}-{each}", tenant="b", body="{}")
    for each, deadline in enumerate((500, 2_800), 1):
        await queue.add("high", f"{NOW - 5}-{each}", tenant="b", deadline=NOW + deadline, body="{}")
    await queue.add("high", f"{NOW - 5}-9", tenant="a", deadline=NOW + 90_000)
    while (await queue.pull(wanted=0, stage_entries=1_000)).staged:
        pass
    assert ids((await queue.pull()).claims) == [f"{NOW - 5}-1"]


@fails_without("order: what has no deadline of its own hides no deadline")
async def test_what_has_no_deadline_of_its_own_hides_no_deadline(queue: Queue) -> None:
    queue = queue.with_limits(lane_limit=1_000)
    await nearly_late(queue, 130, 130)
    assert ids((await queue.pull()).claims) == [f"{NOW - 5}-2"]


@fails_without("order: a look for deadlines goes on where the last stopped")
async def test_a_look_for_deadlines_goes_on_where_the_last_stopped(queue: Queue) -> None:
    queue = queue.with_limits(lane_limit=2_000)
    await nearly_late(queue, 1_200, 1)
    assert ids((await queue.pull()).claims) != [f"{NOW - 5}-2"], "it looks at 1,024 at once"
    assert ids((await queue.pull()).claims) == [f"{NOW - 5}-2"]


@fails_without(
    "tenants: what goes out of turn does not raise the level",
    "t.pass_level(lane, P.reached)",
    "for _, x in ipairs(P.touched) do t.pass_level(lane, x.tokens) end",
)
async def test_what_goes_out_of_turn_does_not_raise_the_level(queue: Queue) -> None:
    await known(queue, "back")
    await flood(queue, "a", 1)
    await queue.add("high", "2000-0", tenant="b", deadline=NOW + 2_000, body=asking(100))
    await queue.add("high", "2001-0", tenant="b", deadline=FAR, body=asking(100))
    await queue.pull(wanted=0)
    await queue.command("ZADD", queue.keys.turns("high"), 200, "a", 600, "b")
    assert ids((await queue.pull()).claims) == ["2000-0"]
    await queue.broker.cancel("high:1000-0")
    await queue.broker.cancel("high:2001-0")
    await flood(queue, "back", 1, first=3000)
    await queue.pull(wanted=0)
    assert (await turns(queue))["back"] == 0


@fails_without("tenants: their number is bounded")
async def test_the_number_of_tenants_is_bounded(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.served, "known", 2000)
    await queue.command("HSET", queue.keys.tenants, "set", "1")
    await queue.add("high", "1000-0", tenant="new", deadline=FAR)
    await queue.add("high", "1001-0", tenant="set", deadline=FAR)
    await queue.add("high", "1002-0", tenant="x" * 300, deadline=FAR)
    await queue.pull(wanted=0)
    assert set(await turns(queue)) == {"other", "set"}


@fails_without("leave: it stands in no set any more")
async def test_a_cancelled_or_expired_request_leaves_its_tenants_set(queue: Queue) -> None:
    await queue.add("high", "1000-0", tenant="a", deadline=NOW + 10)
    await queue.add("high", "1001-0", tenant="b", deadline=FAR)
    await queue.pull(wanted=0)
    assert (await queue.at(NOW + 20).broker.expire())[0] == 1
    await queue.broker.cancel("high:1001-0")
    assert not [key for key in await queue.dump() if key.startswith("ready:")]
    assert max((await turns(queue)).values()) < 0


@fails_without("upkeep: a run that is over is charged no more")
async def test_the_housekeeping_ends_charges_of_runs_that_are_over(queue: Queue) -> None:
    """Somebody removed its entry by hand."""
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.command("XACK", queue.keys.lane("high"), "workers", lease.stream_id)
    await queue.command("XDEL", queue.keys.lane("high"), lease.stream_id)
    await queue.broker.serve(keep_tenants)
    dump = await queue.dump()
    assert record(dump, "a") == {"lost": 109}
    assert not [field for field in dump["served"] if field.startswith("c|")]


@fails_without("upkeep: a tenant that has gone is forgotten")
@fails_without("upkeep: without tenants nothing is asked")
@fails_without("tenants: without them nothing is asked", "names or in_lanes", "True", service="tenants")
@fails_without(
    "tenants: turns without a record are looked at", "*sorted(in_lanes.difference(names))", "", service="tenants"
)
async def test_nothing_is_left_of_a_tenant_that_has_gone(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await end(queue, lease, 4, 10)
    await queue.command("ZADD", queue.keys.turns("high"), -5001, "charged-more")
    await queue.broker.serve(keep_tenants)
    await queue.broker.serve(keep_tenants)
    assert not await turns(queue)
    assert "l|a" in (await queue.dump())["served"], "lengths are kept for a time"
    later = queue.at(NOW + HOUR_MS + 1)
    for _ in range(4):
        await later.broker.serve(keep_tenants)
    dump = await queue.dump()
    assert "served" not in dump
    assert not await queue.command("HEXISTS", queue.keys.lane_states, "tenants")


@fails_without(
    "tenants: where nobody has a turn, the next one starts at the beginning",
    "if turns_left == 0",
    "if False",
    service="tenants",
)
async def test_a_lane_in_which_nobody_has_a_turn_begins_anew(queue: Queue) -> None:
    await flood(queue, "a", 3)
    await flood(queue, "b", 3, first=2000)
    for lease in [claim.lease for claim in (await queue.pull(wanted=6)).claims]:
        await end(queue, lease, 4, 10)
    assert {"level|2", "new|2"} <= (await queue.dump())["served"].keys()
    await queue.broker.serve(keep_tenants)
    assert (await queue.dump())["served"].keys().isdisjoint({"level|2", "new|2"})


@fails_without("upkeep: nothing of a tenant is ahead of a clock that was set back")
async def test_times_of_tenants_are_not_ahead_of_a_clock_that_was_set_back(queue: Queue) -> None:
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.broker.serve(keep_tenants)
    back = queue.at(NOW - 500_000)
    await back.broker.serve(keep_tenants)
    assert (await queue.dump())["served"]["t|a"].split()[6:8] == [str(NOW - 500_000), "0"]
    await end(back, lease, 4, 10)


@fails_without("upkeep: a tenant is kept while a charge of its requests is", "and settled and not", "and not")
async def test_a_tenant_is_kept_while_a_charge_of_its_requests_is(queue: Queue) -> None:
    """Requests without a tenant have no turn where nobody shares the lane, and wait there for more than an hour."""
    await queue.add("high", "1000-0", tenant="a", deadline=FAR, body=asking(100))
    await queue.add("high", "1001-0", deadline=FAR, body=asking(100))
    nobodys, its = (claim.lease for claim in (await queue.pull(wanted=2)).claims)
    assert its.stream_id == "1000-0"
    await end(queue, its, 4, 10)
    await queue.broker.release("w1", [nobodys], generated={nobodys: 7})
    later = queue.at(NOW + HOUR_MS + 1)
    for _ in range(4):
        await later.broker.serve(keep_tenants)
    await end(later, await later.claim(), 4, 10)
    assert not (await later.broker.audit()).problems()


@fails_without("tenants: nothing is left of turns of who has gone")
@fails_without("tenants: a turn is kept until its credit is whole again", " - MOST_CREDIT / t.record(name).weight", "")
async def test_a_turn_is_forgotten_once_others_were_charged_as_much(queue: Queue) -> None:
    await queue.add("high", "1000-0", tenant="a", deadline=FAR, body=asking(100))
    await flood(queue, "b", 40, limit=200, first=2000)
    first = await queue.claim()
    assert first.stream_id == "1000-0"
    await queue.pull(wanted=3)
    await end(queue, first, 4, 50)
    await queue.broker.serve(keep_tenants)
    assert "a" in await turns(queue), "it would come back with its credit once more"
    await queue.pull(wanted=20)
    await queue.broker.serve(keep_tenants)
    assert "a" not in await turns(queue)


@fails_without("tenants: keys of another type are left alone")
async def test_keys_of_another_type_are_left_alone(queue: Queue) -> None:
    for number, key in enumerate((queue.keys.tickets, queue.keys.turns("high"), queue.keys.served)):
        await queue.command("SET", key, "by hand")
        lease = await queue.running("high", f"{1000 + number}-0", tenant="a", deadline=FAR)
        assert await queue.complete("w1", lease) == [1]
        await take_turn(queue.broker, [keep_tenants])
        await queue.command("DEL", key)


async def test_the_audit_adds_up_tokens(queue: Queue) -> None:
    await queue.broker.set_tenant("a", TenantRule(1, 9))
    lease = await queue.running(tenant="a", deadline=FAR, body=asking(100))
    await queue.broker.release("w1", [lease], generated={lease: 30})
    await queue.pull()
    audit = await queue.broker.audit()
    assert (audit.problems(), audit.tenants["a"].running, audit.tenants["a"].kept) == ([], 1, 30)
    await queue.command("HDEL", queue.keys.served, f"c|2|{lease.stream_id}")
    assert len((await queue.broker.audit()).problems()) == 2


@fails_without("upkeep: who may run more since its limit was raised waits again")
async def test_a_limit_that_is_raised_counts_within_seconds(queue: Queue) -> None:
    await queue.broker.set_tenant("a", TenantRule(1, 1))
    await flood(queue, "a", 3)
    assert len((await queue.pull(wanted=3)).claims) == 1
    await queue.broker.set_tenant("a", TenantRule(2))
    await queue.broker.serve(keep_tenants)
    assert len((await queue.pull(wanted=3)).claims) == 2


@fails_without("tenants: a limit counts what began since it was set", "if record.most < math.huge then", "if true then")
@fails_without(
    "tenants: what operators set counts within seconds", '"rules" if rules else "1"', '"1"', service="tenants"
)
async def test_a_limit_counts_what_began_since_it_was_set(queue: Queue) -> None:
    await flood(queue, "a", 5)
    await queue.pull(wanted=1)
    await queue.broker.set_tenant("a", TenantRule(1, 2))
    await queue.broker.serve(keep_tenants)
    assert len((await queue.pull(wanted=3)).claims) == 2
    assert record(await queue.dump(), "a") == {"running": 2}


@fails_without("tenants: as many of a tenant run at once as it may", "if x.record.running >= x.record.most", "if false")
async def test_a_tenant_at_its_limit_takes_nothing_of_another_lane(queue: Queue) -> None:
    await queue.broker.set_tenant("a", TenantRule(1, 1))
    for lane in ("high", "low"):
        await queue.add(lane, "1000-0", tenant="a", deadline=FAR)
        await queue.add(lane, "1001-0", tenant="b", deadline=FAR)
    taken = [claim.fields[b"tenant"] for claim in (await queue.pull(wanted=4)).claims]
    assert sorted(taken) == [b"a", b"b", b"b"]


@fails_without("set_tenant: the newest values count")
async def test_of_what_is_set_of_a_tenant_the_newest_counts(queue: Queue) -> None:
    """Gateways write what keys name again and again: an operator's word holds until a key says something newer."""
    now_ms = await queue.broker.now_ms()
    of_key = TenantRule(3, 16, "1f0a", now_ms - 5)
    assert await queue.broker.set_tenant("a", of_key)
    assert await queue.broker.set_tenant("a", of_key)
    assert await queue.broker.tenant_rules() == {"a": of_key}
    for given in (TenantRule(2), TenantRule()):
        assert await queue.broker.set_tenant("a", given)
        assert not await queue.broker.set_tenant("a", of_key)
        shown = {name: (rule.weight, rule.max_running, rule.key) for name, rule in (await rules(queue)).items()}
        assert shown == ({} if given.usual else {"a": (2, None, "")}), "a tenant like any other is not shown"
    newer = TenantRule(0.5, None, "2b", now_ms + 60_000)
    assert await queue.broker.set_tenant("a", newer)
    assert await queue.broker.tenant_rules() == {"a": newer}


@fails_without("set_tenant: a clock that was set back makes nothing older")
async def test_an_operator_sets_a_tenant_whatever_the_clock_was(queue: Queue) -> None:
    ahead = TenantRule(3, None, "1f0a", await queue.broker.now_ms() + HOUR_MS)
    await queue.broker.set_tenant("a", ahead)
    assert await queue.broker.set_tenant("a", TenantRule(2, 1))
    assert (await rules(queue))["a"].max_running == 1
    assert not await queue.broker.set_tenant("a", ahead)


async def rules(queue: Queue) -> dict[str, TenantRule]:
    return await queue.broker.tenant_rules()


async def test_what_a_key_names_counts_as_what_operators_set(queue: Queue) -> None:
    await queue.broker.set_tenant("b", TenantRule(3, None, "1f0a", 5))
    await queue.broker.set_tenant("c", TenantRule(1, 2, "1f0a", 5))
    await flood(queue, "a", 30)
    await flood(queue, "b", 30, first=2000)
    await flood(queue, "c", 30, first=3000)
    taken = ids((await queue.pull(wanted=26)).claims)
    assert [sum(row.startswith(first) for row in taken) for first in "123"] == [6, 18, 2]
    (view,) = [each for each in await read_tenants(queue.broker) if each.tenant == "b"]
    assert (view.weight, view.key) == (3, "1f0a")


async def test_tenants_are_shown_with_what_they_use(queue: Queue) -> None:
    await queue.broker.set_tenant("a", TenantRule(2, 7))
    await flood(queue, "a", 3)
    await flood(queue, "b", 2, first=2000)
    lease = (await queue.pull(wanted=1)).claims[0].lease
    await end(queue, lease, 4, 10)
    first, second, *_ = await read_tenants(queue.broker)
    assert (first.tenant, first.weight, first.max_running, first.tokens, first.waiting) == ("a", 2.0, 7, 14, 2)
    assert (second.tenant, second.waiting) == ("", 0) or second.tenant == "b"


async def test_all_beyond_fifty_tenants_are_shown_together(queue: Queue) -> None:
    for i in range(60):
        await queue.add("high", f"{1000 + i}-0", tenant=f"t{i}", deadline=FAR)
    await queue.pull(wanted=0)
    views = await read_tenants(queue.broker)
    assert (len(views), views[-1].tenant, sum(view.waiting for view in views)) == (51, "other", 60)


@fails_without("tenants: what is held is found where its tenant was forgotten", "name ~= '' and tenants() or ", "")
async def test_what_is_held_is_found_where_its_tenant_was_forgotten_meanwhile(queue: Queue) -> None:
    lease = await queue.running(tenant="a")
    await queue.broker.release("w1", [lease], gave_way=True, kept={lease: ("run", 9)}, generated={lease: 0})
    later = queue.at(NOW + 3 * 3_600_000)
    for _ in range(3):
        await later.broker.serve(keep_tenants)
    assert ids((await later.pull("w2")).claims) == [lease.stream_id]
    assert not await queue.command("HEXISTS", queue.keys.lane_states, "labelled")


@fails_without("tenants: one pull looks at a bounded number at their limits", "if P.vain > 16 * SCAN", "if false")
async def test_one_pull_looks_at_a_bounded_number_of_tenants_at_their_limits(queue: Queue) -> None:
    names = [f"t{number:04}" for number in range(1_500)]
    record = struct.pack("<8d", 1, 1, 1, 1, 0, 0, NOW, 0)
    for place in range(0, len(names), 500):
        some = names[place : place + 500]
        await queue.command("HSET", queue.keys.served, *(word for name in some for word in (f"t|{name}", record)))
        await queue.command("HSET", queue.keys.tenants, *(word for name in some for word in (name, "1 1")))
        turns = [word for number, name in enumerate(some, place) for word in (number, name)]
        await queue.command("ZADD", queue.keys.turns("low"), *turns)
    await queue.command("HSET", queue.keys.lane_states, "tenants", "rules")
    await queue.add("low", "1000-0", tenant=names[0], deadline=FAR)
    assert (await queue.pull()).soonest_ms == 1_000, "the rest is for the next pull"
    in_turn = await queue.command("ZCOUNT", queue.keys.turns("low"), 0, "inf")
    assert 0 < in_turn < len(names) - 1_000


@fails_without("pull: what was dropped may have held up others", " or dropped > 0 and ready > 0", "")
async def test_who_drops_a_request_of_a_tenant_at_its_limit_pulls_again(queue: Queue) -> None:
    """Another one of it may run, and nobody else comes for that."""
    await queue.broker.set_tenant("a", TenantRule(1, 1))
    await queue.complete("w1", await queue.running("high", id="r"))
    for number, name in enumerate("rs"):
        await queue.add("high", f"{NOW - 9}-{number}", tenant="a", id=name)
    pulled = await queue.pull("w1", 2)
    assert (pulled.claims, pulled.dropped, pulled.role) == ([], 1, Role.NONE)
    assert len((await queue.pull("w1", 2)).claims) == 1
