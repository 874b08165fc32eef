"""Output of unfinished runs, in Redis: another run goes on from it.

It is stored when a run is handed back or has failed, and at checkpoints, in case that its worker is killed. Each run
has a key of its own, so that a worker without the lease overwrites nothing; a fenced script makes it the one that
counts. Scripts delete it when another run's counts, or its request ends.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

import structlog

from streamfleet.common.broker.types import Lease, RenewCode
from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.clock import Clock
from streamfleet.common.errors import StreamfleetError
from streamfleet.worker.engine.base import Partial
from streamfleet.worker.in_flight import InFlight, InFlightRequest

log = structlog.get_logger(__name__)
LOOK_S = 0.1


async def store(
    broker: WorkerBroker, outputs: Sequence[tuple[InFlightRequest, Partial | None]]
) -> dict[Lease, tuple[str, int]]:
    """Store what there is. Returns the run and bytes of each output; of none, if Redis has no room for all.

    Until Redis has said that a run's output counts, the next output of the request takes its place: else each try that
    fails behind this one would leave a key that nothing counts.
    """
    runs, kept = dict[str, bytes](), dict[Lease, tuple[str, int]]()
    for request, partial in outputs:
        if partial is not None:
            run = request.kept_run = request.kept_run or secrets.token_hex(8)
            runs[run] = partial.encode()
            kept[request.lease] = run, len(runs[run])
    if not runs or await broker.keep(runs):
        return kept
    log.warning("output_not_kept", requests=len(kept))
    return {}


class Checkpoints:
    """Keeps the output of running requests every so many tokens.

    Args:
        broker: the queue.
        worker: this worker's name.
        in_flight: the requests.
        clock: time between looks.
        tokens: a killed worker loses at most so many tokens of a request, as long as it makes no more than half of them
            in the time of a look and of Redis's answer.
    """

    def __init__(self, broker: WorkerBroker, worker: str, in_flight: InFlight, clock: Clock, tokens: int) -> None:
        self._broker, self._worker, self._in_flight, self._clock = broker, worker, in_flight, clock
        self._half = max(1, tokens // 2)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(StreamfleetError):  # others wait for Redis; output is kept when it is back
                await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Keep the output of each request that has made enough since the last time."""
        outputs = [
            (request, partial)
            for request in self._in_flight.active()
            if request.asked is not None
            and request.asked.made - max(request.kept_tokens, request.asked.resumed_tokens) >= self._half
            and (partial := request.asked.snapshot()) is not None
        ]
        kept = await store(self._broker, outputs)
        if not kept:
            return
        codes = await self._broker.renew(self._worker, list(kept), kept)
        renewed = {lease for lease, code in zip(kept, codes, strict=True) if code is not RenewCode.LOST}
        for request, partial in outputs:
            if request.lease in renewed:
                request.kept_tokens, request.kept_run = partial.tokens, ""
