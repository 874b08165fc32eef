"""Tokens in Redis: groups while a request runs, and one last entry however it ends; nothing for any other request."""

from __future__ import annotations

import pytest

from streamfleet.common.broker.types import CompleteCode, Completion, Lease, Submission, TokenGroup
from streamfleet.common.errors import BrokerOutOfMemory
from streamfleet.common.protocol import Lane, Status
from tests.scripts.harness import BODY, ERROR, NOW, Queue, submission
from tests.scripts.mutants import fails_without


def group(number: int = 0, request_id: str = "r1", *, attempt: int = 1, lasting: bool = True) -> TokenGroup:
    return TokenGroup(request_id, attempt, "run", number, b'{"a":1}\n{"b":2}', lasting)


def done(lease: Lease, status: Status = Status.SUCCEEDED, chunks: int = 2, reply: str = "") -> Completion:
    error = "" if status is Status.SUCCEEDED else ERROR
    return Completion(lease, status, {"response": "{}", "streamed": chunks}, reply, error)


def ended(status: str, attempt: int | None = None, chunks: int | None = None) -> dict[str, str]:
    """The last entry of a request's tokens."""
    counted = {} if attempt is None else {"attempt": str(attempt), "chunks": str(chunks)}
    return {"end": status, **counted}


async def tokens(queue: Queue, request_id: str = "r1") -> list[dict[str, str]]:
    """Returns the entries of a request's tokens."""
    found: list[dict[str, str]] = (await queue.dump()).get(f"tokens:{request_id}", [])
    return found


async def streaming(queue: Queue, stream_id: str = "1000-0", **more: object) -> Lease:
    return await queue.running("high", stream_id, **{"id": "r1", "stream": "1", **more})


# -- groups ------------------------------------------------------------------------------------------------


async def test_groups_stand_as_the_protocol_says_and_expire(queue: Queue) -> None:
    await queue.broker.publish_tokens([group(), group(2, lasting=False), group(0, "r2")], 100)
    expected = {"attempt": "1", "run": "run", "seq": "0", "chunks": '{"a":1}\n{"b":2}'}
    assert await tokens(queue) == [expected, expected | {"seq": "2"}]
    assert await tokens(queue, "r2") == [expected]
    assert 0 < await queue.command("PTTL", queue.keys.tokens("r1")) <= queue.limits.result_ttl_ms


async def test_about_as_many_are_kept_as_are_to_be(queue: Queue) -> None:
    await queue.broker.publish_tokens([group(number) for number in range(500)], 100)
    assert 100 <= await queue.command("XLEN", queue.keys.tokens("r1")) < 300


async def test_a_full_server_refuses_groups_and_takes_the_end(queue: Queue) -> None:
    lease = await streaming(queue)
    async with queue.full_memory():
        with pytest.raises(BrokerOutOfMemory):
            await queue.broker.publish_tokens([group()], 100)
        assert await queue.broker.complete("w1", [done(lease)]) == [1]
    assert await tokens(queue) == [ended("succeeded", 1, 2)]


async def test_readers_get_what_stands_behind_their_places(queue: Queue) -> None:
    await queue.broker.publish_tokens([group(), group(2), group(0, "r2")], 100)
    found = await queue.broker.read_tokens({"r1": "0-0", "r2": "0-0", "r3": "0-0"}, 10)
    assert {name: [fields[b"seq"] for _, fields in entries] for name, entries in found.items()} == {
        "r1": [b"0", b"2"],
        "r2": [b"0"],
    }
    first = found["r1"][0][0]
    found = await queue.broker.read_tokens({"r1": first, "r2": found["r2"][0][0]}, 10, block_ms=1_000)
    assert [fields[b"seq"] for _, fields in found["r1"]] == [b"2"]
    assert await queue.broker.read_tokens({"r3": "0-0"}, 10, block_ms=2) == {}
    assert [fields[b"seq"] for _, fields in await queue.broker.newest_tokens("r1", 1)] == [b"2"]


# -- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.EXPIRED])
async def test_the_end_comes_with_the_result(queue: Queue, status: Status) -> None:
    lease = await streaming(queue, reply="me")
    await queue.broker.publish_tokens([group()], 100)
    assert await queue.broker.complete("w1", [done(lease, status, reply="me")]) == [CompleteCode.PUBLISHED]
    assert (await tokens(queue))[1:] == [ended(status, 1, 2)]
    after = await queue.dump()
    assert (after["result:r1"]["status"], after["result:r1"]["streamed"]) == (status, "2")
    assert await queue.broker.complete("w1", [done(lease, status, reply="me")]) == [CompleteCode.PUBLISHED_BEFORE]
    assert (await tokens(queue))[1:] == [ended(status, 1, 2)]


