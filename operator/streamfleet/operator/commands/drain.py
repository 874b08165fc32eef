"""`streamfleet drain`: tells a worker to finish and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import QueueName, RedisUrl, connected, fail, out, queue_settings, run, say

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.broker import OperatorBroker

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
