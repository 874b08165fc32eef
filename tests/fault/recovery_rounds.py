"""One round of a recovery measurement: a worker holds requests, another one is idle; how soon does that one have them?

Workers are real processes. When a request starts is told by a witness in the engine of the worker that took over, on
the monotonic clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfleet.worker.credit import PREFETCH
from tests.integration.worker_process import Fleet, WorkerProcess, chat
from tests.waiting import eventually

SLOTS = 32
ROOM_TOKENS, LONGEST_TOKENS = 44_000, 8_000  # of the simulated engine, for requests that outlast a round
START_S = 60.0
KILL_GRACE_S = 2.0


@dataclass(frozen=True)
class Way:
    """A way in which a worker can go.

    Attributes:
        title: for people.
        signum: what it is sent.
        holds: requests that it holds then.
        moves: how many of them are to start elsewhere.
        settings: of the workers.
        most_s: longest time that is promised; None if a median is.
    """

    title: str
    signum: signal.Signals
    holds: int
    moves: int
    settings: dict[str, Any] = field(default_factory=dict)
    most_s: float | None = None

    @property
    def body(self) -> dict[str, Any]:
        """Of its requests: they run for longer than a round takes."""
        return {**chat(), "max_tokens": min(LONGEST_TOKENS, ROOM_TOKENS // self.holds)}


def killed(lease_ms: int) -> Way:
    """SIGKILL: what it held comes back with its leases."""
    lease_s = lease_ms / 1000
    return Way(f"SIGKILL, lease {lease_s:g} s", signal.SIGKILL, 3, 3, {"lease_ms": lease_ms}, lease_s + KILL_GRACE_S)


WAITING = Way("SIGTERM, what waits for a slot", signal.SIGTERM, SLOTS + PREFETCH, PREFETCH, {"lease_ms": 60_000})
GOES_ON = Way("SIGTERM, what goes on elsewhere", signal.SIGTERM, SLOTS, SLOTS, {"lease_ms": 60_000}, most_s=2.0)
RUNNING = Way("SIGTERM, what runs (no drain)", signal.SIGTERM, 3, 3, {"lease_ms": 60_000, "drain_ms": 0})


@dataclass
class Measured:
    """Measurements of one way, in seconds from the signal to the start of the last request that moved."""

    way: Way
    took_s: list[float] = field(default_factory=list)

    def line(self) -> str:
        """The distribution, on one line."""
        took = sorted(self.took_s)
        at = {"min": 0.0, "median": 0.5, "p95": 0.95, "max": 1.0}
        spread = " ".join(f"{name}={_shown(took[round(part * (len(took) - 1))])}" for name, part in at.items())
        return f"{self.way.title}: rounds={len(took)} {spread}"

    @property
    def median_s(self) -> float:
        return statistics.median(self.took_s)


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.2f}s"


class Pair:
    """A worker that holds requests, and its heirs, one after the other, on a queue of their own."""

    def __init__(self, fleet: Fleet, way: Way, chance: random.Random) -> None:
        self._fleet, self._way, self._chance = fleet, way, chance
        self._number = 0
        self._holder: WorkerProcess | None = None

    async def round(self) -> float:
        """Seconds from the signal to the start of the last request that moved."""
        holder = self._holder or await self._worker()
        ids = await self._fleet.add_many(self._way.holds, self._way.body)
        await self._fleet.runs({holder.name: self._way.holds})
        heir = await self._worker()
        await asyncio.sleep(
            self._chance.uniform(0, 1.5)
        )  # anywhere between two renewals and two rounds of housekeeping
        sent_s = time.monotonic()
        holder.send(self._way.signum)
        lease_s = self._way.settings["lease_ms"] / 1000
        await eventually(lambda: len(_entered(heir, ids)) >= self._way.moves, lease_s + 30, f"{heir.name} has them")
        took_s = max(_entered(heir, ids)) - sent_s
        await self._clear(holder, ids)
        self._holder = heir
        return took_s

    async def _worker(self) -> WorkerProcess:
        self._number += 1
        settings = {"simulated_profile": "smollm2-cpu", "log_level": "info", **self._way.settings}
        worker = self._fleet.start(f"w{self._number}", ["witnessed"], **settings)
        await worker.ready()

        async def is_said_to_be_ready() -> bool:
            return ((await self._fleet.broker.worker(worker.name)) or {}).get("state") == "ready"

        await eventually(is_said_to_be_ready, START_S, f"others can see that {worker.name} is ready")
        return worker

    async def _clear(self, holder: WorkerProcess, ids: Sequence[str]) -> None:
        for request_id in ids:
            await self._fleet.broker.cancel(request_id)
        await eventually(self._nothing_is_left, START_S, "nothing is left of this round")
        holder.destroy()

    async def _nothing_is_left(self) -> bool:
        return (await self._fleet.broker.audit()).outstanding == 0


def _entered(worker: WorkerProcess, ids: Sequence[str]) -> list[float]:
    return [event["at_s"] for event in worker.events("engine_entered") if event["id"] in ids]
