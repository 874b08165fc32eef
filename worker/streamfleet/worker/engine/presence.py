"""Presence of a remote server: whether it is there, and which faults of its absence count as an attempt.

The engine reports faults by which the server seems to be away, and answers. While it is away only a question of this
module's own reaches it, with backoff and jitter, so that a fleet does not fall on a server that has just started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from random import random

import structlog

from streamfleet.common.clock import Clock

log = structlog.get_logger(__name__)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 0.75
"""Waits before the server is asked again: a model takes minutes to load, but its first answer is to come 2 s later."""
MOST_REMEMBERED = 4_096


def remember(faults: dict[str, int], request_id: str, shown: int) -> int | None:
    """Keep, of a request's last fault, how often the server had shown before that it is well.

    Returns:
        The same of the fault before; None if there was none, or it is forgotten.
    """
    before = faults.get(request_id)
    if before is None and len(faults) >= MOST_REMEMBERED:
        del faults[next(iter(faults))]
    faults[request_id] = shown
    return before


class Presence:
    """Waits for a server that is away.

    Args:
        clock: source of time.
        answers: asks the server something cheap. Returns True if it is there.
        runs: number of requests that are still sent to the server.
        returned: called when the server is back, unless it shows that it was there all the time: the first question is
            answered, and others still run, or only one request met a fault.

    Attributes:
        unready: reason why no request can be answered; empty if there is none.
        allowance: most requests to hold now; None for no limit.
        suspects: requests that a fault sent back, and how often the server had shown before that it was there: they may
            have caused the fault.
    """

    def __init__(
        self,
        clock: Clock,
        answers: Callable[[], Awaitable[bool]],
        runs: Callable[[], int],
        returned: Callable[[], None],
    ) -> None:
        self._clock, self._answers, self._runs, self._returned = clock, answers, runs, returned
        self.unready = ""
        self.allowance: int | None = None
        self._wait_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self.suspects: dict[str, int] = {}
        self._shown = 0
        self._several = False

    def lost(self, why: str, wait_s: float | None = None) -> None:
        """Hold off until the server answers a question; the first one is asked at once.

        Args:
            why: what the fault was.
            wait_s: the question tells nothing: after so many seconds a single request has to try.
        """
        self._several = self._asking is not None
        if not self._several:
            self.unready, self.allowance = why, 0
            self._asking = asyncio.create_task(self._ask(wait_s), context=Context())  # its log lines name no request

    def answered(self, request_id: str) -> None:
        """Record that the server answered a request."""
        self._shown += 1
        self.suspects.pop(request_id, None)
        if self._asking is None:
            self.unready, self.allowance, self._wait_s = "", None, 0.0

    def counts(self, request_id: str, *, told: bool) -> bool:
        """True if a fault of absence counts as an attempt of a request that was sent.

        The first one never does. Later ones do, because the request may be the cause: it may kill the server.

        Args:
            request_id: the request.
            told: the server itself says that it is away, so it was not killed. It counts only if the server has shown
                since the request's last fault that it is there: it answered others, or the first question. A generation
                longer than a proxy's time-out ends so each time.
        """
        before = remember(self.suspects, request_id, self._shown)
        return before is not None and (not told or before != self._shown)

    async def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def _ask(self, alone_after_s: float | None) -> None:
        if alone_after_s is not None:
            log.warning("server_away", reason=self.unready)
        at_once = alone_after_s is None
        while True:
            wait_s = self._wait_s if alone_after_s is None else alone_after_s
            await self._clock.sleep(wait_s * (0.5 + random() / 2))  # noqa: S311 - spreads workers, guards nothing
            self._wait_s = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2 * self._wait_s))
            if await self._answers():
                break
            at_once = False
            if not wait_s:
                log.warning("server_away", reason=self.unready)
        self._asking = None
        self._shown += at_once
        # Where all that ran failed, and it was several requests, one may have killed the server.
        if not at_once or ((wait_s or self._several) and not self._runs()):
            self._returned()
        if alone_after_s is None:
            self.unready, self.allowance = "", None
        else:
            self.allowance = 1
