"""Looking through a long lane: what is shown of each request is so, wherever in the lane it stands."""

from __future__ import annotations

import json

import redis

from streamfleet.common.connection import Connection
from streamfleet.common.keys import GROUP, Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Lane
from streamfleet.gateway.ui.search import WAITING, SearchCriteria, search
from streamfleet.producer.status import RUNNING
from tests.broker import Broker

BODY = json.dumps({"prompt": "hi"})
HELD, WAITS = 1_300, 5


async def test_the_newest_run_though_many_older_ones_do_too(redis_url: str) -> None:
    broker = Broker(Connection(redis_url, patience_s=0), Keys("default"), QueueLimits())
    lane = broker.keys.lane(Lane.LOW)
    try:
        await broker.connection.pipeline([("XADD", lane, "*", "body", BODY)] * (HELD + WAITS))
        await broker.pull("w1", 0)
        with redis.Redis.from_url(redis_url) as client:
            client.xgroup_setid(lane, GROUP, "0")
            client.xreadgroup(GROUP, "w1", {lane: ">"}, count=HELD)
        rows = list((await search(broker, SearchCriteria(limit=20))).rows.values())
        assert [row["state"] for row in rows] == [WAITING] * WAITS + [RUNNING] * (20 - WAITS)
        running = list((await search(broker, SearchCriteria(state=RUNNING, limit=3))).rows.values())
        assert [row["state"] for row in running] == [RUNNING] * 3
        assert max(row["enqueued_ms"] for row in running) <= rows[-1]["enqueued_ms"], "of these the oldest"
    finally:
        await broker.close()
