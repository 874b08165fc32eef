"""What somebody sees who watches the batches of the HTTP gateway from outside: which are open, and how far each is."""

from __future__ import annotations

from typing import NamedTuple

from streamfleet.common.broker.gateway_batches import BatchBroker

_FIELDS = ("status", "epoch", "completed", "failed", "mark")


class OpenBatch(NamedTuple):
    """A batch that is not through.

    Attributes:
        id: its name.
        status: where it is; empty where its record is gone.
        begun: some gateway had it.
        progress: changes whenever it gets further.
    """

    id: str
    status: str
    begun: bool
    progress: tuple[bytes | None, ...]


async def open_batches(broker: BatchBroker, most: int) -> list[OpenBatch]:
    """Open batches, in two round trips; what waits for longest first. Raises like `BrokerBase`."""
    found = await broker.connection.command("ZRANGEBYSCORE", broker.names.open, "-inf", "+inf", "LIMIT", 0, most)
    ids = [batch_id.decode(errors="replace") for batch_id in found]
    if not ids:
        return []
    rows = await broker.connection.pipeline([("HMGET", broker.names.batch(each), *_FIELDS) for each in ids])
    return [
        OpenBatch(each, (status or b"").decode(errors="replace"), epoch is not None, (status, *progress))
        for each, (status, epoch, *progress) in zip(ids, rows, strict=True)
    ]
