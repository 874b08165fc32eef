"""`streamfleet backlog`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from streamfleet.operator.commands.common import (
    AsJson,
    Interval,
    QueueName,
    RedisUrl,
    Watch,
    connected,
    out,
    queue_settings,
    run,
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
    settings = queue_settings(redis_url, queue)
    if as_json:
        run(_print_json(settings, interval if watch else None))
    elif watch:
        run(_watch(settings, interval))
    else:
        run(_once(settings))


async def _once(settings: QueueSettings) -> None:
    from streamfleet.operator.commands.backlog_view import render
    from streamfleet.operator.commands.fitted_table import screen
    from streamfleet.operator.snapshot import take_snapshot

    async with connected(settings) as broker:
        snapshot = await take_snapshot(broker)
    screen().print(render(snapshot, None))


async def _watch(settings: QueueSettings, interval_s: float) -> None:
    from rich.live import Live

    from streamfleet.operator.commands.backlog_view import render
    from streamfleet.operator.commands.fitted_table import screen

    console = screen()
    async with connected(settings) as broker:
        if not console.is_terminal:
            async for snapshot, moving in _looks(broker, interval_s):
                console.print(render(snapshot, moving))
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            async for snapshot, moving in _looks(broker, interval_s):
                live.update(render(snapshot, moving), refresh=True)


async def _looks(broker: OperatorBroker, interval_s: float) -> AsyncIterator[tuple[Snapshot, Rates | None]]:
    from streamfleet.common.clock import SystemClock
    from streamfleet.operator.rates import KEPT_MS, RateMeter
    from streamfleet.operator.snapshot import take_snapshot

    meter = RateMeter(max(KEPT_MS, 3_000 * interval_s))
    while True:
        snapshot = await take_snapshot(broker)
        yield snapshot, meter.add(snapshot)
        await SystemClock().sleep(interval_s)


async def _print_json(settings: QueueSettings, interval_s: float | None) -> None:
    from streamfleet.operator.json_view import queue_object
    from streamfleet.operator.snapshot import take_snapshot

    async with connected(settings) as broker:
        if interval_s is None:
            out(json.dumps(queue_object(await take_snapshot(broker), None)))
            return
        async for snapshot, moving in _looks(broker, interval_s):
            out(json.dumps(queue_object(snapshot, moving)))
