"""`streamfleet workers`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from streamfleet.operator.commands.common import (
    AsJson,
    Interval,
    QueueName,
    RedisUrl,
    Watch,
    connected,
    queue_settings,
    run,
    show_looks,
)

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.broker import OperatorBroker
    from streamfleet.operator.fleet import WorkerView


def workers(
    watch: Watch = False,
    interval: Interval = 2.0,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """List the workers: engine and model, version, age, whether they take requests or why not, and what they hold.

    "seen" is the last sign of life, which comes at least once a lease; one that has been silent for long is marked, and
    listed only while it holds requests: others take these over when the lease is over. With --json: all of them.
    "KV" is the part of the KV cache in use, "mean batch" how many of its sequences ran together on average in the last
    minute, while any ran; "-" where the engine does not know, or none ran. "oldest held" is for how long a worker has
    had the request that it has had for longest. With --json and --watch: a line for each look.

    ```text
    streamfleet workers
    streamfleet workers --watch
    streamfleet workers --json | jq '.[] | select(.takes_requests | not) | .name'
    ```
    """
    run(_workers(queue_settings(redis_url, queue), interval if watch else None, as_json))


async def _workers(settings: QueueSettings, interval_s: float | None, as_json: bool) -> None:
    from streamfleet.operator.commands.workers_view import render
    from streamfleet.operator.json_view import worker_object

    async with connected(settings) as broker:
        to_json = (lambda found: [*map(worker_object, found)]) if as_json else None
        await show_looks(_looks(broker, interval_s), render, to_json, watched=interval_s is not None)


async def _looks(broker: OperatorBroker, interval_s: float | None) -> AsyncIterator[list[WorkerView]]:
    """The workers now, and again after each interval; only once without an interval."""
    from streamfleet.common.clock import SystemClock
    from streamfleet.operator.snapshot import read_workers

    while True:
        yield await read_workers(broker)
        if interval_s is None:
            return
        await SystemClock().sleep(interval_s)
