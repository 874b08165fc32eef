"""The batches of the HTTP gateway in Redis: their records, their owners and their progress.

A gateway that takes a batch gets an epoch with it. Every write of progress names the epoch, and is refused once another
gateway has taken the batch, so a gateway that was wrongly taken for dead damages nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from streamfleet.common.replies import mapping
from streamfleet.gateway.batch_records import BATCH, JOB, BatchNames, BatchRecord, BatchStatus, Part, read_batch
from streamfleet.gateway.broker.base import SharedKeys
from streamfleet.gateway.broker.files import page

_PROGRESS = ("status", "epoch", "completed", "failed", "mark")
LOOK_AT = 500
"""Number of batches whose status is read in one round trip."""
_OPEN = {status.encode(): status for status in BatchStatus if not status.ended}


class SaveCode(IntEnum):
    """Outcome of writing progress; the return codes of gateway_batch_save.lua."""

    LOST = 0
    SAVED = 1
    DONE_BEFORE = 2
    TOO_LATE = 3


class AddCode(IntEnum):
    """Outcome of creating a batch; the return codes of gateway_batch_add.lua."""

    NO_FILE = 0
    ACCEPTED = 1
    TOO_MUCH = 2
    CONFLICT = 3
    REPEATED = 4
    TOO_MANY_OPEN = 5
    TOO_MANY_KEPT = 6
    TOO_MANY_FILES = 7


class Naming(NamedTuple):
    """The caller's name for a batch, and the digest of its request."""

    name: str
    digest: str


class Contender(NamedTuple):
    """A batch that has a slot of a gateway, or waits for one.

    Attributes:
        id: id of the batch.
        tenant: the owner; empty where keys are off.
        queues: queues of its models; empty until its lines were checked.
    """

    id: str
    tenant: str
    queues: frozenset[str]


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


class Taken(NamedTuple):
    """A batch that a gateway has taken, and the epoch of the lease."""

    record: BatchRecord
    epoch: int


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a batch that is written in one step.

    Attributes:
        lines: numbers of the lines that it finishes, from 1.
        output, errors: stored contents to append to its two files; None for nothing.
        counts: increments by field of the batch.
        fields: new values by field of the batch.
        move: old and new status; None to keep the status.
    """

    lines: Sequence[int] = ()
    output: Part | None = None
    errors: Part | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    move: tuple[BatchStatus, BatchStatus] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a batch.

    Attributes:
        status: its final status.
        kept_ms: time for which the batch is kept, and its files unless it names a time for them.
        purpose: purpose of its files.
        stats: increments of the tenant's counters, by field.
        errors: errors of the whole batch, OpenAI's error objects; None to keep the errors of its lines.
    """

    status: BatchStatus
    kept_ms: int
    purpose: str
    stats: Mapping[str, int] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] | None = None


