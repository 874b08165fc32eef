"""State of one batch that this gateway runs, shared by all steps.

A `ClaimedBatch` is made from a lease in Redis. It reads input lines from the store, finds their queues, and records
finished lines through its `Ledger`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from streamfleet.common.errors import InvalidRequest, StreamfleetError
from streamfleet.common.settings_gateway import BatchSettings
from streamfleet.gateway.batch_records import BatchStatus
from streamfleet.gateway.batches.ledger import Ledger
from streamfleet.gateway.batches.lines import Line, LineChecker, LineSet, most_line_bytes, number_lines
from streamfleet.gateway.broker.batches import BatchBroker, Contender, Taken
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.files.store import ContentGone
from streamfleet.gateway.models import Models
from streamfleet.gateway.queues import Queues
from streamfleet.gateway.token_budget import TokenBudget
from streamfleet.producer.batch_lines import BadLine, BatchLine

NO_WORKER_MS = 2_000
MOST_LINES = 1_000_000
"""Most lines of a batch: each takes about 100 bytes of memory while they are checked."""
OVERDUE_MS = 5_000
"""Time past the deadline in which a result may still arrive; then the batch ends the request itself."""


class BatchDeferred(StreamfleetError):
    """The batch has to wait: release it.

    Attributes:
        after_ms: time until another try may help.
    """

    def __init__(self, message: str, after_ms: int) -> None:
        super().__init__(message)
        self.after_ms = after_ms


class InvalidBatch(StreamfleetError):
    """The whole batch cannot be run.

    Attributes:
        errors: reasons, as OpenAI shows them.
    """

    def __init__(
        self, code: str, message: str, line: int | None = None, others: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(message)
        error: Mapping[str, Any] = {"code": code, "message": message, "param": None, "line": line}
        self.errors = [error, *others]

    @classmethod
    def of_lines(cls, errors: Sequence[Mapping[str, Any]]) -> Self:
        """Returns the error of an input of which no line is a request, from the errors of its lines."""
        first, *others = errors
        made = cls(first["code"], first["message"], first["line"], others)
        made.errors[0] = first
        return made


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The parts of a gateway that batches need."""

    files: Files
    broker: BatchBroker
    queues: Queues
    models: Models
    settings: BatchSettings
    most_body_bytes: int
    budget: TokenBudget


class ClaimedBatch:
    """A batch that this gateway has taken.

    Args:
        dependencies: parts of the gateway.
        taken: the batch and its lease.
        done: bits of its finished lines, as Redis has them.
        ahead_ms: Redis's clock minus this machine's monotonic clock.

    Attributes:
        batch, epoch: as they were when it was taken.
        status: current status; renewals of the lease update it.
        mark: last line that may have been enqueued.
        bits: finished lines that are recorded.
        ledger: finished lines that are not recorded yet.
        waiting_since_s: since when it only waits for results, by the machine's monotonic clock; None while it does
            anything else.
    """

    def __init__(self, dependencies: Dependencies, taken: Taken, done: bytes, ahead_ms: float) -> None:
        self.dependencies = dependencies
        self.batch, self.epoch = taken.record, taken.epoch
        self.status = self.batch.status
        self.mark = self.batch.mark
        self.models = dict(self.batch.models)
        self.bits = LineSet(done)
        self.ledger = Ledger(dependencies.files, dependencies.broker, self.batch, self.epoch)
        self.waiting_since_s: float | None = None
        self._ahead_ms = ahead_ms

    @property
    def contender(self) -> Contender:
        """The properties of the batch that decide its turn."""
        return Contender(self.batch.id, self.batch.tenant, frozenset(queue for queue, _ in self.models.values()))

    @property
    def cancelling(self) -> bool:
        return self.status is BatchStatus.CANCELLING

    def now_ms(self, monotonic_s: float) -> float:
        """Redis's clock, epoch ms, at a given time of the machine's monotonic clock."""
        return monotonic_s * 1000 + self._ahead_ms

    def checker(self) -> LineChecker:
        """Returns a new checker for its lines, which begins at the first one."""
        return LineChecker(self.batch.endpoint, self.dependencies.most_body_bytes)

    async def lines(self) -> AsyncIterator[list[Line]]:
        """Yields its input lines in groups, without blank lines.

        Raises:
            InvalidBatch: the input is gone, or has too many lines.
        """
        total = 0
        parts = await self.dependencies.files.broker.parts(self.batch.input_file_id)
        try:
            async for group in number_lines(
                self.dependencies.files.read(parts), most_line_bytes(self.dependencies.most_body_bytes)
            ):
                total += len(group)
                if total > MOST_LINES and not self.batch.total:  # a batch whose lines were counted before goes on
                    number, _ = group[MOST_LINES - total]
                    raise InvalidBatch(
                        "too_many_requests", f"the input has more than {MOST_LINES} requests: split it", number
                    )
                yield group
        except ContentGone:
            raise InvalidBatch("input_file_unavailable", "the content of the input file is gone") from None

    async def route(self, line: BatchLine) -> tuple[str, str]:
        """Returns the queue of a line's model, and the workers' name of the model (empty for no name).

        Raises:
            BadLine: the model does not exist.
            BatchDeferred: no worker has said yet which models it serves.
        """
        model = line.body.get("model")
        name = model if isinstance(model, str) else ""
        if name not in self.models or not isinstance(model, str | None):
            try:
                chosen = await self.dependencies.models.choose(model)
            except InvalidRequest as error:
                raise BadLine(line.number, line.custom_id, error.message, "body.model", error.code) from None
            except ApiError as error:
                if error.status >= 500:
                    raise BatchDeferred(error.message, NO_WORKER_MS) from None
                code = error.code or "model_not_found"
                raise BadLine(line.number, line.custom_id, error.message, "body.model", code) from None
            self.models[name] = (chosen.queue, chosen.served or "")
        return self.models[name]

    async def save(
        self, fields: Mapping[str, str] | None = None, move: tuple[BatchStatus, BatchStatus] | None = None
    ) -> None:
        """Record finished lines. Raises as `Ledger.save`."""
        finished = self.ledger.numbers
        self.status = await self.ledger.save(fields, move)
        for number in finished:
            self.bits.add(number)

    async def reserve(self, mark: int) -> None:
        """Allow lines up to this one to be enqueued. Raises as `save`."""
        await self.save({"mark": str(mark)})
        self.mark = mark
