"""The batches of the HTTP gateway in Redis: which there are, who runs each, and how far it is.

Whoever takes a batch gets an epoch with it. Every write of progress names the epoch, and is refused once another
gateway took the batch: one that was thought dead, and is not, spoils nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from streamfleet.common.batch_records import BATCH, JOB, BatchRecord, BatchStatus, Part, read_batch
from streamfleet.common.broker.gateway_files import FileBroker, page
from streamfleet.common.replies import mapping

LOOK_AT = 500
"""Batches whose status is read in one round trip."""
_OPEN = {status.encode(): status for status in BatchStatus if not status.ended}


class SaveCode(IntEnum):
    """What became of progress; the return codes of gateway_batch_save.lua."""

    LOST = 0
    SAVED = 1
    DONE_BEFORE = 2
    TOO_LATE = 3


class AddCode(IntEnum):
    """What became of a batch that was asked for; the return codes of gateway_batch_add.lua."""

    NO_FILE = 0
    ACCEPTED = 1
    TOO_MUCH = 2
    CONFLICT = 3
    REPEATED = 4


class Naming(NamedTuple):
    """The caller's name for a batch, and a digest of what it asked for."""

    name: str
    digest: str


class Contender(NamedTuple):
    """A batch that has a slot of a gateway, or waits for one.

    Attributes:
        id: its name.
        tenant: whose it is; empty where keys are off.
        queues: those that its models are answered from; empty until its lines were checked.
    """

    id: str
    tenant: str
    queues: frozenset[str]


class Taken(NamedTuple):
    """A batch that somebody has now, and in which epoch."""

    record: BatchRecord
    epoch: int


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a batch, written down at once.

    Attributes:
        lines: the numbers of the lines that are finished by it, from 1.
        output, errors: stored contents with what they say, to stand at the end of its two files; None for nothing.
        counts: field of the batch to what is to be added to it.
        fields: field of the batch to its value.
        move: the status that it leaves, and the one that it reaches; None to leave it as it is.
    """

    lines: Sequence[int] = ()
    output: Part | None = None
    errors: Part | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    move: tuple[BatchStatus, BatchStatus] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a batch ends.

    Attributes:
        status: its final one.
        kept_ms: for how long it and its files are kept.
        purpose: of its files.
        stats: what to add to what was done for the tenant: field to how much.
        errors: why all of it failed, OpenAI's error objects; None to leave what was said of its lines.
    """

    status: BatchStatus
    kept_ms: int
    purpose: str
    stats: Mapping[str, int] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] | None = None


