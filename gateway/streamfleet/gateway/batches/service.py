"""Files, batches and the simple service of one gateway process.

`Batching` builds store, broker and scheduler from the settings; routes call it to accept and list batches. It starts
and closes together with the gateway, and deletes expired files in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog

from streamfleet.common.errors import Conflict, InvalidRequest
from streamfleet.common.numbers import BYTES_PER_TOKEN
from streamfleet.common.protocol import Lane
from streamfleet.common.settings import QueueSettings
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway import metrics
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.authentication import Caller
from streamfleet.gateway.background import Repeated
from streamfleet.gateway.batch_records import (
    BATCH,
    FILE,
    JOB,
    BatchNames,
    BatchRecord,
    BatchStatus,
    FileRecord,
    new_id,
)
from streamfleet.gateway.batches.batch_parameters import (
    BatchParameters,
    batch_not_kept,
)
from streamfleet.gateway.batches.claimed_batch import Dependencies
from streamfleet.gateway.batches.scheduler import Scheduler
from streamfleet.gateway.broker.batches import AddCode, BatchBroker, Naming, OpenBatch
from streamfleet.gateway.broker.files import FileBroker
from streamfleet.gateway.errors import LIMITED, NOT_AGAIN, SERVER, ApiError, retry_after
from streamfleet.gateway.files.files import Files, too_many_files
from streamfleet.gateway.files.store import ContentGone, Store, StoreUnavailable
from streamfleet.gateway.models import Models
from streamfleet.gateway.queues import Queues, open_connection
from streamfleet.gateway.shared_counts import SharedCounts
from streamfleet.gateway.simple.prompts import has_results, outputs_of, results_of
from streamfleet.gateway.token_budget import TokenBudget
from streamfleet.gateway.webhooks.service import Webhooks

log = structlog.get_logger(__name__)
BATCHES_KEPT = 5_000
"""Most batches and jobs of a tenant that are kept, so that those of one tenant take at most 190 MB of Redis."""
BATCHES_OPEN = 200
"""Most of them that have not ended. A gateway runs few at once, so more would only wait: the caller can keep those."""
MOST_LINE_BYTES = 1_048_576
"""Largest request body on a line of a batch: a gateway holds several lines of each batch at once."""
SWEEP_S = 5.0
"""Seconds between two sweeps of the store. What a tenant stores meanwhile comes on top of its bound."""
FORGOTTEN = (20, 100, 100, 100, 100, 0)
"""Most ended batches to delete after each try to add one: after the limit was lowered, far too many are kept."""
INPUT = "job_input"
"""Purpose of an input that the gateway wrote, which callers do not see."""
INPUT_KEPT_MS = 3_600_000
"""Lifetime of such an input without a batch: an open batch keeps its input."""
WATCH_S = 3.0
MOST_WATCHED = 500
"""Most batches that one look reads, so that it stays cheap; more are counted as this many."""
TOO_MUCH_S, CLEARING_S = 60, 2
"""Seconds after which to try again, because a batch has to end first."""
LISTED_AT_ONCE, LOOKED_AT_ONCE = 10, 500
"""A batch may have a hundred errors, which take time to parse; its endpoint alone takes none."""
MOST_OUTPUT_BYTES, MOST_RESULT_BYTES = 16_384, 1_048_576
"""Most bytes of outputs in a webhook, and of the files read for it: Redis holds every outstanding webhook."""
LOCAL = (
    "files are stored on this machine: with several gateways, put them where all reach them "
    "(STREAMFLEET_GATEWAY_FILES=s3://…, or a folder that all have mounted)"
)


class Batching:
    """Files and batches of one process.

    Args:
        queue_settings, settings: of the gateway.
        queues, models: of the gateway.
        webhooks: announce the ends of batches.
        budget: tokens that callers may use.
        shared: counts of all processes; None for a gateway of one.

    Attributes:
        settings, broker, files, scheduler: its parts.
        most_body_bytes: largest body of a request in a batch.

    Raises:
        SettingsError: STREAMFLEET_GATEWAY_FILES or the Redis URL cannot be used.
    """

    def __init__(
        self,
        queue_settings: QueueSettings,
        settings: GatewaySettings,
        queues: Queues,
        models: Models,
        webhooks: Webhooks,
        budget: TokenBudget,
        shared: SharedCounts | None = None,
    ) -> None:
        self.settings = settings
        self._webhooks = webhooks
        self._store = Store(settings.gateway_files)
        connection = open_connection(queue_settings)
        names = BatchNames(GatewayNames(queue_settings.key_prefix).base)
        self.broker = BatchBroker(connection, names)
        self.files = Files(
            FileBroker(connection, names),
            self._store,
            settings.gateway_file_max_bytes,
            settings.gateway_file_ttl_ms,
            settings.gateway_file_bytes_per_tenant,
            shared,
        )
        self.most_body_bytes = min(MOST_LINE_BYTES, queue_settings.max_body_bytes)
        dependencies = Dependencies(self.files, self.broker, queues, models, settings, self.most_body_bytes, budget)
        self.scheduler = Scheduler(dependencies, self._announce_end)
        self._watching = Repeated(BatchMonitor(self.broker, self.scheduler).look, WATCH_S, "batches_not_watched")
        self._sweeping = Repeated(self.files.sweep, SWEEP_S, "files_not_cleared")

    def start(self) -> None:
        """Run batches and delete expired files from now on."""
        if not self._store.shared:
            log.warning("files_are_local", why=LOCAL)
        metrics.CONNECTIONS_LIMIT.set(self.settings.gateway_max_connections)
        metrics.DEADLINE.set(self.settings.gateway_deadline_ms / 1000)
        self.scheduler.start()
        self._watching.start()
        self._sweeping.start()

    async def close(self) -> None:
        """Release all batches, and close the store and the connection."""
        await self.scheduler.close()
        await self._watching.close()
        await self._sweeping.close()
        await self._store.close()
        await self.broker.close()

    async def check_callback(self, url: str | None, tenant: str) -> None:
        """Refuse a callback URL that webhooks may not be sent to. Raises InvalidRequest."""
        if url is not None:
            await self._webhooks.check(url, tenant or None)

    async def find_named(self, naming: Naming) -> BatchRecord | None:
        """Returns the batch of this name, or None. Raises Conflict if the name belongs to another request."""
        found = await self.broker.named(naming.name)
        if found is None:
            return None
        batch_id, digest = found
        if digest != naming.digest:
            raise _conflict()
        return await self._require_batch(batch_id)

    async def _require_batch(self, batch_id: str) -> BatchRecord:
        record = await self.broker.batch(batch_id)
        if record is None:
            raise batch_not_kept()
        return record

    async def accept(
        self,
        parameters: BatchParameters,
        caller: Caller,
        lane: Lane,
        naming: Naming | None,
        *,
        job: bool = False,
        total: int = 0,
    ) -> BatchRecord | None:
        """Create a batch that any gateway may take; returns None if the tenant has no such input file.

        Args:
            parameters: its parameters.
            caller, lane: owner and priority. In any lane but `low`, the lines use up the tokens of the caller's key.
            naming: the caller's name for it; the same name returns the same batch.
            job: True for a job of the simple service.
            total: number of lines, if known.

        Raises:
            Conflict: the name belongs to another request.
            ApiError: the tenant's open batches are too large with it, or too many, or it is too large alone.
        """
        record = _new_record(JOB if job else BATCH, await self.broker.now_ms(), parameters, caller, lane, total)
        code, known_id = await self._add(record, naming, parameters.window_ms)
        if code is AddCode.NO_FILE:
            return None
        if code is AddCode.REPEATED:
            return await self._require_batch(known_id)
        if code is not AddCode.ACCEPTED:
            raise await self._refusal(code, parameters.input_file_id)
        self.scheduler.wake()
        return record

    async def accept_written(
        self,
        file: FileRecord,
        parameters: BatchParameters,
        caller: Caller,
        lane: Lane,
        naming: Naming | None,
        *,
        job: bool = False,
        total: int,
    ) -> BatchRecord:
        """Create a batch as `accept` does, of an input that the gateway wrote. If no batch needs it, the input goes."""
        batch = None
        try:
            batch = await self.accept(parameters, caller, lane, naming, job=job, total=total)
        finally:
            if batch is None or batch.input_file_id != file.id:  # it was refused, or existed before
                await asyncio.shield(self.files.delete(file))
        if batch is None:  # the input file was deleted by hand
            text = "the batch or job was not accepted; try again"
            raise ApiError(503, text, "not_accepted", SERVER, headers=retry_after(1))
        return batch

    async def _refusal(self, code: AddCode, input_file_id: str) -> Conflict | ApiError:
        settings, later = self.settings, retry_after(TOO_MUCH_S)
        match code:
            case AddCode.CONFLICT:
                return _conflict()
            case AddCode.TOO_MUCH:
                file, most = await self.files.broker.file(input_file_id), settings.gateway_batch_tokens_per_tenant
                if file is not None and file.bytes > most * BYTES_PER_TOKEN:
                    text = f"this input is larger than all open batches may be, about {most} tokens: split it"
                    headers, param = NOT_AGAIN, "input_file_id"
                    return ApiError(413, text, "batch_too_large", param=param, headers=headers, reason="batch_tokens")
                text = f"all open batches may have about {most} tokens together; try again when one has ended"
                return ApiError(429, text, "token_limit_exceeded", LIMITED, "input_file_id", later, "batch_tokens")
            case AddCode.TOO_MANY_OPEN:
                many = f"{BATCHES_OPEN} batches and jobs may be open, which have not ended"
                text = f"{many}; try again when one has ended"
                return ApiError(429, text, "too_many_batches", LIMITED, headers=later, reason="batches")
            case AddCode.TOO_MANY_KEPT:
                text = f"more than {BATCHES_KEPT} batches and jobs are kept, which are being deleted; try again"
                headers = retry_after(CLEARING_S)
                return ApiError(429, text, "too_many_batches", LIMITED, headers=headers, reason="batches")
            case _:
                return too_many_files()

    async def _add(self, record: BatchRecord, naming: Naming | None, window_ms: int) -> tuple[AddCode, str]:
        """Add a batch; where the tenant has as many as are kept, the oldest that ended go first."""
        settings, code, batch_id = self.settings, AddCode.TOO_MANY_KEPT, ""
        for most in FORGOTTEN:
            code, batch_id = await self.broker.add_batch(
                record,
                most_bytes=settings.gateway_batch_tokens_per_tenant * BYTES_PER_TOKEN,
                naming=naming,
                kept_ms=window_ms + settings.gateway_file_ttl_ms,
                most_open=BATCHES_OPEN,
                most_kept=BATCHES_KEPT,
            )
            full = code is AddCode.TOO_MANY_KEPT
            if not full or not most or not await self._forget_oldest(record.tenant, most):
                break
        return code, batch_id

    async def _forget_oldest(self, tenant: str, most: int) -> int:
        """Delete a tenant's oldest ended batches and jobs, at most so many, with their results. Returns how many."""
        ids = await self.broker.oldest_ended(tenant, most, BATCHES_OPEN)
        for batch_id, record in zip(ids, await self.broker.batches(ids), strict=True):
            if record is None:
                await self.broker.forget(tenant, batch_id, "")
            else:
                await self.forget(record)
        return len(ids)

    async def forget(self, batch: BatchRecord) -> None:
        """Delete a batch or job that has ended, with its results, and its input if the gateway wrote that."""
        input_ids = (batch.input_file_id,) if batch.written_here else ()
        for file in await self.files.broker.files((batch.output_file_id, batch.error_file_id, *input_ids)):
            if file is not None and file.tenant == batch.tenant:
                await self.files.delete(file)
        await self.broker.forget(batch.tenant, batch.id, batch.named)

    async def list_batches(
        self, tenant: str, after: str, most: int, *, newest_first: bool = True, endpoint: str = ""
    ) -> Sequence[BatchRecord]:
        """Returns a tenant's batches after a given one, of one endpoint or (empty) of all.

        Removes ids of deleted batches from the list.
        """
        found: list[BatchRecord] = []
        while len(found) < most:
            at_once = LOOKED_AT_ONCE if endpoint else LISTED_AT_ONCE
            ids = await self.broker.batch_ids(tenant, after, at_once, newest_first=newest_first)
            wanted = await self.broker.ids_for(endpoint, ids) if endpoint else ids
            for at in range(0, len(wanted), LISTED_AT_ONCE):
                found += await self._existing(tenant, wanted[at : at + LISTED_AT_ONCE])
                if len(found) >= most:
                    break
            if len(ids) < at_once:
                break
            after = ids[-1]
        return found[:most]

    async def _existing(self, tenant: str, batch_ids: Sequence[str]) -> list[BatchRecord]:
        records = await self.broker.batches(batch_ids)
        gone = [each for each, record in zip(batch_ids, records, strict=True) if record is None]
        if gone:
            await self.broker.forget_batches(tenant, gone)
        return [record for record in records if record is not None]

    async def _announce_end(self, batch: BatchRecord) -> None:
        if not batch.callback_url:
            return
        kind = "job" if batch.id.startswith(JOB) else "batch"
        counts = {"total": batch.total, "completed": batch.completed, "failed": batch.failed}
        data = {"id": batch.id, "object": kind, "status": batch.status.value, "request_counts": counts}
        if kind == "job":
            data |= {"batch_id": batch.id, **await self._outputs(batch)}
        ended = batch.status if batch.status.ended else BatchStatus.FAILED
        try:
            await self._webhooks.announce(
                batch.callback_url,
                f"{kind}.{ended.value}",
                data,
                event_id=f"{batch.id}.ended",
                tenant=batch.tenant or None,
            )
        except InvalidRequest as error:
            # No gateway may send to it any more: the batch ends all the same, without a webhook.
            log.warning("callback_refused", batch=batch.id, error=str(error))

    async def _outputs(self, job: BatchRecord) -> dict[str, Any]:
        """Returns the outputs of a job for its webhook, or a link to them if they are too large."""
        with contextlib.suppress(ContentGone, StoreUnavailable):
            if has_results(job, MOST_RESULT_BYTES):
                outputs = list(outputs_of(await results_of(self.files, job)))
                if len(json.dumps(outputs)) <= MOST_OUTPUT_BYTES:
                    return {"outputs": outputs}
        return {"outputs": None, "outputs_url": f"/v1/batch/{job.id}"}


