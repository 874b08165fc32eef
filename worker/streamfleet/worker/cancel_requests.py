"""Cancels requests on behalf of producers, whose Redis role may only add to a stream.

The housekeeping loop calls `CancelRequestProcessor.process`, which reads the stream of cancel requests, cancels each,
and removes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import structlog

from streamfleet.common.broker.worker import WorkerBroker
from streamfleet.common.errors import NotPermitted, StreamfleetError, UnknownRequest
from streamfleet.common.protocol import BEFORE_IT_COMES, is_request_id

log = structlog.get_logger(__name__)
AT_ONCE = 16
SMALL_BYTES = 65_536
NEVER_SEEN, MOST_UNKNOWN = "the queue has never seen its id", 4
"""Most ids at once that the queue may have never seen: all of it is looked through for each of them."""
MILLISECONDS = re.compile(r"[1-9][0-9]{0,15}")


class CancelRequestProcessor:
    """Processes the cancel requests of one queue.

    Args:
        broker: the queue.
        heard: called after each answer of Redis, because many cancels take time.
    """

    def __init__(self, broker: WorkerBroker, heard: Callable[[], None] = lambda: None) -> None:
        self._broker, self._heard = broker, heard
        self._refused = False

    async def process(self, most: int) -> int:
        """Process up to `most` entries, oldest first; one that cannot be an id is dropped. Returns their number.

        An entry is removed after its cancel. If a worker dies in between, the second cancel changes nothing.
        """
        try:
            return await self._process(most)
        except NotPermitted as error:
            # Access rules of an earlier release refuse this; the rest of the housekeeping must go on.
            if not self._refused:
                log.warning("cancel_requests_refused", error=str(error))
            self._refused = True
            return 0

    async def _process(self, most: int) -> int:
        seen, unknown, chunk = 0, 0, 1
        while seen < most:
            asks = await self._broker.cancel_requests(min(chunk, most - seen))
            for stream_id, request_id, before in asks:
                if reason := await self._cancel(request_id, before):
                    log.warning("cancel_request_unusable", entry=stream_id, reason=reason)
                await self._broker.drop_cancel_request(stream_id)
                self._heard()
                seen, unknown = seen + 1, unknown + bool(before or reason == NEVER_SEEN)
                if unknown == MOST_UNKNOWN:
                    return seen
            if len(asks) < chunk:
                break
            # A producer can add entries of megabytes, so many of those are never read together.
            small = sum(len(request_id) for _, request_id, _ in asks) < SMALL_BYTES
            chunk = min(chunk * 2, AT_ONCE) if small else 1
        return seen

    async def _cancel(self, request_id: str, before: str) -> str:
        """Cancel one request. Returns the reason if that is impossible, else an empty string."""
        if not is_request_id(request_id):
            return "no request can have its id"
        if before and not MILLISECONDS.fullmatch(before):
            return f"{BEFORE_IT_COMES} must be milliseconds in decimal digits"
        try:
            await self._broker.cancel(request_id, before_ms=int(before) if before else None)
        except UnknownRequest:
            return NEVER_SEEN
        except StreamfleetError:
            raise
        except Exception as error:  # noqa: BLE001 - logged: one odd entry would stop all housekeeping for ever
            return f"what Redis holds of it cannot be read: {type(error).__name__}"
        return ""
