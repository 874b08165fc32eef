"""Cancels requests without the right to write results: asks the workers, and waits for the outcome."""

from __future__ import annotations

from streamfleet.common.broker.producer import ProducerBroker
from streamfleet.common.errors import RequestLost, ResultTimeout
from streamfleet.common.protocol import Status
from streamfleet.producer.mailbox import Mailbox

PATIENCE_S = 5.0


async def ask_to_cancel(
    broker: ProducerBroker, mailbox: Mailbox, request_id: str, patience_s: float = PATIENCE_S
) -> bool:
    """Ask workers to cancel a request, and wait for its result. True if it ended as cancelled; False also if it was
    lost.

    Raises:
        ResultTimeout: no worker has done it within `patience_s` seconds; the cancel request stays queued.
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
