"""Cancelling without the right to write results: ask the workers, and see what came of it."""

from __future__ import annotations

from streamfleet.common.broker import Broker
from streamfleet.common.errors import RequestLost, ResultTimeout
from streamfleet.common.protocol import Status
from streamfleet.producer.mailbox import Mailbox

PATIENCE_S = 5.0


async def ask_to_cancel(broker: Broker, mailbox: Mailbox, request_id: str, patience_s: float = PATIENCE_S) -> bool:
    """Ask, and wait for what becomes of it; whether the request ended as cancelled. It did not, where Redis lost it.

    Raises:
        ResultTimeout: no worker has done it within `patience_s` seconds; it stays asked for.
    """
    result = await broker.result(request_id)
    if result is None:
        await broker.ask_to_cancel(request_id)
        try:
            result = await mailbox.wait(mailbox.slot(request_id), patience_s)
        except RequestLost:
            return False
        except ResultTimeout:
            raise ResultTimeout(
                f"request {request_id}: no worker has cancelled it within {patience_s:g} s; the next one that runs will"
            ) from None
    return result.status is Status.CANCELLED
