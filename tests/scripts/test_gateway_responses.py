"""gateway_response_*.lua: what is stored of responses, what makes room for them, and how chains are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamfleet.gateway.broker import responses
from streamfleet.gateway.broker.responses import ChainCode, ResponseBroker, ResponseNames, ResponseRecord, Turn
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without

FIRST = ResponseRecord("k-1", "t", "default", root="k-1", input='["one"]')
LOOK_MS = 1_000
DONE: dict[str, Any] = {"status": "completed", "response": '{"a":1}', "output": '["answer"]'}
LIFE_MS = responses.KEPT_MS


def broker(queue: Queue, now_ms: int = NOW, **bounds: int) -> ResponseBroker:
    found = ResponseBroker(queue.connection, ResponseNames(queue.keys.base), lambda: now_ms)
    for name, most in bounds.items():
        setattr(found, name, most)
    return found


def numbered(number: int, size: int = 100, **changes: Any) -> ResponseRecord:
    """A response whose texts have so many bytes once it has ended."""
    return replace(FIRST, id=f"k-{number}", input=f'"{"x" * (size - 6)}"', **changes)


async def ended(queue: Queue, record: ResponseRecord, now_ms: int = NOW, **bounds: int) -> None:
    found = broker(queue, now_ms, **bounds)
    assert await found.add(record, LOOK_MS) == now_ms
    assert await found.finish(record, {"status": "completed"})


async def left(queue: Queue) -> list[str]:
    """Ids of the responses that are there."""
    found = await queue.dump()
    kept = [name.removeprefix("response:") for name in found if name.startswith("response:")]
    assert sorted(member.split(" ")[0] for member, _ in found.get("responses:t", [])) == sorted(kept)
    return sorted(kept)


async def used(queue: Queue) -> int:
    found = await queue.dump()
    total = int(found.get("use:t", {}).get("response_bytes", 0))
    assert total == sum(int(member.split(" ")[1]) for member, _ in found.get("responses:t", []))
    return total


async def test_a_response_is_open_and_then_ended(queue: Queue) -> None:
    found = broker(queue)
    assert await found.add(FIRST, LOOK_MS) == NOW
    assert await queue.dump() == {
        "response:k-1": {**FIRST.fields(), "created_ms": str(NOW), "bytes": "9"},
        "responses:t": [("k-1 9", NOW)],
        "open_responses": [("k-1", NOW + LOOK_MS)],
        "use:t": {"response_bytes": "9"},
    }
    assert await found.finish(FIRST, DONE)
    assert await queue.dump() == {
        "response:k-1": {**FIRST.fields(), **DONE, "created_ms": str(NOW), "bytes": "24", "items": ""},
        "responses:t": [("k-1 24", NOW)],
        "use:t": {"response_bytes": "24"},
    }
    assert await found.records(["k-1", "k-2"]) == [replace(FIRST, **DONE, created_ms=NOW), None]


@fails_without("gateway_response_finish: it ends once")
async def test_it_ends_once(queue: Queue) -> None:
    await ended(queue, FIRST)
    async with queue.unchanged():
        assert not await broker(queue).finish(FIRST, DONE)
        assert not await broker(queue).finish(numbered(2), DONE), "it is not there"


@fails_without("gateway_response_add: asked again")
async def test_a_second_call_changes_nothing(queue: Queue) -> None:
    await ended(queue, FIRST)
    async with queue.unchanged():
        assert await broker(queue, NOW + 5).add(replace(FIRST, input="[]"), LOOK_MS) == NOW


@fails_without("gateway_response_add: only the one that was read is replaced", "known ~= ARGV[8]", "ARGV[8] == '0'")
@fails_without("gateway_response_add: what is replaced goes")
async def test_a_later_try_replaces_what_it_has_read_and_nothing_else(queue: Queue) -> None:
    """Two equal tries have read it: the second one leaves what the first one has stored."""
    stored = replace(FIRST, input="@20000 aa/in")
    await queue.command("ZADD", f"{queue.keys.base}loose", NOW + LIFE_MS, "aa/in")
    await broker(queue).add(stored, LOOK_MS)
    assert await broker(queue).finish(stored, DONE, ["msg_1"])
    anew = replace(FIRST, input='["anew"]')
    for later in (5, 7):
        assert await broker(queue, NOW + later).add(anew, LOOK_MS, NOW) == NOW + 5
        assert await broker(queue).records(["k-1"]) == [replace(anew, created_ms=NOW + 5)]
    assert await broker(queue).items("k", ["msg_1"]) == []
    assert (await queue.dump())["loose"] == [("aa/in", 0)]
    assert await used(queue) == len(anew.input) + 2


@fails_without(
    "gateway_response_add: what finds no room replaces nothing",
    "local no_room =",
    "call('DEL', KEYS[1])\nlocal no_room =",
)
async def test_what_finds_no_room_replaces_nothing(queue: Queue) -> None:
    """One whose end is still to be announced makes no room."""
    told = replace(FIRST, callback_url="https://example.com/")
    await broker(queue).add(told, LOOK_MS)
    assert await broker(queue).finish(told, DONE)
    async with queue.unchanged():
        assert await broker(queue, NOW + 5, most_bytes=20).add(told, LOOK_MS, NOW) is None


@fails_without("gateway_response_finish: open until it is announced", "ARGV[6] ~= '1' then call", "true then call")
async def test_one_whose_end_is_announced_stays_open_until_then(queue: Queue) -> None:
    told = replace(FIRST, callback_url="https://example.com/")
    found = broker(queue)
    await found.add(told, LOOK_MS)
    assert await found.finish(told, DONE)
    assert await broker(queue, NOW + LOOK_MS).due(10, 500) == ["k-1"]
    await found.close_response("k-1")
    assert await broker(queue, NOW + 2 * LOOK_MS).due(10, 500) == []


async def test_one_that_was_seen_to_run_is_marked_while_it_is_there(queue: Queue) -> None:
    found = broker(queue)
    await found.add(FIRST, LOOK_MS)
    for _ in range(2):
        await found.begin("k-1")
        assert await found.records(["k-1"]) == [replace(FIRST, begun=True, created_ms=NOW)]
    await found.delete("t", "k-1")
    await found.begin("k-1")
    assert await queue.dump() == {}


@fails_without("gateway_response_finish: a content that was replaced is let go")
@fails_without("gateway_response_delete: contents are let go")
@fails_without("gateway_response_delete: its items are not found any more", "id, unpack(item_keys(id, texts[4]))", "id")
@fails_without("gateway_response_delete: gives room back", ", KEYS[5], id)\n  give_back(", ", KEYS[5], id)\n  print(")
async def test_a_deleted_response_leaves_its_contents_to_be_deleted(queue: Queue) -> None:
    stored = replace(FIRST, input="@20000 aa/in", response="@30000 aa/before")
    found = broker(queue)
    for name in ("aa/in", "aa/before", "aa/out"):
        await queue.command("ZADD", f"{queue.keys.base}loose", NOW + LIFE_MS, name)
    await found.add(stored, LOOK_MS)
    assert await found.finish(stored, {**DONE, "output": "@40000 aa/out"}, ["msg_1", "msg_2"])
    assert await found.items("k", ["msg_1", "msg_3", "msg_2"]) == ["k-1"]
    assert await found.items("k2", ["msg_1"]) == []
    assert await used(queue) == 60_007
    loose = dict((await queue.dump())["loose"])
    assert (loose["aa/before"], loose["aa/in"] > NOW, loose["aa/out"] > NOW) == (0, True, True), (
        "another took its place"
    )
    assert await found.delete("t", "k-1")
    assert await queue.dump() == {"loose": [("aa/before", 0), ("aa/in", 0), ("aa/out", 0)]}
    assert not await found.delete("t", "k-1")


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 10**9), (10_000, 399)])
async def test_the_oldest_make_room(queue: Queue, most: int, most_bytes: int) -> None:
    for number in range(1, 6):
        await ended(queue, numbered(number), NOW + number, most=most, most_bytes=most_bytes)
    assert await left(queue) == ["k-3", "k-4", "k-5"]
    assert await used(queue) == 3 * 100


@fails_without(
    "gateway_response_add: the bytes of a tenant's", " or used(KEYS[3], 'response_bytes') + bytes > most_bytes", ""
)
async def test_an_end_makes_room_too(queue: Queue) -> None:
    for number in (1, 2):
        await ended(queue, numbered(number), NOW + number)
    await broker(queue, NOW + 3).add(numbered(3), LOOK_MS)
    assert await broker(queue, most_bytes=400).finish(numbered(3), {**DONE, "output": f'"{"x" * 198}"'})
    assert await left(queue) == ["k-3"]
    assert await used(queue) == 96 + 7 + 200


@fails_without("gateway_response_add: what has not ended stays")
@fails_without("gateway_response_add: the number of a tenant's", "call('ZCARD', KEYS[2]) + more > most or used", "used")
async def test_what_has_not_ended_stays(queue: Queue) -> None:
    found = broker(queue, most=2)
    for number in (1, 2):
        await found.add(numbered(number), LOOK_MS)
    assert await found.add(numbered(3), LOOK_MS) is None
    assert await left(queue) == ["k-1", "k-2"]
    assert await found.finish(numbered(1), {"status": "failed"})
    assert await found.add(numbered(3), LOOK_MS) == NOW
    assert await left(queue) == ["k-2", "k-3"]


@fails_without(
    "gateway_response_add: it steps over what has not ended",
    "stays then at = at + 1",
    "stays then return is_full and ''",
)
async def test_the_oldest_that_have_ended_make_room_behind_one_that_has_not(queue: Queue) -> None:
    """Ends too: the bytes of a tenant stay bounded."""
    found = broker(queue, most=3, most_bytes=399)
    await found.add(numbered(1), LOOK_MS)
    for number in range(2, 7):
        await ended(queue, numbered(number), NOW + number, most=3, most_bytes=399)
        assert await used(queue) <= 399
    assert await left(queue) == ["k-1", "k-5", "k-6"]
    for number in (5, 6):
        await found.delete("t", f"k-{number}")
    grown = {"status": "completed", "output": f'"{"x" * 250}"'}
    await found.add(numbered(2), LOOK_MS)
    assert await found.finish(numbered(2), grown)
    assert await used(queue) > 399, "an answer is stored all the same"
    await found.add(numbered(3), LOOK_MS)
    assert await left(queue) == ["k-1", "k-3"], "and is the next that goes"


async def test_many_that_have_not_ended_are_stepped_over_at_once(queue: Queue) -> None:
    """In pieces: more of them than a piece holds."""
    found = broker(queue, most=250)
    for number in range(1, 250):
        await found.add(numbered(number), LOOK_MS)
    for number in (250, 251):
        await ended(queue, numbered(number), NOW + 1, most=250)
    assert "k-250" not in await left(queue)
    assert await found.add(numbered(252), LOOK_MS) is not None
    assert await found.add(numbered(253), LOOK_MS) is None


@fails_without("gateway_response_add: a hundred in one call", "if at < before + #ids then", "if false then")
@fails_without("gateway_response_add: it is called until there is room", "is_full and 'again' or nil", "nil")
async def test_a_call_deletes_a_hundred_and_is_repeated_until_there_is_room(queue: Queue) -> None:
    """Redis serves others between the calls."""
    for number in range(1, 251):
        await ended(queue, numbered(number), NOW + number)
    calls = queue.note_calls()
    assert await broker(queue, most=20).add(numbered(251), LOOK_MS) == NOW
    assert calls == ["gateway_response_add"] * 3
    assert len(await left(queue)) == 20


@fails_without("gateway_response_add: a hundred in one call that need not go", "is_full and 'again' or nil", "'again'")
async def test_more_than_a_hundred_that_only_have_expired_wait_for_other_calls(queue: Queue) -> None:
    for number in range(1, 151):
        await ended(queue, numbered(number), NOW)
    calls = queue.note_calls()
    for number, kept in ((151, 51), (152, 2)):
        await broker(queue, NOW + LIFE_MS).add(numbered(number), LOOK_MS)
        assert len(await left(queue)) == kept
    assert calls == ["gateway_response_add"] * 2


async def test_an_end_deletes_a_hundred_and_the_next_response_the_others(queue: Queue) -> None:
    for number in range(1, 152):
        await ended(queue, numbered(number), NOW + number)
    await broker(queue, NOW + 200).add(numbered(152), LOOK_MS)
    assert await broker(queue, most_bytes=1_000).finish(numbered(152), DONE)
    assert len(await left(queue)) == 52
    await broker(queue, most_bytes=1_000).add(numbered(153), LOOK_MS)
    assert await used(queue) <= 1_000


@fails_without("gateway_response_add: thirty days", "and tonumber(piece[2 * i]) > oldest_ms then return", "then return")
@fails_without("gateway_response_add: records expire", "call('PEXPIRE', KEYS[1], ARGV[4])\n", "")
@fails_without("gateway_response_add: so does the list")
async def test_after_thirty_days_they_go(queue: Queue) -> None:
    await ended(queue, numbered(1))
    for name in ("response:k-1", "responses:t"):
        assert await queue.command("PTTL", f"{queue.keys.base}{name}") > LIFE_MS - 10_000
    await ended(queue, numbered(2), NOW + LIFE_MS)
    assert await left(queue) == ["k-2"]


@fails_without("gateway_response_add: what expired counts no more")
async def test_what_a_tenant_has_is_counted_anew_where_nothing_is_left(queue: Queue) -> None:
    """Its records have expired, and nobody counted them out."""
    await ended(queue, numbered(1))
    await queue.command("DEL", f"{queue.keys.base}response:k-1", f"{queue.keys.base}responses:t")
    await ended(queue, numbered(2))
    assert await used(queue) == 100


async def test_a_chain_is_read_from_its_end(queue: Queue) -> None:
    await ended(queue, FIRST)
    second = numbered(2, previous="k-1", root="k-1")
    await broker(queue).add(second, LOOK_MS)
    turns = [Turn("in_progress", "k-1", second.input, ""), Turn("completed", "k-1", FIRST.input, "")]
    assert await broker(queue).chain("k-2", 1_000) == (ChainCode.READ, turns)
    assert await broker(queue).chain("k-3", 1_000) == (ChainCode.GONE, [])
    await broker(queue).delete("t", "k-1")
    assert await broker(queue).chain("k-2", 1_000) == (ChainCode.GONE, []), "its beginning is gone"


@fails_without("gateway_response_chain: it is bounded")
async def test_a_chain_is_bounded(queue: Queue) -> None:
    await ended(queue, replace(FIRST, input="@500 aa/in"))
    for number in (2, 3):
        await ended(queue, numbered(number, previous=f"k-{number - 1}", root="k-1"))
    assert (await broker(queue).chain("k-3", 692))[0] is ChainCode.READ
    assert (await broker(queue).chain("k-3", 691))[0] is ChainCode.TOO_LONG
    assert (await broker(queue, most_turns=2).chain("k-2", 692))[0] is ChainCode.READ
    assert (await broker(queue, most_turns=2).chain("k-3", 692))[0] is ChainCode.TOO_LONG


async def test_those_of_a_key_are_found(queue: Queue) -> None:
    for name in ("k-1", "k2-1", "k-2"):
        await ended(queue, replace(FIRST, id=name))
    assert await broker(queue).ids_of("t", "k") == ["k-1", "k-2"]
    await ended(queue, replace(FIRST, id="k-3"), NOW + 1)
    assert await broker(queue).ids_of("t", "k", newest=1) == ["k-3"]
