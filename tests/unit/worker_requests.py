"""Requests in flight made by hand, and an engine that answers as a test says, for unit tests of the worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.protocol import Lane
from streamfleet.worker.credit import Demand
from streamfleet.worker.engine.base import Capacity, EngineReply, EngineRequest
from streamfleet.worker.in_flight import InFlightRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
CLAIMED_MS = 1_000_000
OK = EngineReply(200, b'{"choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":1}}', 5.0)


class ScriptedEngine:
    """Calls a test's function for each request."""

    kind = "simulated"
    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()

    def __init__(
        self, answer: Callable[[EngineRequest], Awaitable[EngineReply]], capacity: Capacity | None = None
    ) -> None:
        self._answer = answer
        self._capacity = capacity or Capacity(4, 10_000, 1_000)
        self.seen: list[EngineRequest] = []
        self.aborted: list[str] = []

    async def start(self) -> None: ...

    async def run(self, request: EngineRequest) -> EngineReply:
        self.seen.append(request)
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.aborted.append(request.id)
            raise

    def capacity(self) -> Capacity:
        return self._capacity

    async def failed(self) -> str:
        reason: str = await asyncio.get_running_loop().create_future()
        return reason

    async def stop(self) -> None: ...


def in_flight_request(
    number: int = 1,
    body: Any = None,
    *,
    lane: Lane = Lane.NORMAL,
    attempt: int = 1,
    demand: Demand | None = None,
    **fields: bytes,
) -> InFlightRequest:
    """A request whose entry is `<1000 s>-<number>`, claimed at 1000 s by Redis's clock and 100 s by ours."""
    text = body if isinstance(body, bytes) else json.dumps(CHAT if body is None else body).encode()
    lease = Lease(lane, f"{CLAIMED_MS - 500}-{number}", attempt, f"r-{number}")
    given = {b"body": text, b"id": f"r-{number}".encode(), **{name.encode(): value for name, value in fields.items()}}
    return InFlightRequest(Claim(lease, given), 100.0, CLAIMED_MS, demand or Demand())
