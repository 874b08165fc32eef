"""A gateway's log while Redis refuses it: a line for each loop, and not one a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.gateway.background import Repeated
from streamfleet.gateway.webhook_messages import Taken
from streamfleet.gateway.webhooks.deliverer import ConcurrencyLimits, Deliverer
from tests.clocks import HandClock

REFUSED, LOADING, WELL = "Redis refuses the user or password", "Redis is loading its data", ""
Loop = Callable[[Any], Any]


class Refusing:
    """A broker that answers as its script says: with an error, or with nothing to do; then it waits."""

    def __init__(self, *script: str) -> None:
        self._script = list(script)
        self.ended = asyncio.Event()

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if not self._script:
            self.ended.set()
            await asyncio.Event().wait()
        if said := self._script.pop(0):
            raise BrokerUnavailable(said)

    async def look(self) -> None:
        await self._answer()

    async def take(self, *_: Any) -> Taken:
        await self._answer()
        return Taken([], 0, None, 0, "0-0")

    async def wait(self, *_: Any) -> None:
        """There is more at once."""


def repeating(broker: Refusing) -> asyncio.Task[None]:
    return asyncio.create_task(Repeated(broker.look, 0, "not_done")._run())


def delivering(broker: Refusing) -> asyncio.Task[None]:
    deliverer = Deliverer(cast("Any", broker), cast("Any", None), cast("Any", None), ConcurrencyLimits(), HandClock())
    return asyncio.create_task(deliverer._deliver_forever())


@pytest.mark.parametrize(
    ("loop", "event", "said"),
    [(repeating, "not_done", "error"), (delivering, "webhooks_waiting_for_redis", "reason")],
)
async def test_an_outage_is_one_line_for_each_reason(loop: Loop, event: str, said: str) -> None:
    broker = Refusing(*[REFUSED] * 30, *[LOADING] * 30, WELL, *[LOADING] * 30)
    with capture_logs() as logs:
        task = loop(broker)
        await asyncio.wait_for(broker.ended.wait(), 5)
        task.cancel()
    assert [each[said] for each in logs if each["event"] == event] == [REFUSED, LOADING, LOADING]


async def test_a_step_is_repeated_at_once_while_there_is_more_or_somebody_wakes_it_and_whatever_fails() -> None:
    steps = iter([True, RuntimeError("odd"), False, False])
    ended = asyncio.Event()

    async def step() -> bool:
        found = next(steps, None)
        if found is None:
            ended.set()
            await asyncio.Event().wait()
        if found is not True:
            asyncio.get_running_loop().call_soon(repeated.wake)
        if isinstance(found, Exception):
            raise found
        return bool(found)

    repeated = Repeated(step, 3_600, "not_done")
    with capture_logs() as logs:
        repeated.start()
        await asyncio.wait_for(ended.wait(), 5)
        await asyncio.wait_for(repeated.close(), 5)
    assert [(each["event"], each["error"], each["exc_info"]) for each in logs] == [("not_done", "odd", True)]