class BatchBroker(SharedKeys[BatchNames]):
    """One method for each operation, each one script or one command."""

    async def add_batch(
        self,
        record: BatchRecord,
        *,
        most_bytes: int = 0,
        naming: Naming | None = None,
        kept_ms: int = 1,
        most_open: int = 200,
        most_kept: int = 5_000,
    ) -> tuple[AddCode, str]:
        """Accept a batch.

        Args:
            record: the batch.
            most_bytes: most bytes of the inputs of all open batches of the tenant; 0 for no limit.
            naming: a second call with the same name gets the same batch.
            kept_ms: time for which the name is kept.
            most_open, most_kept: most batches and jobs of the tenant that have not ended, and in all.

        Returns:
            The outcome, and the batch's id: for REPEATED the id of the existing batch.
        """
        names = self.names
        kinds = (JOB, BATCH) if record.id.startswith(JOB) else (BATCH, JOB)
        mine, others = (names.batches(record.tenant, kind) for kind in kinds)
        keys = [
            names.batch(record.id),
            mine,
            names.open,
            names.file(record.input_file_id),
            names.use(record.tenant),
            names.named(naming.name if naming else ""),
            others,
            names.files(record.tenant),
        ]
        fields = record.fields() | ({"named": naming.name} if naming else {})
        flat = [word for pair in fields.items() for word in pair]
        limits = [most_bytes, naming.digest if naming else "", kept_ms, most_open, most_kept]
        args = [record.id, record.tenant, record.created_ms, *limits, *flat]
        code, batch_id = await self.connection.script("gateway_batch_add", keys, args)
        return AddCode(code), batch_id.decode()

    async def named(self, name: str) -> tuple[str, str] | None:
        """Id of the batch that was created under a name, and the digest of its request; None for an unknown name."""
        batch_id, digest = await self.connection.command("HMGET", self.names.named(name), "batch", "digest")
        return None if batch_id is None or digest is None else (batch_id.decode(), digest.decode())

    async def batch(self, batch_id: str) -> BatchRecord | None:
        """One batch."""
        return (await self.batches([batch_id]))[0]

    async def batches(self, batch_ids: Sequence[str]) -> list[BatchRecord | None]:
        """Several batches, in one round trip."""
        if not batch_ids:
            return []
        replies = await self.connection.pipeline([("HGETALL", self.names.batch(batch_id)) for batch_id in batch_ids])
        return [read_batch(batch_id, mapping(reply)) for batch_id, reply in zip(batch_ids, replies, strict=True)]

    async def ids_for(self, endpoint: str, batch_ids: Sequence[str]) -> list[str]:
        """Those batches that go to an endpoint, or are deleted, in one round trip."""
        if not batch_ids:
            return []
        replies = await self.connection.pipeline([("HGET", self.names.batch(each), "endpoint") for each in batch_ids])
        wanted = (None, endpoint.encode())
        return [each for each, reply in zip(batch_ids, replies, strict=True) if reply in wanted]

    async def batch_ids(self, tenant: str, after: str, most: int, *, newest_first: bool = True) -> list[str]:
        """Ids of a tenant's batches after one of them (empty: from the beginning)."""
        return await page(self.connection, self.names.batches(tenant), after, most, newest_first=newest_first)

    async def forget_batches(self, tenant: str, batch_ids: Sequence[str]) -> None:
        """Remove expired batches from the tenant's list."""
        await self.connection.command("ZREM", self.names.batches(tenant), *batch_ids)

    async def oldest_ended(self, tenant: str, most: int, most_open: int) -> list[str]:
        """Ids of a tenant's oldest batches and jobs that have ended, or are gone; at most `most_open` have not."""
        ids: list[str] = []
        for kind in (BATCH, JOB):
            key = self.names.batches(tenant, kind)
            ids += await page(self.connection, key, "", most + most_open, newest_first=False)
        ids.sort(key=lambda batch_id: batch_id.partition("_")[2])  # by time
        commands = [("HGET", self.names.batch(each), "status") for each in ids]
        commands += [("ZSCORE", self.names.open, each) for each in ids]
        replies = await self.connection.pipeline(commands)
        statuses, scores = replies[: len(ids)], replies[len(ids) :]
        # A batch that ended stays among the open ones until its end is announced.
        found = zip(ids, statuses, scores, strict=True)
        return [each for each, status, score in found if score is None and status not in _OPEN][:most]

    async def forget(self, tenant: str, batch_id: str, name: str) -> None:
        """Delete a batch or job that has ended, and its name."""
        names, kind = self.names, JOB if batch_id.startswith(JOB) else BATCH
        await self.connection.pipeline(
            [
                ("DEL", names.named(name)),
                ("DEL", names.batch(batch_id)),
                ("ZREM", names.batches(tenant, kind), batch_id),
            ]
        )

    async def cancel_batch(self, batch_id: str, tenant: str) -> BatchStatus | None:
        """Cancel a batch. Returns its new status; None if the tenant has no such batch."""
        status = await self.connection.script(
            "gateway_batch_cancel", [self.names.batch(batch_id)], [tenant, self._clock()]
        )
        return BatchStatus(status.decode()) if status else None

    # -- running them --------------------------------------------------------------------------------------

    async def free_batches(self, most: int, skip: int = 0) -> list[Contender]:
        """Open batches without an owner, or with a silent one; the longest waiting first.

        Args:
            most: largest number of batches to return.
            skip: number of batches to skip at the start.
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

    async def open_batches(self, most: int) -> list[OpenBatch]:
        """Open batches, in two round trips, the longest waiting first."""
        found = await self.connection.command("ZRANGEBYSCORE", self.names.open, "-inf", "+inf", "LIMIT", 0, most)
        ids = [batch_id.decode(errors="replace") for batch_id in found]
        if not ids:
            return []
        rows = await self.connection.pipeline([("HMGET", self.names.batch(each), *_PROGRESS) for each in ids])
        return [
            OpenBatch(each, (status or b"").decode(errors="replace"), epoch is not None, (status, *progress))
            for each, (status, epoch, *progress) in zip(ids, rows, strict=True)
        ]

    async def take_batch(self, batch_id: str, owner: str, lease_ms: int) -> Taken | None:
        """Take a batch for `lease_ms`; None if another gateway has it, or it is no longer open."""
        keys, args = [self.names.batch(batch_id), self.names.open], [batch_id, owner, lease_ms, self._clock()]
        epoch, fields = await self.connection.script("gateway_batch_take", keys, args)
        record = read_batch(batch_id, mapping(fields)) if epoch else None
        return None if record is None else Taken(record, epoch)

    async def renew_batch(self, batch_id: str, epoch: int, lease_ms: int) -> BatchStatus | None:
        """Renew the lease of a batch. Returns its status; None if another gateway has it now."""
        return await self._lease(batch_id, epoch, lease_ms, "")

    async def release_batch(self, batch_id: str, epoch: int, after_ms: int, *, stumbled: bool = False) -> None:
        """Hand a batch back: any gateway may take it `after_ms` from now."""
        await self._lease(batch_id, epoch, after_ms, "1" if stumbled else "")

    async def close_batch(self, batch_id: str, epoch: int) -> None:
        """Remove a batch from the open ones, once no work is left."""
        await self._lease(batch_id, epoch, "", "")

    async def done_lines(self, batch_id: str) -> bytes:
        """Bitmap of the finished lines; the highest bit of the first byte is line 1."""
        return await self.connection.command("GET", self.names.done(batch_id)) or b""

    async def save_batch(self, batch: BatchRecord, epoch: int, step: Step) -> tuple[SaveCode, BatchStatus | None]:
        """Write progress; sent once, so after an error it may or may not be written.

        Returns:
            The outcome, and the batch's status; None if another gateway has it now.
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
        """End a batch; it stays open until `close_batch`. False if another gateway has it now."""
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
            "files_kept_ms": batch.output_kept_ms or ending.kept_ms,
            "stats": dict(ending.stats),
            "errors": False if ending.errors is None else json.dumps(list(ending.errors)),
        }
        args = [batch.id, epoch, ending.status, ending.kept_ms, json.dumps(said), self._clock()]
        return bool(await self.connection.script("gateway_batch_finish", keys, args))

    # -- the simple service --------------------------------------------------------------------------------

    async def count(self, tenant: str, counts: Mapping[str, int]) -> None:
        """Add to a tenant's counters."""
        key = self.names.stats(tenant)
        await self.connection.pipeline([("HINCRBY", key, name, more) for name, more in counts.items()])

    async def stats(self, tenant: str) -> dict[str, int]:
        """A tenant's counters."""
        found = mapping(await self.connection.command("HGETALL", self.names.stats(tenant)))
        return {name.decode(errors="replace"): int(value) for name, value in found.items() if value.isdigit()}

    async def open_jobs(self, tenant: str) -> list[BatchStatus]:
        """Status of each open job of a tenant."""
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
    """Queues of a batch's models; empty where they are not known or cannot be read."""
    try:
        return frozenset(str(queue) for queue, _ in json.loads(models or b"{}").values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return frozenset()
