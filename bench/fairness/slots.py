"""A fleet of slots in virtual time: real scripts decide, and a request holds its slot for as long as its tokens take.

Only the order of picks is what this measures, so an engine is a number of slots, prefill and decode at a fixed speed
each, and a freed slot pulls at once.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamfleet.common.broker.types import Claim, Completion
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import Status
from tests.broker import Broker

Order = Literal["tenants by tokens", "today: by deadline", "round robin", "bound: small always first"]
ORDERS: tuple[Order, ...] = ("tenants by tokens", "today: by deadline", "round robin")
BOUND: Order = "bound: small always first"
"""Nobody can beat it: requests of the tenant `small` are in a more urgent lane of their own."""
LANE, URGENT, PROMPT_TOKENS = "normal", "critical", 30
PROMPT_MS, TOKEN_MS = 0.5, 10.0


@dataclass(frozen=True)
class Ask:
    """A request: its tenant and the tokens that it generates, which it asks for as its limit."""

    tenant: str
    output: int

    @property
    def tokens(self) -> int:
        return PROMPT_TOKENS + self.output

    @property
    def ms(self) -> float:
        return PROMPT_TOKENS * PROMPT_MS + self.output * TOKEN_MS


class Slots:
    """A queue and the slots that serve it.

    Args:
        url: the server.
        order: the contender. By deadline, no request names a tenant. For round robin, all requests are charged alike:
            they ask for no limit, and their usage is not told.
        slots: number of slots.
        now_ms: start of the virtual time, epoch ms.
    """

    def __init__(self, url: str, order: Order, slots: int, now_ms: float) -> None:
        self._connection = Connection(url)
        self.order, self.now = order, now_ms
        self.keys = Keys(order.replace(" ", "-").replace(":", ""))
        self.free = slots
        self._ends: list[tuple[float, int, Claim, Ask]] = []
        self._asks: dict[str, Ask] = {}
        self._sent = self._begun = 0
        self.started: Callable[[str, Ask], None] = lambda _name, _ask: None
        self.ended: Callable[[Ask], None] = lambda _ask: None

    @property
    def broker(self) -> Broker:
        """The broker at the present virtual time."""
        return Broker(self._connection, self.keys, QueueLimits(now_ms=round(self.now)))

    @property
    def next_free(self) -> float:
        """Time at which the next slot is free."""
        return self.now if self.free else self._ends[0][0]

    async def add(self, asks: list[Ask]) -> list[str]:
        """Put requests in, with a deadline in an hour; returns their ids."""
        commands: list[tuple[Any, ...]] = []
        names = []
        for ask in asks:
            self._sent += 1
            body: dict[str, Any] = {"prompt": "x" * 100, "ignore_eos": True}
            if self.order != "round robin":
                body["max_tokens"] = ask.output
            fields: tuple[Any, ...] = (
                "id",
                f"r{self._sent}",
                "body",
                json.dumps(body),
                "deadline",
                round(self.now) + 3_600_000,
            )
            if self.order != "today: by deadline":
                fields += ("tenant", ask.tenant)
            lane = URGENT if self.order == BOUND and ask.tenant == "small" else LANE
            commands.append(("XADD", self.keys.lane(lane), "*", *fields))
            self._asks[f"r{self._sent}"] = ask
            names.append(f"r{self._sent}")
        await self._connection.pipeline(commands)
        return names

    async def fill(self) -> None:
        """Let free slots pull until there is nothing to take."""
        while self.free:
            pulled = await self.broker.pull("w1", self.free)
            for claim in pulled.claims:
                ask = self._asks[claim.lease.request_id]
                self.free, self._begun = self.free - 1, self._begun + 1
                heapq.heappush(self._ends, (self.now + ask.ms, self._begun, claim, ask))
                self.started(claim.lease.request_id, ask)
            if not pulled.claims and not pulled.staged:
                return

    async def until(self, at_ms: float) -> None:
        """Go on to a time: requests end, and freed slots pull."""
        while self._ends and self._ends[0][0] <= at_ms:
            self.now, _, claim, ask = heapq.heappop(self._ends)
            usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": ask.output}
            values: dict[str, bytes | str | int] = {"response": "{}"}
            if self.order != "round robin":
                values["usage"] = json.dumps(usage)
            await self.broker.complete("w1", [Completion(claim.lease, Status.SUCCEEDED, values, "")])
            del self._asks[claim.lease.request_id]
            self.free += 1
            self.ended(ask)
            await self.fill()
        self.now = at_ms

    async def close(self) -> None:
        await self._connection.close()
