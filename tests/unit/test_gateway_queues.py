"""Connections and clients of a gateway: few seconds of patience, shared work, and their end with the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings, WebhookSettings
from streamfleet.gateway import queues
from streamfleet.gateway.gateway import open_gateway_broker
from streamfleet.gateway.queues import ANSWER_S, PATIENCE_S, Shared
from streamfleet.gateway.webhooks.service import open_webhook_broker


def test_each_connection_has_the_patience_of_a_gateway() -> None:
    settings = load(QueueSettings)
    for broker in (
        open_gateway_broker(settings, load(GatewaySettings)),
        open_webhook_broker(settings, load(WebhookSettings)),
    ):
        connection = broker.connection
        assert (connection._patience_s, connection.answer_timeout_s) == (PATIENCE_S, ANSWER_S)


async def test_a_caller_that_leaves_takes_no_work_from_the_others() -> None:
    shared, may_end, begun = Shared[int](), asyncio.Event(), 0

    async def work() -> int:
        nonlocal begun
        begun += 1
        await may_end.wait()
        return 7

    first, second = (asyncio.create_task(shared.run("a", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    may_end.set()
    assert (await asyncio.wait_for(second, 5), begun) == (7, 1)


@pytest.mark.parametrize("opens", [True, False])
async def test_a_client_that_opens_while_the_gateway_ends_is_closed(
    monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    opening, go_on, closed = asyncio.Event(), asyncio.Event(), []

    class Client:
        def __init__(self, **_: object) -> None:
            pass

        async def __aenter__(self) -> Any:
            opening.set()
            await go_on.wait()
            if not opens:
                raise BrokerUnavailable("no answer")

        async def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(queues, "Client", Client)
    clients = queues.Queues(load(QueueSettings))
    asked = asyncio.create_task(clients.client("default"))
    await opening.wait()
    closing = asyncio.create_task(clients.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert len(closed) == opens
    await asyncio.gather(asked, return_exceptions=True)
