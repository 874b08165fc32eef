"""`streamfleet workers`, and `streamfleet drain`, which tells one to finish and stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import (
    AsJson,
    Interval,
    QueueName,
    RedisUrl,
    Watch,
    connected,
    fail,
    out,
    queue_settings,
    run,
    say,
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


LOOK_AGAIN_S = 0.5


def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as `streamfleet workers` shows it.")],
    wait: Annotated[bool, typer.Option(help="Wait until it has left.")] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Wait for so many seconds at most.")] = 120.0,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Let a worker finish what it runs, take nothing more, and end: what SIGTERM does, from afar.

    What it cannot finish within its STREAMFLEET_DRAIN_MS goes back to the queue uncounted. Told twice, it hands
    everything back at once. Where something restarts workers, as Kubernetes does, a new one takes its place.

    ```text
    streamfleet drain gpu-3-117-9f2c41
    streamfleet drain gpu-3-117-9f2c41 --no-wait
    ```
    """
    run(_drain(queue_settings(redis_url, queue), worker, timeout if wait else None))


async def _drain(settings: QueueSettings, worker: str, timeout_s: float | None) -> None:
    import asyncio

    from streamfleet.operator.commands.plain import one_line
    from streamfleet.operator.fleet import worker_views

    async with connected(settings) as broker:
        known = await broker.workers()
        if worker not in known:
            names = ", ".join(sorted(known)) or "none"
            fail(one_line(f"no worker is called {worker}; there are: {names}"))
        (view,) = worker_views({worker: known[worker]}, {}, await broker.now_ms())
        if not view.alive:
            fail(
                one_line(f"{worker} is silent: it cannot be told; what it holds goes to others when its lease is over")
            )
        await broker.drain(worker)
        if timeout_s is None:
            out(f"{worker} was told to drain")
            return
        try:
            async with asyncio.timeout(timeout_s):
                await _until_gone(broker, worker)
        except TimeoutError:
            fail(f"{worker} has not left within {timeout_s:g} s; tell it again to hand back what it runs")
    out(f"{worker} has left")


async def _until_gone(broker: OperatorBroker, worker: str) -> None:
    from streamfleet.common.clock import SystemClock
    from streamfleet.operator.commands.plain import one_line

    said = None
    while (found := (await broker.workers()).get(worker)) is not None:
        now = f"{found.get('state', 'unknown')!s:.20}, runs {found.get('running', '?')!s:.10}"
        if now != said:
            say(one_line(f"{worker}: {now}"))
            said = now
        await SystemClock().sleep(LOOK_AGAIN_S)
