"""One id for two requests: the second ends as `id_reused`, whichever way both came and ended."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamfleet.common.broker.types import (
    Accepted,
    CompleteCode,
    Completion,
    EnqueueCode,
    Lease,
    RetryCode,
    Submission,
)
from streamfleet.common.protocol import Lane, Status, digest_of_bytes, hashed
from tests.scripts.harness import BODY, ERROR, Queue, submission
from tests.scripts.keyspace import Dump
from tests.scripts.mutants import fails_without

OTHER = '{"prompt":"another"}'
LATER = 2_000_000
"""When the deadlines of what expires here have passed."""


def digest(body: str = BODY, endpoint: str = "") -> str:
    return digest_of_bytes({b"body": body.encode(), b"endpoint": endpoint.encode()})


def by_client(body: str = BODY, text: str = "", reply: str = "me") -> Submission:
    """As the client sends it, behind all others; `text`: its JSON, if the bytes are others."""
    return submission("r1", Lane.LOW, reply, body, hashed(text or body) + digest(body))


async def add(queue: Queue, number: int, body: str, **fields: Any) -> str:
    """XADD an entry with the id of all; its name."""
    return f"high:{await queue.add('high', f'100{number}-0', id='r1', body=body, reply=f'reply{number}', **fields)}"


async def finish(queue: Queue, lease: Lease, body: str, status: Status = Status.SUCCEEDED) -> CompleteCode:
    """End a run as its worker does."""
    number, error = lease.stream_id[3], "" if status is Status.SUCCEEDED else ERROR
    done = Completion(lease, status, {"response": body}, f"reply{number}", error, digest=digest(body))
    (code,) = await queue.broker.complete(f"w{number}", [done])
    return code


async def claim(queue: Queue, number: int) -> Lease:
    return await queue.claim(f"w{number}")


def the_letter(dump: Dump) -> dict[str, str]:
    (letter,) = [each for each in dump["dead"] if "id_reused" in each["_error"]]
    return letter  # type: ignore[no-any-return]


async def reused(queue: Queue, second: str, first: str, answer: str = "") -> Dump:
    """Check that one entry, `second`, ended as reused, and that the id is still that of `first`; all keys."""
    dump = await queue.dump()
    letter = the_letter(dump)
    error = json.loads(letter["_error"])["error"]
    assert (error["code"], error["param"], error["type"]) == ("id_reused", "id", "invalid_request_error")
    assert first in error["message"]
    assert second in error["message"]
    assert (letter["_id"], letter["_status"], letter["_entry"]) == ("r1", "failed", second)
    assert (dump["counts"]["id_reused"], "duplicate" in dump["counts"]) == ("1", False)
    assert dump["request:r1"].split(" ")[1] == first
    result = dump.get("result:r1", {})
    assert result.get("entry", first) == first
    assert result.get("response", answer) == answer
    told = dump.get(f"reply:reply{second[8]}", [])
    assert told == [{"id": "r1", "status": "id_reused"}]
    assert (await queue.broker.audit()).problems() == []
    return dump


# -- both by plain XADD ------------------------------------------------------------------------------------------------


async def expire(queue: Queue) -> None:
    await queue.pull("w1", 0)
    await queue.at(LATER).broker.expire()


async def expire_at_the_pick(queue: Queue) -> None:
    await queue.at(LATER).pull("w1")


async def die_with_its_worker(queue: Queue) -> None:
    lease = await claim(queue, 1)
    await queue.age("high", lease.stream_id, "w1")
    assert (await queue.broker.reclaim(60_000, 1)).dead == 1


async def fail_for_the_last_time(queue: Queue) -> None:
    assert await queue.retry("w1", await claim(queue, 1), most=1) == RetryCode.DEAD


@fails_without("reused: an endpoint makes another request", "(entry.named.endpoint or '') .. '\\0'", "'\\0'")
async def test_an_endpoint_makes_another_request_of_the_same_body(queue: Queue) -> None:
    first = await add(queue, 1, BODY)
    await finish(queue, await claim(queue, 1), BODY)
    second = await add(queue, 2, BODY, endpoint="/v1/embeddings")
    await queue.pull("w2")
    await reused(queue, second, first, BODY)


@fails_without("reused: a long body is not read whole")
async def test_long_bodies_are_told_apart(queue: Queue) -> None:
    """Here by what scripts make of them when a deadline has passed; too long to run counts as well."""
    sizes = (65_536, 65_537, 200_000)
    for number, size in enumerate(sizes):
        bodies = ["x" * size, "y" + "x" * (size - 1), "x" * (size - 1) + "y", "x" * (size + 1)]
        for place, body in enumerate([*bodies, bodies[0]]):
            await queue.add("high", f"100{number}-{place}", id=f"r{size}", body=body, deadline=5)
        while (await queue.pull("w1", 5)).dropped:
            pass
        record = (await queue.dump())[f"request:r{size}"]
        assert record == f"{digest(bodies[0])} high:100{number}-0 "
    assert (await queue.dump())["counts"] == {"staged": "15", "expired": "3", "id_reused": "9", "duplicate": "3"}


async def test_long_bodies_of_clients_are_told_apart_in_their_middle_too(queue: Queue) -> None:
    long = ["x" * 50_000 + middle + "x" * 50_000 for middle in "ab"]
    assert digest(long[0]) == digest(long[1])
    answers = await queue.broker.enqueue([by_client(body) for body in long])
    assert [answer.code for answer in answers] == [EnqueueCode.ACCEPTED, EnqueueCode.CONFLICT]


async def test_without_a_record_it_is_a_duplicate(queue: Queue) -> None:
    await add(queue, 1, BODY)
    await finish(queue, await claim(queue, 1), BODY)
    await queue.command("DEL", queue.keys.request("r1"))
    await add(queue, 2, OTHER)
    await queue.pull("w2")
    assert (await queue.dump())["counts"] == {"staged": "2", "succeeded": "1", "duplicate": "1"}


async def test_a_record_lives_as_long_as_its_result(queue: Queue) -> None:
    await add(queue, 1, BODY)
    await finish(queue, await claim(queue, 1), BODY)
    left = [await queue.command("PTTL", key) for key in (queue.keys.request("r1"), queue.keys.result("r1"))]
    assert all(queue.limits.result_ttl_ms - 60_000 < each <= queue.limits.result_ttl_ms for each in left)


# -- by the client, and by plain XADD ----------------------------------------------------------------------------------


@fails_without("reused: the other request has not ended, and its record stays")
async def test_what_comes_beside_the_clients_request_is_not_its_answer(queue: Queue) -> None:
    (accepted,) = await queue.broker.enqueue([by_client()])
    second = await add(queue, 2, OTHER)
    assert await finish(queue, await claim(queue, 2), OTHER) == CompleteCode.ENDED_BEFORE
    dump = await reused(queue, second, accepted.entry)
    assert "result:r1" not in dump
    assert await queue.command("PTTL", queue.keys.request("r1")) > queue.limits.result_ttl_ms
    lease = (await queue.pull("w1")).claims[0].lease
    done = Completion(lease, Status.SUCCEEDED, {"response": BODY}, "me", digest=digest())
    assert await queue.broker.complete("w1", [done]) == [CompleteCode.PUBLISHED]
    await reused(queue, second, accepted.entry, BODY)
    assert await queue.command("PTTL", queue.keys.request("r1")) <= queue.limits.result_ttl_ms


@pytest.mark.parametrize("end", [expire, expire_at_the_pick, die_with_its_worker, fail_for_the_last_time])
async def test_nor_is_its_end(queue: Queue, end: Callable[[Queue], Awaitable[None]]) -> None:
    (accepted,) = await queue.broker.enqueue([by_client()])
    second = await add(queue, 1, OTHER, deadline=LATER)
    if end is die_with_its_worker:
        lease = await claim(queue, 1)
        await queue.age("high", lease.stream_id, "w1")
        reclaimed = await queue.broker.reclaim(60_000, 1)
        assert (reclaimed.dead, reclaimed.ended) == (0, 1)
    elif end is fail_for_the_last_time:
        assert await queue.retry("w1", await claim(queue, 1), most=1) == RetryCode.ANSWERED
    else:
        await end(queue)
    dump = await reused(queue, second, accepted.entry)
    assert "result:r1" not in dump
    assert await queue.command("PTTL", queue.keys.request("r1")) > queue.limits.result_ttl_ms


@pytest.mark.parametrize(
    ("again", "code"),
    [
        (by_client(), EnqueueCode.EXISTING),
        (by_client(OTHER), EnqueueCode.CONFLICT),
        (by_client('{"prompt": "hi"}', BODY), EnqueueCode.CONFLICT),
    ],
)
async def test_the_client_refuses_the_id_of_what_came_by_xadd_and_has_ended(
    queue: Queue, again: Submission, code: EnqueueCode
) -> None:
    """Bytes are all that is known of it."""
    first = await add(queue, 1, BODY)
    await finish(queue, await claim(queue, 1), BODY)
    assert await queue.broker.enqueue([again]) == [Accepted(code, first)]


@fails_without("reused: a client's request is the same with other blanks", "#known == 32 and #digest == 32", "false")
async def test_the_client_knows_its_request_by_its_json_or_by_its_bytes(queue: Queue) -> None:
    (accepted,) = await queue.broker.enqueue([by_client()])
    spaced = by_client('{"prompt": "hi"}', BODY)
    answers = await queue.broker.enqueue([spaced, submission("r1", digest=digest()), by_client(OTHER)])
    assert answers == [
        Accepted(EnqueueCode.EXISTING, accepted.entry),
        Accepted(EnqueueCode.EXISTING, accepted.entry),
        Accepted(EnqueueCode.CONFLICT, accepted.entry),
    ]


# -- afterwards --------------------------------------------------------------------------------------------------------
