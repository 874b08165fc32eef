"""`streamfleet pause` and `streamfleet resume`: stop and continue lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.commands.common import QueueName, RedisUrl, connected, out, queue_settings, run

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings

Lanes = Annotated[
    list[Lane] | None, typer.Argument(metavar="[LANE]...", help=f"{', '.join(LANES)}; all of them when none.")
]


def pause(lanes: Lanes = None, redis_url: RedisUrl = None, queue: QueueName = None) -> None:
    """Let lanes rest: workers take nothing more from them.

    What runs, runs on. Requests are still accepted, and wait; those with a deadline end as expired when it passes.
    A paused lane stays so until it is resumed, over restarts of workers and of Redis.

    ```text
    streamfleet pause low
    streamfleet pause                  # the whole queue
    streamfleet resume
    ```
    """
    run(_steer(queue_settings(redis_url, queue), lanes, resting=True))


def resume(lanes: Lanes = None, redis_url: RedisUrl = None, queue: QueueName = None) -> None:
    """Let paused lanes go on.

    ```text
    streamfleet resume low
    streamfleet resume                 # all lanes
    ```
    """
    run(_steer(queue_settings(redis_url, queue), lanes, resting=False))


async def _steer(settings: QueueSettings, lanes: list[Lane] | None, *, resting: bool) -> None:
    those = list(dict.fromkeys(lanes or LANES))
    async with connected(settings) as broker:
        changed = await (broker.pause(those) if resting else broker.resume(those))
    for lane in those:
        state = "paused" if resting else "goes on"
        before = "" if lane in changed else " (as before)"
        out(f"{lane:<8}  {state}{before}")
