"""A gateway process that measures its event loop: the longest that it computed without giving way.

Measured in processor time of the whole process, so that a machine that stalls counts for nothing, and work on a thread
that holds the interpreter counts like work on the loop. `/metrics` tells the longest since it was last asked.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from prometheus_client import Gauge

from streamfleet.cli.main import main
from streamfleet.gateway.batches.service import Batching
from streamfleet.gateway.metrics import REGISTRY
from tests.integration.gateway_process import GatewayProcess

SAMPLE = "test_longest_turn_seconds"
TICK_S = 0.001


class TickingGateway(GatewayProcess):
    """`streamfleet gateway`, with the measurement."""

    def command(self) -> list[str]:
        """This module, which runs it."""
        return ["tests.integration.gateway_ticking", "gateway"]

    def longest_ms(self) -> float:
        """The longest turn since this was last asked, in ms of processor time."""
        return self.metric(SAMPLE) * 1000


class _Ticker:
    def __init__(self) -> None:
        self._longest_s = 0.0
        Gauge(SAMPLE, "Longest turn.", registry=REGISTRY).set_function(self._told)

    def _told(self) -> float:
        told, self._longest_s = self._longest_s, 0.0
        return told

    async def tick_forever(self) -> None:
        """Measure from now on."""
        while True:
            before_s = time.process_time()
            await asyncio.sleep(TICK_S)
            self._longest_s = max(self._longest_s, time.process_time() - before_s)


def _run() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    start, tasks = Batching.start, []

    def start_measured(self: Batching) -> None:
        start(self)
        tasks.append(asyncio.get_running_loop().create_task(_Ticker().tick_forever()))

    Batching.start = start_measured  # type: ignore[method-assign]
    main()


if __name__ == "__main__":
    _run()