class BatchBroker(FileBroker):
    """Files, and the batches that read and write them."""

    async def add_batch(
        self, record: BatchRecord, *, most_bytes: int = 0, naming: Naming | None = None, kept_ms: int = 1
    ) -> tuple[AddCode, str]:
        """Accept a batch.

        Args:
            record: the batch.
            most_bytes: of the inputs of all open batches of the tenant; 0 for any.
            naming: asked for again under the same name, it is the same batch.
            kept_ms: for how long the name is kept.

        Returns:
            What became of it, and the batch's id: its own, or where REPEATED that of the batch that there was before.
        """
        names = self.names
        keys = [
            names.batch(record.id),
            names.batches(record.tenant, JOB if record.id.startswith(JOB) else BATCH),
            names.open,
            names.file(record.input_file_id),
            names.use(record.tenant),
            names.named(naming.name if naming else ""),
        ]
        flat = [word for pair in record.fields().items() for word in pair]
        limits = [most_bytes, naming.digest if naming else "", kept_ms]
        args = [record.id, record.tenant, record.created_ms, *limits, *flat]
        code, batch_id = await self.connection.script("gateway_batch_add", keys, args)
        return AddCode(code), batch_id.decode()

    async def named(self, name: str) -> tuple[str, str] | None:
        """Id of the batch that was asked for under a name, and the digest of what was; None for no such name."""
        batch_id, digest = await self.connection.command("HMGET", self.names.named(name), "batch", "digest")
        return None if batch_id is None or digest is None else (batch_id.decode(), digest.decode())

    async def batch(self, batch_id: str) -> BatchRecord | None:
        """One batch."""
        return (await self.batches([batch_id]))[0]

    async def batches(self, batch_ids: Sequence[str]) -> list[BatchRecord | None]:
        """Several, in one round trip."""
        if not batch_ids:
            return []
        replies = await self.connection.pipeline([("HGETALL", self.names.batch(batch_id)) for batch_id in batch_ids])
        return [read_batch(batch_id, mapping(reply)) for batch_id, reply in zip(batch_ids, replies, strict=True)]

    async def batch_ids(self, tenant: str, after: str, most: int) -> list[str]:
        """Ids of a tenant's batches behind one of them (empty: from the newest), newest first."""
        return await page(self.connection, self.names.batches(tenant), after, most, newest_first=True)

    async def forget_batches(self, tenant: str, batch_ids: Sequence[str]) -> None:
        """Batches that were kept for long enough are listed no more."""
        await self.connection.command("ZREM", self.names.batches(tenant), *batch_ids)

    async def cancel_batch(self, batch_id: str, tenant: str) -> BatchStatus | None:
        """Ask for a batch to end: its status from now on; None when the tenant has no such batch."""
        status = await self.connection.script(
            "gateway_batch_cancel", [self.names.batch(batch_id)], [tenant, self._clock()]
        )
        return BatchStatus(status.decode()) if status else None

    # -- running them --------------------------------------------------------------------------------------

    async def free_batches(self, most: int, skip: int = 0) -> list[Contender]:
        """Open batches that nobody has, or whose gateway is silent; what waits for longest first.

        Args:
            most: how many at most.
            skip: how many of the first to leave out.
        """
        words = ("-inf", await self.now_ms(), "LIMIT", skip, most)
        found = await self.connection.command("ZRANGEBYSCORE", self.names.open, *words)
        if not found:
            return []
        ids = [batch_id.decode(errors="replace") for batch_id in found]
        rows = await self.connection.pipeline([("HMGET", self.names.batch(each), "tenant", "models") for each in ids])
        return [
            Contender(each, (tenant or b"").decode(errors="replace"), _queues(models))
            for each, (tenant, models) in zip(ids, rows, strict=True)
        ]

    async def take_batch(self, batch_id: str, owner: str, lease_ms: int) -> Taken | None:
        """Have a batch from now on; None when somebody has it, or it is not open any more."""
        keys, args = [self.names.batch(batch_id), self.names.open], [batch_id, owner, lease_ms, self._clock()]
        epoch, fields = await self.connection.script("gateway_batch_take", keys, args)
        record = read_batch(batch_id, mapping(fields)) if epoch else None
        return None if record is None else Taken(record, epoch)

    async def renew_batch(self, batch_id: str, epoch: int, lease_ms: int) -> BatchStatus | None:
        """Go on having a batch: its status; None when it is somebody else's by now."""
        return await self._lease(batch_id, epoch, lease_ms, "")

    async def release_batch(self, batch_id: str, epoch: int, after_ms: int, *, stumbled: bool = False) -> None:
        """Hand a batch back: anybody may take it `after_ms` from now."""
        await self._lease(batch_id, epoch, after_ms, "1" if stumbled else "")

    async def close_batch(self, batch_id: str, epoch: int) -> None:
        """There is nothing left to do about a batch."""
        await self._lease(batch_id, epoch, "", "")

    async def done_lines(self, batch_id: str) -> bytes:
        """The lines that are finished, a bit each: of the first byte, the highest bit is line 1."""
        return await self.connection.command("GET", self.names.done(batch_id)) or b""

    async def save_batch(self, batch: BatchRecord, epoch: int, step: Step) -> tuple[SaveCode, BatchStatus | None]:
        """Write progress down, sent once: after an error, nobody knows whether it was.

        Returns:
            What became of it, and where the batch is now; None when it is somebody else's.
        """
        names = self.names
        keys = [
            names.batch(batch.id),
            names.done(batch.id),
            names.loose,
            names.parts(batch.output_file_id),
            names.parts(batch.error_file_id),
        ]
        parts = [(number, part.name, part.bytes) for number, part in ((1, step.output), (2, step.errors)) if part]
        said: dict[str, Any] = {
            "lines": list(step.lines),
            "parts": parts,
            "counts": dict(step.counts),
            "fields": dict(step.fields),
        }
        if step.move is not None:
            said |= {"from": step.move[0], "to": step.move[1]}
        args = [batch.id, epoch, json.dumps(said), self._clock()]
        code, status = await self.connection.script_once("gateway_batch_save", keys, args)
        return SaveCode(code), BatchStatus(status.decode()) if status else None

    async def finish_batch(self, batch: BatchRecord, epoch: int, ending: Ending) -> bool:
        """End a batch; it stays open until `close_batch`. False when it is somebody else's."""
        names = self.names
        keys = [
            names.batch(batch.id),
            names.done(batch.id),
            names.file(batch.output_file_id),
            names.parts(batch.output_file_id),
            names.file(batch.error_file_id),
            names.parts(batch.error_file_id),
            names.files(batch.tenant),
            names.ends,
            names.file(batch.input_file_id),
            names.stats(batch.tenant),
            names.use(batch.tenant),
        ]
        said = {
            "files": [batch.output_file_id, batch.error_file_id],
            "names": [f"{batch.id}_output.jsonl", f"{batch.id}_error.jsonl"],
            "fields": {"tenant": batch.tenant, "purpose": ending.purpose},
            "stats": dict(ending.stats),
            "errors": False if ending.errors is None else json.dumps(list(ending.errors)),
        }
        args = [batch.id, epoch, ending.status, ending.kept_ms, json.dumps(said), self._clock()]
        return bool(await self.connection.script("gateway_batch_finish", keys, args))

    # -- the simple service --------------------------------------------------------------------------------

    async def count(self, tenant: str, counts: Mapping[str, int]) -> None:
        """Add to what was done for a tenant."""
        key = self.names.stats(tenant)
        await self.connection.pipeline([("HINCRBY", key, name, more) for name, more in counts.items()])

    async def stats(self, tenant: str) -> dict[str, int]:
        """What was done for a tenant so far."""
        found = mapping(await self.connection.command("HGETALL", self.names.stats(tenant)))
        return {name.decode(errors="replace"): int(value) for name, value in found.items() if value.isdigit()}

    async def open_jobs(self, tenant: str) -> list[BatchStatus]:
        """Where each of a tenant's jobs is that has not ended."""
        found = await self.connection.command("ZRANGEBYSCORE", self.names.open, "-inf", "+inf")
        keys = [self.names.batch(each.decode()) for each in found if each.startswith(JOB.encode())]
        statuses: list[BatchStatus] = []
        for first in range(0, len(keys), LOOK_AT):
            some = [("HMGET", key, "tenant", "status") for key in keys[first : first + LOOK_AT]]
            for whose, status in await self.connection.pipeline(some):
                if whose == tenant.encode() and status in _OPEN:
                    statuses.append(_OPEN[status])
        return statuses

    async def _lease(self, batch_id: str, epoch: int, ms: int | str, stumbled: str) -> BatchStatus | None:
        keys, args = [self.names.batch(batch_id), self.names.open], [batch_id, epoch, ms, stumbled, self._clock()]
        status = await self.connection.script("gateway_batch_lease", keys, args)
        return BatchStatus(status.decode()) if status else None


def _queues(models: bytes | None) -> frozenset[str]:
    """Queues of a batch's models; none where they are not known, or somebody wrote something else there."""
    try:
        return frozenset(str(queue) for queue, _ in json.loads(models or b"{}").values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return frozenset()
