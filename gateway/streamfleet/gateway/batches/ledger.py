"""Finished lines of a batch that are not recorded yet: text for its two files, and numbers of input lines.

Lines come in one by one; `save` writes the text to the store, then records it in Redis together with their numbers, in
one script. So after a crash each line is recorded wholly or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamfleet.common.errors import StreamfleetError
from streamfleet.common.protocol import Status
from streamfleet.common.results import Result, tokens_used
from streamfleet.gateway import metrics
from streamfleet.gateway.batch_records import BatchRecord, BatchStatus, Part
from streamfleet.gateway.broker.batches import BatchBroker, SaveCode, Step
from streamfleet.gateway.files.files import SEGMENT_HOLD_MS, Files
from streamfleet.producer.batch_lines import BadLine, answer_line, refusal_line

MOST_BYTES, MOST_LINES = 4_194_304, 2_000
SOONEST_S, LATEST_S, PARTS_AN_AGE = 0.5, 60.0, 50
"""Seconds between two recordings. A batch that runs for long is recorded less often: each recording adds a content to
its files, and nothing is lost in between, because results stay in Redis."""
EXPIRED = "this request was not answered before the batch's completion window was over"
CANCELLED = "this request was not answered before the batch was cancelled"


class BatchLost(StreamfleetError):
    """Another gateway has the batch: it took the batch when this one's lease ended."""


class LedgerConflict(StreamfleetError):
    """The ledger does not fit the state in Redis: begin again with that state."""

    retryable = True


def pause_s(age_s: float) -> float:
    """Seconds between two recordings, by the age of the batch in seconds. Pure."""
    return min(LATEST_S, max(SOONEST_S, age_s / PARTS_AN_AGE))


class Ledger:
    """Finished lines of one batch.

    Args:
        files, broker: store and Redis.
        batch, epoch: the batch, and the number of its lease.
    """

    def __init__(self, files: Files, broker: BatchBroker, batch: BatchRecord, epoch: int) -> None:
        self._files, self._broker = files, broker
        self._batch, self._epoch = batch, epoch
        self._clear()

    def _clear(self) -> None:
        self._output, self._errors = bytearray(), bytearray()
        self._lines: list[int] = []
        self._counts: dict[str, int] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the lines that are not recorded yet."""
        return tuple(self._lines)

    @property
    def full(self) -> bool:
        """True if the lines should be recorded now, without waiting for the next time."""
        return len(self._output) + len(self._errors) >= MOST_BYTES or len(self._lines) >= MOST_LINES

    def add_answer(self, number: int, custom_id: str, result: Result, ignored: str = "", *, cancelling: bool) -> None:
        """Add a line whose request ended. `ignored` is that of its `BatchLine`."""
        if result.status is Status.EXPIRED:
            self.add_expired(number, custom_id)
        elif result.status is Status.CANCELLED and cancelling:
            self.add_cancelled(number, custom_id)
        elif result.ok:
            usage = result.usage or {}
            for name in ("prompt_tokens", "completion_tokens"):
                self._count(name, tokens_used(usage, name) or 0)
            self._count("cached_tokens", result.cached_tokens)
            self._finish(number, "completed", self._output, answer_line(custom_id, result, ignored))
        else:
            self._finish(number, "failed", self._errors, answer_line(custom_id, result, ignored))

    def add_refusal(self, error: BadLine) -> None:
        """Add a line that was not run, or whose request failed."""
        self._finish(error.number, "failed", self._errors, refusal_line(error))

    def add_expired(self, number: int, custom_id: str | None) -> None:
        """Add a line that was not answered before the batch's time was over."""
        self._count("late", 1)
        self.add_refusal(BadLine(number, custom_id, EXPIRED, None, "batch_expired"))

    def add_cancelled(self, number: int, custom_id: str | None) -> None:
        """Add a line that was not answered before the batch was cancelled."""
        self._count("cancelled", 1)
        self.add_refusal(BadLine(number, custom_id, CANCELLED, None, "batch_cancelled"))

    async def save(
        self,
        fields: Mapping[str, str] | None = None,
        move: tuple[BatchStatus, BatchStatus] | None = None,
    ) -> BatchStatus:
        """Record all lines, and clear the ledger.

        Args:
            fields: fields of the batch to set in the same call.
            move: old and new status; None to keep the status.

        Returns:
            The status of the batch afterwards.

        Raises:
            BatchLost: another gateway has the batch.
            LedgerConflict: the contents were deleted before they were recorded, or another call finished some of these
                lines.
            StoreUnavailable: nothing was recorded.
            BrokerUnavailable: the outcome is unknown; the gateway that takes the batch next reads it from Redis.
        """
        stored = [
            (self._files.store.new_name(owner), bytes(data))
            for owner, data in (
                (self._batch.output_file_id, self._output),
                (self._batch.error_file_id, self._errors),
            )
        ]
        kept = [(name, data) for name, data in stored if data]
        if kept:
            await self._files.broker.hold([name for name, _ in kept], SEGMENT_HOLD_MS)
        for name, data in kept:
            await self._files.store.put(name, data)
        output, errors = (Part(name, len(data)) if data else None for name, data in stored)
        step = Step(self._lines, output, errors, self._counts, fields or {}, move)
        code, status = await self._broker.save_batch(self._batch, self._epoch, step)
        if code is SaveCode.SAVED and status is not None:
            metrics.count_lines(self._counts)
            self._clear()
            return status
        await self._files.discard([name for name, _ in kept])
        if code is SaveCode.LOST:
            raise BatchLost(f"batch {self._batch.id} was taken by another gateway")
        raise LedgerConflict(f"batch {self._batch.id} is not where it was left: {code.name.lower()}")

    def _finish(self, number: int, count: str, file: bytearray, line: bytes) -> None:
        file += line
        self._lines.append(number)
        self._count(count, 1)

    def _count(self, name: str, more: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + more
