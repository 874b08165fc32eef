"""`streamfleet backlog`."""

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
    from streamfleet.operator.rates import Rates
    from streamfleet.operator.snapshot import Snapshot


def backlog(
    watch: Watch = False,
    interval: Interval = 1.0,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Show what waits and what runs: lanes, waits, oldest ages, nearest deadlines, workers, and with --watch rates.

    "mean wait" is the mean time since enqueueing of what waits in order, by up to 17 requests all over the lane.
    "nearest" is the deadline of the request that runs next in a lane; one without a deadline ranks as if it had
    one some minutes after enqueueing (STREAMFLEET_PATIENCE_MS). Under the lanes stands why one is late (that deadline
    has passed) or will be: what waits before a deadline takes longer than it leaves, at the pace that the workers
    measure while any wait (docs/order.md; `pace_per_s` of the JSON object). With --watch, each look has the rates
    of what came and ended since the looks before; with --json it prints a line for each.

    ```text
    streamfleet backlog
    streamfleet backlog --watch
    streamfleet backlog --json | jq .outstanding
    streamfleet backlog --json | jq '.lanes[] | select(.late)'
    ```
    """
    run(_backlog(queue_settings(redis_url, queue), interval if watch else None, as_json))


async def _backlog(settings: QueueSettings, interval_s: float | None, as_json: bool) -> None:
    from streamfleet.operator.commands.backlog_view import render
    from streamfleet.operator.json_view import queue_object

    async with connected(settings) as broker:
        looks, to_json = _looks(broker, interval_s), (lambda look: queue_object(*look)) if as_json else None
        await show_looks(looks, lambda look: render(*look), to_json, watched=interval_s is not None)


async def _looks(broker: OperatorBroker, interval_s: float | None) -> AsyncIterator[tuple[Snapshot, Rates | None]]:
    """The queue now; with an interval, again after each, with the rates of what came and ended meanwhile."""
    from streamfleet.common.clock import SystemClock
    from streamfleet.operator.rates import KEPT_MS, RateMeter
    from streamfleet.operator.snapshot import take_snapshot

    if interval_s is None:
        yield await take_snapshot(broker), None
        return
    meter = RateMeter(max(KEPT_MS, 3_000 * interval_s))
    while True:
        snapshot = await take_snapshot(broker)
        yield snapshot, meter.add(snapshot)
        await SystemClock().sleep(interval_s)
