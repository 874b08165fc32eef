"""Monitoring of the HTTP gateway's open batches and their progress; reads only."""

from __future__ import annotations

from typing import NamedTuple

from streamfleet.common.broker.gateway_batches import BatchBroker

_FIELDS = ("status", "epoch", "completed", "failed", "mark")


class OpenBatch(NamedTuple):
    """An open batch.

    Attributes:
        id: id of the batch.
        status: its status; empty where its record is gone.
        begun: a gateway has taken it at least once.
        progress: values that change with every step of progress.
    """

    id: str
    status: str
    begun: bool
    progress: tuple[bytes | None, ...]


async def open_batches(broker: BatchBroker, most: int) -> list[OpenBatch]:
    """Open batches, in two round trips, the longest waiting first. Raises like `BrokerBase`."""
    found = await broker.connection.command("ZRANGEBYSCORE", broker.names.open, "-inf", "+inf", "LIMIT", 0, most)
    ids = [batch_id.decode(errors="replace") for batch_id in found]
    if not ids:
        return []
    rows = await broker.connection.pipeline([("HMGET", broker.names.batch(each), *_FIELDS) for each in ids])
    return [
        OpenBatch(each, (status or b"").decode(errors="replace"), epoch is not None, (status, *progress))
        for each, (status, epoch, *progress) in zip(ids, rows, strict=True)
    ]
