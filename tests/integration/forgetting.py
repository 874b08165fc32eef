"""A Redis that has lost requests, as after a failover to a replica that did not have them yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamfleet.common.keys import Keys
from tests.waiting import until_somebody_blocks

KEYS = Keys("default")


async def lose(rows: Any, request_ids: Iterable[str]) -> None:
    """Requests that no worker has taken are gone without a trace, and everybody has to connect again.

    Args:
        rows: a client of Redis, with text as answers.
        request_ids: which.
    """
    await until_somebody_blocks(rows)
    for request_id in request_ids:
        record = await rows.get(KEYS.request(request_id))
        lane, _, stream_id = record.split(" ")[1].partition(":")
        assert await rows.xdel(KEYS.lane(lane), stream_id) == 1
        await rows.delete(KEYS.request(request_id))
    await rows.client_kill_filter(_type="normal", skipme=True)
