"""A gateway in the process of the test: what is asked of it goes through all its layers but the socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx

from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.app import build
from streamfleet.gateway.edge import Edge
from streamfleet.gateway.gateway import Gateway

HOST = "gateway:8080"


@contextlib.asynccontextmanager
async def gateway_here(url: str, key: str | None = None, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one.

    Args:
        url: its Redis.
        key: the API key that is sent along.
        settings: in lower case, without `gateway_`.
    """
    gateway = Gateway(
        load(QueueSettings, redis_url=url),
        load(GatewaySettings, **{f"gateway_{name}": value for name, value in settings.items()}),
    )
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(Edge(build(gateway), 30.0))
    try:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as http:
            yield http
    finally:
        await gateway.close()
