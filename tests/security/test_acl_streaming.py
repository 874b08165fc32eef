"""A producer reads along although it may not end blocking reads: those of others are none of its business."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from streamfleet.common.broker.types import Completion, TokenGroup
from streamfleet.common.protocol import Status
from streamfleet.operator.access_rules import Role
from streamfleet.producer import Client, Handle
from tests.security.guarded import QUEUE, Guarded
from tests.waiting import eventually

CHUNK = b'{"choices": [{"index": 0, "text": "hi"}]}'


async def test_a_producer_is_told_of_streams_that_it_opens_while_it_reads_others(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, long in (("QUIET_S", 60), ("BLOCK_MS", 60_000)):  # it is told, and does not find them when looking
        monkeypatch.setattr(f"streamfleet.producer.feeds.{name}", long)
    url = guarded.enlist(Role.PRODUCER)
    async with guarded.broker() as fleet, Client(url, QUEUE, patience_s=0) as client:
        handles = [await client.enqueue({"prompt": "hi"}, id=f"r-{number}", stream=True) for number in range(4)]
        leases = [claim.lease for claim in (await fleet.pull("w1", 4)).claims]
        reading = []
        for handle in handles:
            reading.append(asyncio.create_task(texts(handle)))
            await eventually(partial(client._open.feeds._feeds.__contains__, handle.id))

        for lease, texts_of in reversed(list(zip(leases, reading, strict=True))):  # the one read from first is last
            await fleet.publish_tokens([TokenGroup(lease.request_id, 1, "run", 0, CHUNK, True)], 100)
            done = Completion(lease, Status.SUCCEEDED, {"response": "{}", "streamed": 1}, "", "")
            assert await fleet.complete("w1", [done]) == [1]
            assert await asyncio.wait_for(texts_of, 20) == ["hi"]
    with guarded.admin() as admin:
        refused = [row for row in admin.acl_log() if row["username"] == Role.PRODUCER]
    assert {row["object"] for row in refused} <= {"client|unblock", "client|setinfo"}


async def texts(handle: Handle) -> list[str]:
    return [chunk.text async for chunk in handle.stream()]
