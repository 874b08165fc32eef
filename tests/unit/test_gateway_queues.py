"""Clients of a gateway's queues, while the gateway ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamfleet.common.errors import BrokerUnavailable
from streamfleet.common.settings import QueueSettings, load
from streamfleet.gateway import queues


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