def _new_record(
    kind: str, now_ms: int, parameters: BatchParameters, caller: Caller, lane: Lane, total: int
) -> BatchRecord:
    """The record of a batch that is created now; in any lane but `low`, the caller's key pays for its tokens."""
    pays = lane is not Lane.LOW and caller.tokens.limit > 0
    return BatchRecord(
        new_id(kind, now_ms),
        caller.tenant or "",
        parameters.input_file_id,
        new_id(FILE, now_ms),
        new_id(FILE, now_ms),
        parameters.endpoint,
        parameters.window,
        lane,
        now_ms,
        now_ms + parameters.window_ms,
        metadata=parameters.metadata,
        callback_url=parameters.callback_url or "",
        total=total,
        payer=caller.owner if pays else "",
        tokens_per_minute=caller.tokens.limit if pays else 0,
        output_kept_ms=parameters.output_kept_ms,
    )


def _conflict() -> Conflict:
    return Conflict("something else was asked for under this name")


class Progress:
    """Progress of the open batches, and when each last advanced. Pure.

    A gateway that has just started knows no earlier progress, and takes the first state that it sees for an advance.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[bytes | None, ...], float]] = {}
        self._moved_s = 0.0

    def stalled_s(self, batches: Sequence[OpenBatch], now_s: float) -> float:
        """Longest time any open batch has been stalled, in seconds; 0 if none is open.

        Args:
            batches: all open ones, as they are now. Batches that no gateway took yet wait for their turn, so they
                count as stalled only since the last moment when any batch advanced or ended.
            now_s: a monotonic clock.
        """
        now = {batch.id: batch for batch in batches}
        if any(each not in now or now[each].progress != progress for each, (progress, _) in self._seen.items()):
            self._moved_s = now_s
        self._seen = {batch.id: self._since(batch, now_s) for batch in batches}
        since = [self._seen[each][1] for each, batch in now.items() if batch.begun]
        since += [max(self._seen[each][1], self._moved_s) for each, batch in now.items() if not batch.begun]
        return now_s - min(since, default=now_s)

    def _since(self, batch: OpenBatch, now_s: float) -> tuple[tuple[bytes | None, ...], float]:
        before = self._seen.get(batch.id)
        return before if before is not None and before[0] == batch.progress else (batch.progress, now_s)


class BatchMonitor:
    """Sets the gauges of the open batches.

    Args:
        broker: knows the batches.
        scheduler: of this gateway.
    """

    def __init__(self, broker: BatchBroker, scheduler: Scheduler) -> None:
        self._broker, self._scheduler = broker, scheduler
        self._progress = Progress()

    async def look(self) -> None:
        """Set the gauges: to unknown if Redis does not answer, so that nobody takes old values for fresh ones."""
        metrics.BATCHES_RUNNING.set(self._scheduler.running)
        try:
            batches = await self._broker.open_batches(MOST_WATCHED)
        except Exception:
            metrics.REDIS_UP.set(0)
            metrics.BATCHES_OPEN.clear()
            metrics.BATCHES_STALLED.set(math.nan)
            raise
        metrics.REDIS_UP.set(1)
        counts = Counter(status_label(batch.status) for batch in batches)
        for status in metrics.BATCH_STATUSES:
            metrics.BATCHES_OPEN.labels(status).set(counts[status])
        metrics.BATCHES_STALLED.set(self._progress.stalled_s(batches, asyncio.get_running_loop().time()))


def status_label(status: str) -> str:
    """Returns the status of an open batch, for a label."""
    return status if status in metrics.BATCH_STATUSES else metrics.BATCH_ENDED
