"""Cancels that somebody asked for who may not write results himself: the producers' role may only add to a stream."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from streamfleet.common.broker import Broker
from streamfleet.common.errors import NotPermitted, StreamfleetError
from streamfleet.common.protocol import is_request_id

log = structlog.get_logger(__name__)
AT_ONCE = 16
SMALL_BYTES = 65_536


class CancelDesk:
    """Sees to the cancels that were asked for.

    Args:
        broker: the queue.
        heard: told whenever Redis has answered, because many cancels take their time.
    """

    def __init__(self, broker: Broker, heard: Callable[[], None] = lambda: None) -> None:
        self._broker, self._heard = broker, heard
        self._refused = False

    async def see_to(self, most: int) -> int:
        """Cancel what was asked for, oldest first, `most` at most; what cannot be an id is dropped. Returns how many.

        An ask is removed after its cancel: one that is met twice, because a worker died in between, changes nothing.
        """
        try:
            return await self._see_to(most)
        except NotPermitted as error:
            # Rules of an earlier release: everything else that this worker keeps in order must go on.
            if not self._refused:
                log.warning("cancel_requests_refused", error=str(error))
            self._refused = True
            return 0

    async def _see_to(self, most: int) -> int:
        seen, chunk = 0, 1
        while seen < most:
            asks = await self._broker.cancel_requests(min(chunk, most - seen))
            for stream_id, request_id in asks:
                if reason := await self._cancel(request_id):
                    log.warning("cancel_request_unusable", entry=stream_id, reason=reason)
                await self._broker.drop_cancel_request(stream_id)
                self._heard()
            seen += len(asks)
            if len(asks) < chunk:
                break
            # Whoever may ask could ask with megabytes: never read many of those together.
            small = sum(len(request_id) for _, request_id in asks) < SMALL_BYTES
            chunk = min(chunk * 2, AT_ONCE) if small else 1
        return seen

    async def _cancel(self, request_id: str) -> str:
        """Why it cannot be cancelled; empty when it was."""
        if not is_request_id(request_id):
            return "no request can have its id"
        try:
            await self._broker.cancel(request_id)
        except StreamfleetError:
            raise
        except Exception as error:  # noqa: BLE001 - kept, one odd ask would stop every worker's housekeeping for ever
            return f"what Redis holds of it cannot be read: {type(error).__name__}"
        return ""
