"""`streamfleet trace`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import (
    AsJson,
    QueueName,
    RedisUrl,
    connected,
    fail,
    out,
    queue_settings,
    run,
)

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.request_location import Trace

RequestId = Annotated[str, typer.Argument(metavar="ID", help="Request id, or `<lane>:<stream id>` of an entry.")]


def trace(
    request_id: RequestId,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Tell one request's whole story: when it came, where it is, who has it, what went wrong, how it ended.

    What a client enqueued is found at once by its id, however long the queue is. A request that was put in by a plain
    XADD under an id of its own is looked for among what workers hold and the oldest 500 entries of each lane, until it
    has ended; ask by `<lane>:<stream id>` to find it at once. The exit status is 1 when Redis holds nothing of it.

    ```text
    streamfleet trace r-42
    streamfleet trace high:1790000000000-0
    streamfleet trace r-42 --json | jq '{state, left_ms, worker}'
    ```
    """
    found = run(_look(queue_settings(redis_url, queue), request_id))
    if not found.known:
        from streamfleet.operator.request_trace import not_found

        fail(not_found(found))
    _show(found, as_json)


async def _look(settings: QueueSettings, request_id: str) -> Trace:
    from streamfleet.operator.request_location import trace as look_up

    async with connected(settings) as broker:
        return await look_up(broker, request_id)


def _show(found: Trace, as_json: bool) -> None:
    from streamfleet.operator.commands.trace_view import page
    from streamfleet.operator.json_view import trace_object

    out(json.dumps(trace_object(found), indent=2) if as_json else page(found))
