"""A step that is repeated in the background, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from streamfleet.common.errors import StreamfleetError

log = structlog.get_logger(__name__)


class Repeated:
    """Repeats a step from `start` until `close`. No error ends it.

    Args:
        step: returns true if there is more to do at once.
        pause_s: seconds until the next step otherwise, and after an error.
        failed: name of the log event for an error. An outage is one line, not one a second.
    """

    def __init__(self, step: Callable[[], Awaitable[object]], pause_s: float, failed: str) -> None:
        self._step, self._pause_s, self._failed = step, pause_s, failed
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """End the pause."""
        self._woken.set()

    async def close(self) -> None:
        """Stop, also in the middle of a step."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        told = ""
        while True:
            self._woken.clear()
            try:
                more, told = await self._step(), ""
            except Exception as error:
                more = False
                if repr(error) != told:
                    told = repr(error)
                    log.warning(self._failed, error=str(error), exc_info=not isinstance(error, StreamfleetError))
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s):
                        await self._woken.wait()
