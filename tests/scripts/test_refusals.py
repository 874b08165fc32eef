"""Redis refuses a command halfway through a script: nothing is lost by it, nothing uncounted, nobody left untold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamfleet.common.broker.types import Completion, Lease
from streamfleet.common.errors import NotPermitted
from streamfleet.common.protocol import Status
from tests.scripts.harness import NOW, Queue
from tests.scripts.mutants import fails_without


@asynccontextmanager
async def without(queue: Queue, command: str) -> AsyncIterator[None]:
    """Nobody may send this command meanwhile, scripts included."""
    await queue.command("ACL", "SETUSER", "default", f"-{command}")
    try:
        yield
    finally:
        await queue.command("ACL", "SETUSER", "default", f"+{command}")


def answered(lease: Lease, reply: str = "") -> Completion:
    return Completion(lease, Status.SUCCEEDED, {"response": "{}"}, reply)


@fails_without(
    "complete: a refusal halfway leaves nothing uncounted",
    "local ok, refusal = pcall(function()",
    "local ok, refusal = (function(outcome) outcome() return true end)(function()",
)
async def test_what_was_published_before_a_refusal_is_removed_and_counted(queue: Queue) -> None:
    first = await queue.running("high", "1000-0", id="r1")
    second = await queue.running("low", "1000-0", id="r2")
    async with without(queue, "xadd"):
        with pytest.raises(NotPermitted):
            await queue.broker.complete("w1", [answered(first), answered(second, "me")])
    after = await queue.dump()
    assert after["counts"] == {"staged": "2", "succeeded": "1"}
    assert "lane:high" not in after
    assert after["lane:low"]["pending"] == {"1000-0": ("w1", 1)}


@fails_without("publish: a refused notification is not remembered as told")
async def test_a_notification_that_was_refused_is_made_up_for(queue: Queue) -> None:
    lease = await queue.running("high", "1000-0", id="r1", reply="me")
    async with without(queue, "xadd"):
        with pytest.raises(NotPermitted):
            await queue.broker.complete("w1", [answered(lease, "me")])
    await queue.broker.complete("w1", [answered(lease, "me")])
    after = await queue.dump()
    assert after["reply:me"] == [{"id": "r1", "status": "succeeded"}]
    assert "lane:high" not in after


@fails_without("take: two entries of one id", "local asked = twice or #results", "local asked = #results")
async def test_the_second_entry_of_an_id_that_ends_in_the_same_pull_is_not_given_out(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="r1", deadline=NOW + 5)
    await queue.add("high", "1000-1", id="r1", deadline=NOW + 1_000)
    await queue.pull("w1", 0)
    assert (await queue.at(NOW + 5).pull("w1", 2)).claims == []
    assert (await queue.dump())["counts"] == {"staged": "2", "expired": "1", "duplicate": "1"}
