"""Runs a file of requests: a bounded number at once, each answered once, over any number of interruptions.

Request ids are derived from the job and the custom_id, so a restarted run enqueues the same requests, and finds those
that ended meanwhile. Requests that Redis lost are enqueued again in the same way. Lines whose prompts begin alike are
enqueued together. Memory holds the custom_ids, the outstanding lines and the next block, never the whole input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from streamfleet.common.broker.types import Submission
from streamfleet.common.errors import InvalidRequest, RequestLost
from streamfleet.common.logs import Logger
from streamfleet.common.protocol import Lane
from streamfleet.common.results import Result
from streamfleet.producer.ask import as_ask
from streamfleet.producer.batch_files import AppendFile, count_lines, lines_of, open_input
from streamfleet.producer.batch_lines import (
    BadLine,
    BatchLine,
    answer_line,
    parse_line,
    refusal_line,
    request_id,
)
from streamfleet.producer.cache_order import in_cache_order
from streamfleet.producer.client import Client
from streamfleet.producer.sender import size
from streamfleet.producer.window import TICK_S, Window

log = Logger(__name__)
CHANGED = (
    "the line was changed since it was sent under this custom_id: "
    "change the custom_id too, or write to another output file"
)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of a batch.

    Attributes:
        id_prefix: prefix of the job's request ids.
        lane: priority of all its requests.
        deadline_ms: deadline, epoch ms; None for none.
        window: largest number of outstanding requests.
        if_late: REFUSE for lines that fail where they will likely be late; None for lines that wait.
        labels: further options of all its requests, such as ``tenant``.
    """

    id_prefix: str
    lane: Lane = Lane.LOW
    deadline_ms: int | None = None
    window: int = 1000
    if_late: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a batch.

    Attributes:
        total: lines of the input.
        succeeded, failed: lines answered in the output and in the error file, earlier runs included.
        earlier: number of lines that earlier runs answered.
        outstanding: number of requests in the queue or with workers.
        lane_full: the lane refuses requests at present.
        refused: number of lines read so far that are no requests.
        first_refusal: why the first of them is none; empty for none.
    """

    total: int
    succeeded: int
    failed: int
    earlier: int
    outstanding: int
    lane_full: bool
    refused: int = 0
    first_refusal: str = ""

    @property
    def done(self) -> int:
        return self.succeeded + self.failed

    @property
    def left(self) -> int:
        return max(0, self.total - self.done)


class Batch:
    """One run over an input file.

    Args:
        client: an open client, best one that waits for ever while Redis is away.
        source: input file.
        output, errors: files for answers and failures; lines that they already answer are not run again.
        options: options of the batch.
        report: called with every change.

    Raises:
        BatchFileError: an output file has lines that no batch wrote.
    """

    def __init__(
        self,
        client: Client,
        source: Path,
        output: AppendFile,
        errors: AppendFile,
        options: BatchOptions,
        report: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._source = source
        self._output, self._errors = output, errors
        self._options = options
        self._report = report
        self._total = count_lines(source)
        self._refused_before: set[int] = set()
        self._answered_before: set[str] = set()
        self._succeeded, self._failed = self._read_earlier(output), self._read_earlier(errors)
        self._earlier = self._succeeded + self._failed
        self._refused, self._first_refusal = 0, ""
        self._seen: dict[str, int] = {}
        self._outstanding: dict[str, tuple[int, str]] = {}
        self._lost: dict[int, str] = {}
        self._missing: dict[int, str] = {}
        self._again: Iterator[tuple[BatchLine, Submission]] = iter(())
        self._window: Window[BatchLine] | None = None

    @property
    def progress(self) -> Progress:
        """The current progress."""
        return Progress(
            total=self._total,
            succeeded=self._succeeded,
            failed=self._failed,
            earlier=self._earlier,
            outstanding=len(self._outstanding),
            lane_full=self._window is not None and self._window.lane_full,
            refused=self._refused,
            first_refusal=self._first_refusal,
        )

    async def run(self) -> Progress:
        """Run until every line is answered. It may be cancelled at any point: finished lines are in the files."""
        arrivals = self._client.arrivals()
        try:
            with open_input(self._source) as lines, open_input(self._source) as lines_again:
                requests = in_cache_order(
                    self._requests(lines_of(lines)),
                    self._options.window,
                    body=lambda request: request[0].body,
                    size=lambda request: size(request[1]),
                )
                window = self._window = Window(
                    self._client.submit,
                    arrivals,
                    self._options.window,
                    lambda: next(self._again, None) or next(requests, None),
                )
                while True:
                    await self._fill(window)
                    self._report(self.progress)
                    if not self._outstanding and not window.holds and not self._lost:
                        return self.progress
                    more_lost = self._take(await arrivals.take(TICK_S))
                    if self._lost and not more_lost:  # wait, so that one pass over the file finds all of them
                        log.warning("requests_lost", lines=len(self._lost), then="enqueued again, by the same ids")
                        self._missing |= self._lost
                        self._lost = {}
                        self._again = self._read_again(lines_again)  # `missing` holds the rest of the last pass
                    self._output.flush()
                    self._errors.flush()
        finally:
            arrivals.close()
            self._output.close()
            self._errors.close()

    # -- in ------------------------------------------------------------------------------------------------

    async def _fill(self, window: Window[BatchLine]) -> None:
        while chunk := window.chunk():
            for line, handle in await window.submit(chunk):
                if handle is not None:
                    self._outstanding[handle.id] = (line.number, line.custom_id)
                else:
                    self._refuse(BadLine(line.number, line.custom_id, CHANGED, "body", "conflict"))
            if window.lane_full:
                return  # not an error: the lane will have room later

    def _requests(self, lines: Iterable[bytes]) -> Iterator[tuple[BatchLine, Submission]]:
        for number, text in enumerate(lines, 1):
            if text.isspace():
                continue
            try:
                line = self._new(text, number)
                if line.custom_id not in self._answered_before:
                    yield line, self._prepare(line)
            except BadLine as error:
                self._refused += 1
                self._first_refusal = self._first_refusal or str(error)
                self._refuse(error)

    def _read_again(self, file: IO[bytes]) -> Iterator[tuple[BatchLine, Submission]]:
        """Read lines again whose requests Redis lost, because memory does not hold them."""
        missing = self._missing
        file.seek(0)
        for number, text in enumerate(lines_of(file), 1):
            if number in missing and (request := self._as_before(text, number, missing.pop(number))):
                yield request
            if not missing:
                return
        while missing:
            number, custom_id = missing.popitem()
            self._refuse(BadLine(number, custom_id, CHANGED, None, "conflict"))

    def _as_before(self, text: bytes, number: int, custom_id: str) -> tuple[BatchLine, Submission] | None:
        try:
            line = parse_line(text, number)
            if line.custom_id == custom_id:
                return line, self._prepare(line)
        except BadLine:
            pass  # it was valid at the first reading
        self._refuse(BadLine(number, custom_id, CHANGED, None, "conflict"))
        return None

    def _new(self, text: bytes, number: int) -> BatchLine:
        try:
            line = parse_line(text, number)
        except BadLine as error:
            if error.custom_id is not None:
                self._first_of(error.custom_id, number)
            raise
        self._first_of(line.custom_id, number)
        return line

    def _first_of(self, custom_id: str, number: int) -> None:
        first = self._seen.setdefault(custom_id, number)
        if first != number:
            # The error line has no custom_id, because that field may later name the first line's own answer.
            message = f"{custom_id!r} is the custom_id of line {first} already: this line was not run"
            raise BadLine(number, None, message, "custom_id", "duplicate_custom_id")

    def _prepare(self, line: BatchLine) -> Submission:
        options = self._options
        asked = {
            "body": line.body,
            "id": request_id(options.id_prefix, line.custom_id),
            "lane": options.lane,
            "deadline": options.deadline_ms,
            "endpoint": line.url,
            "if_late": options.if_late,
            **options.labels,
        }
        try:
            return self._client.prepare(as_ask(asked))
        except InvalidRequest as error:
            raise BadLine(line.number, line.custom_id, error.message, error.param, error.code) from None

    # -- out -----------------------------------------------------------------------------------------------

    def _take(self, came: Iterable[Result | RequestLost]) -> bool:
        """Write results to the files. True if requests were lost."""
        lost_before = len(self._lost)
        for each in came:
            number, custom_id = self._outstanding.pop(each.id)
            if isinstance(each, RequestLost):
                self._lost[number] = custom_id
            else:
                self._write(custom_id, each)
        return len(self._lost) > lost_before

    def _write(self, custom_id: str, result: Result) -> None:
        line = answer_line(custom_id, result)
        if result.ok:
            self._output.add(line)
            self._succeeded += 1
        else:
            self._errors.add(line)
            self._failed += 1

    def _refuse(self, error: BadLine) -> None:
        if error.custom_id in self._answered_before or error.number in self._refused_before:
            return
        self._errors.add(refusal_line(error))
        self._failed += 1

    def _read_earlier(self, file: AppendFile) -> int:
        lines = 0
        for about in file.written():
            lines += 1
            if about.custom_id is not None:
                self._answered_before.add(about.custom_id)
            elif about.number is not None:
                self._refused_before.add(about.number)
        return lines