@fails_without(
    "tokens: an outcome ends them", "= #KEYS > SHARED + 2 * #outcomes and tokens_of(values, n, attempt) or nil", "= nil"
)
@fails_without("tokens: those of others are not ended", "if values[i] == 'streamed' then return", "if true then return")
async def test_of_several_outcomes_only_the_streamed_ones_have_an_end(queue: Queue) -> None:
    plain = await queue.running("high", "1000-0", id="r0")
    leases = [await streaming(queue, f"1000-{number}", id=f"r{number}") for number in (1, 2)]
    again = await queue.running("high", "1000-3", id="r3")
    items = [
        Completion(plain, Status.SUCCEEDED, {"response": "{}"}),
        done(leases[0], chunks=5),
        done(leases[1], chunks=0),
        Completion(again, Status.SUCCEEDED, {"response": "{}"}),
    ]
    assert await queue.broker.complete("w1", items) == [1, 1, 1, 1]
    after = await queue.dump()
    assert {name for name in after if name.startswith("tokens:")} == {"tokens:r1", "tokens:r2"}
    assert (after["tokens:r1"], after["tokens:r2"]) == ([ended("succeeded", 1, 5)], [ended("succeeded", 1, 0)])
    assert "streamed" not in after["result:r0"]
    assert "streamed" not in after["result:r3"]


