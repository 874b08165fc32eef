"""A gateway's log while Redis refuses it: a line for each loop, and not one a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.gateway.queues import Queues
from streamfleet.gateway.token_budget import TokenBudget
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

    async def due(self, *_: Any) -> list[Any]:
        await self._answer()
        return []

    async def take(self, *_: Any) -> Taken:
        await self._answer()
        return Taken([], 0, None, 0, "0-0")

    async def wait(self, *_: Any) -> None:
        """There is more at once."""


def sweeping(broker: Refusing) -> asyncio.Task[None]:
    budget = TokenBudget(cast("Any", broker), cast("Queues", None), 60_000, HandClock(), cast("Any", None))
    return asyncio.create_task(budget._sweep_forever())


def delivering(broker: Refusing) -> asyncio.Task[None]:
    deliverer = Deliverer(cast("Any", broker), cast("Any", None), cast("Any", None), ConcurrencyLimits(), HandClock())
    return asyncio.create_task(deliverer._deliver_forever())


@pytest.mark.parametrize(
    ("loop", "event", "said"),
    [(sweeping, "reservations_not_swept", "error"), (delivering, "webhooks_waiting_for_redis", "reason")],
)
async def test_an_outage_is_one_line_for_each_reason(loop: Loop, event: str, said: str) -> None:
    broker = Refusing(*[REFUSED] * 30, *[LOADING] * 30, WELL, *[LOADING] * 30)
    with capture_logs() as logs:
        task = loop(broker)
        await asyncio.wait_for(broker.ended.wait(), 5)
        task.cancel()
    assert [each[said] for each in logs if each["event"] == event] == [REFUSED, LOADING, LOADING]