async def test_who_lost_the_lease_ends_nothing(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.broker.reclaim(0, 3)
    assert await queue.broker.complete("w1", [done(lease)]) == [CompleteCode.LOST]
    assert await tokens(queue) == []


@fails_without("tokens: what no worker ends is ended for readers too", "entry.reply, read and {})", "entry.reply)")
async def test_one_that_expires_in_the_queue_is_ended_by_the_pull(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", stream="1", deadline=NOW)
    await queue.add("high", "1000-1", id="r2", deadline=NOW)
    assert (await queue.pull("w1", 2)).dropped == 2
    assert await tokens(queue) == [ended("expired")]
    assert await tokens(queue, "r2") == []
    assert (await queue.dump())["result:r1"]["streamed"] == "0"


async def test_one_that_expires_in_the_queue_is_ended_by_the_housekeeping(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", stream="1", deadline=NOW + 5)
    await queue.pull("w1", 0)
    assert (await queue.at(NOW + 10).broker.expire())[0] == 1
    assert await tokens(queue) == [ended("expired")]


async def test_one_that_is_too_large_is_ended(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", stream="1", body="x" * 3_000)
    await queue.pull()
    assert await tokens(queue) == [ended("failed")]


async def test_one_that_is_given_up_is_ended(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.broker.publish_tokens([group()], 100)
    assert await queue.retry("w1", lease, most=1) == 2
    assert (await tokens(queue))[1:] == [ended("dead")]


@fails_without("tokens: they expire")
async def test_one_that_is_lost_with_its_last_worker_is_ended(queue: Queue) -> None:
    await streaming(queue)
    assert (await queue.broker.reclaim(0, 1)).dead == 1
    assert await tokens(queue) == [ended("dead")]


async def test_one_that_is_tried_again_is_not_ended(queue: Queue) -> None:
    lease = await streaming(queue)
    assert await queue.retry("w1", lease, most=3) == 1
    lease = await queue.claim()
    await queue.broker.release("w1", [lease])
    assert await tokens(queue) == []


# -- cancelling --------------------------------------------------------------------------------------------


def streamed(request_id: str, **more: str) -> Submission:
    sub = submission(request_id)
    return Submission(sub.id, sub.lane, {**sub.fields, "stream": b"1"}, sub.digest, sub.reply)


@fails_without("tokens: a cancel that told readers says so", ", streamed = tokens and '0'}", "}")
async def test_one_that_is_cancelled_in_the_queue_is_ended_at_once_and_once(queue: Queue) -> None:
    await queue.broker.enqueue([streamed("r1"), submission("r2")])
    for name in ("r1", "r2", "r1"):
        assert await queue.broker.cancel(name)
    assert await tokens(queue) == [ended("cancelled")]
    assert await tokens(queue, "r2") == []
    assert "lane:high" not in await queue.dump()


@fails_without("tokens: a cancel ends them by the entry")
async def test_one_that_runs_and_is_cancelled_before_its_first_token_is_ended_at_once(queue: Queue) -> None:
    await queue.broker.enqueue([streamed("r1")])
    await queue.claim()
    assert await queue.broker.cancel("r1")
    assert await tokens(queue) == [ended("cancelled")]


@pytest.mark.parametrize(("fields", "name"), [({}, "high:1000-0"), ({"id": "r1"}, "r1")])
async def test_one_that_was_put_in_by_hand_is_ended_at_once(queue: Queue, fields: dict[str, str], name: str) -> None:
    await queue.add("high", "1000-0", stream="1", **fields)
    assert await queue.broker.cancel(name)
    assert await tokens(queue, name) == [ended("cancelled")]


@fails_without("tokens: who was not told is made up for")
async def test_one_whose_entry_is_not_found_is_ended_when_that_is_removed(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", stream="1")
    await queue.command("SET", queue.keys.request("r1"), "d x ", "PX", 60_000)  # tells no entry
    assert await queue.broker.cancel("r1")
    assert await tokens(queue) == []
    assert (await queue.pull()).dropped == 1
    assert await tokens(queue) == [ended("cancelled")]


@fails_without("tokens: a cancel ends them by what was streamed", "= call('EXISTS', KEYS[SHARED + 3]) == 1", "= false")
async def test_one_whose_entry_is_not_found_and_that_streams_already_is_ended_at_once(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.command("SET", queue.keys.request("r1"), "d x ", "PX", 60_000)  # tells no entry
    await queue.broker.publish_tokens([group()], 100)
    assert await queue.broker.cancel("r1")
    assert (await tokens(queue))[1:] == [ended("cancelled")]
    assert await queue.broker.complete("w1", [done(lease, Status.CANCELLED)]) == [CompleteCode.ENDED_BEFORE]
    assert (await tokens(queue))[1:] == [ended("cancelled")]


@fails_without("tokens: by the entry of that request", "entry and entry.id == id then return", "entry then return")
@fails_without("tokens: an odd record cancels nothing less", "= pcall(call, 'XRANGE',", "= true, call('XRANGE',")
async def test_an_entry_that_is_another_requests_says_nothing_of_this_one(queue: Queue) -> None:
    """A record is anybody's work: it may name any entry."""
    await queue.add("high", "1000-0", id="other", stream="1")
    await queue.command("SET", queue.keys.request("r1"), "d high:1000-0 ", "PX", 60_000)
    assert await queue.broker.cancel("r1")
    await queue.command("SET", queue.keys.request("r2"), f"d high:{'9' * 20}-0 ", "PX", 60_000)
    assert await queue.broker.cancel("r2")
    assert (await tokens(queue), await tokens(queue, "r2")) == ([], [])


async def test_what_ended_is_not_ended_again(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.broker.complete("w1", [done(lease)])
    async with queue.unchanged():
        assert not await queue.broker.cancel("r1")


# -- the same id again -------------------------------------------------------------------------------------


@fails_without("tokens: who was told is not told again", "(entry) and not result[3] then", "(entry) then")
async def test_a_duplicate_adds_no_second_end(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.broker.complete("w1", [done(lease)])
    await queue.add("high", "1000-5", id="r1", stream="1")
    assert (await queue.pull()).dropped == 1
    assert await tokens(queue) == [ended("succeeded", 1, 2)]


@fails_without("tokens: made up for once")
async def test_readers_of_a_duplicate_of_one_that_was_not_streamed_are_told_too(queue: Queue) -> None:
    await queue.complete("w1", await queue.running("high", "1000-0", id="r1"))
    for number in (5, 6):
        await queue.add("high", f"1000-{number}", id="r1", stream="1")
    assert (await queue.pull("w1", 2)).dropped == 2
    assert await tokens(queue) == [ended("succeeded")]


@fails_without("tokens: another life has its own")
@fails_without("tokens: another life says that it is one")
async def test_another_life_begins_without_the_tokens_of_the_former_one(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.broker.publish_tokens([group()], 100)
    await queue.broker.complete("w1", [done(lease, Status.FAILED)])
    letter = (await queue.broker.dead_letters(1))[0][0]
    fields = [b"id", b"r1", b"body", BODY.encode(), b"stream", b"1"]
    assert (await queue.broker.requeue(letter, "r1", Lane.HIGH, fields, entry=lease.entry))[0]
    assert await tokens(queue) == [{"requeued": letter}], "who has a number of chunks has them of the former life"
    assert 0 < await queue.command("PTTL", queue.keys.tokens("r1")) <= queue.limits.result_ttl_ms
    await queue.broker.complete("w1", [done(await queue.claim())])
    assert await tokens(queue) == [{"requeued": letter}, ended("succeeded", 1, 2)]


@fails_without("tokens: of what vanished", "call('EXISTS', tokens) == 1 and {} or nil", "nil")
async def test_one_whose_entry_was_deleted_is_ended_where_it_streamed(queue: Queue) -> None:
    await queue.broker.enqueue([streamed("r1"), streamed("r2")])
    for lease in [claim.lease for claim in (await queue.pull("w1", 2)).claims]:
        await queue.command("XDEL", queue.keys.lane("high"), lease.stream_id)
        await queue.command("XACK", queue.keys.lane("high"), "workers", lease.stream_id)
    await queue.broker.publish_tokens([group()], 100)
    assert await queue.broker.end_vanished(["r1", "r2"], mend=True) == ["r1", "r2"]
    assert (await tokens(queue))[1:] == [ended("dead")]


# -- refusals ----------------------------------------------------------------------------------------------


@fails_without("tokens: a refusal holds up no ending", "local added = redis.pcall", "local added = call")
async def test_a_key_of_another_type_holds_up_no_ending(queue: Queue) -> None:
    lease = await streaming(queue)
    await queue.command("SET", queue.keys.tokens("r1"), "mine", "PX", 60_000)
    assert await queue.broker.complete("w1", [done(lease)]) == [CompleteCode.PUBLISHED]
    after = await queue.dump()
    assert (after["tokens:r1"], after["result:r1"]["status"]) == ("mine", "succeeded")
    assert "lane:high" not in after
