"""Requests of a batch that are in queues, and their results as they arrive.

`submit` enqueues lines through the clients of their queues; `take` returns answers, in the order of their end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from streamfleet.common.errors import RequestLost
from streamfleet.common.records import EnqueueCode, Submission
from streamfleet.common.results import Result
from streamfleet.gateway.queues import Queues
from streamfleet.producer.batchfile import BatchLine
from streamfleet.producer.handle import Arrivals, Handle


class PreparedLine(NamedTuple):
    """A line, prepared to be enqueued."""

    line: BatchLine
    queue: str
    submission: Submission


class Refused(NamedTuple):
    """Lines that were not enqueued: their lane was full, or another request has their id."""

    full: list[PreparedLine]
    conflicts: list[PreparedLine]


class Answer(NamedTuple):
    """A line, and the result of its request."""

    number: int
    custom_id: str
    result: Result


class Collector:
    """Requests that have no result yet. Close it.

    Args:
        queues: clients of all queues.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._lines: dict[str, tuple[int, str]] = {}
        self._arrivals: dict[str, Arrivals] = {}
        self._tasks: dict[asyncio.Task[list[Result | RequestLost]], str] = {}

    def __len__(self) -> int:
        """Number of requests without a result."""
        return len(self._lines)

    async def submit(self, chunk: Sequence[PreparedLine]) -> Refused:
        """Enqueue lines of one queue. Raises as `Client.submit`."""
        queue = chunk[0].queue
        client = await self._queues.client(queue)
        outcomes = await client.submit([ready.submission for ready in chunk])
        refused = Refused([], [])
        handles: list[Handle] = []
        for ready, (handle, code) in zip(chunk, outcomes, strict=True):
            if handle is not None:
                self._lines[handle.id] = (ready.line.number, ready.line.custom_id)
                handles.append(handle)
            else:
                (refused.full if code is EnqueueCode.FULL else refused.conflicts).append(ready)
        if handles:
            if queue not in self._arrivals:
                self._arrivals[queue] = client.arrivals()
            self._arrivals[queue].add(handles)
            self._start_taking(queue)
        return refused

    async def take(self, timeout_s: float) -> list[Answer]:
        """Returns answers that have arrived; an empty list after `timeout_s` without one.

        Raises:
            RequestLost: Redis lost a request. Enqueue all unfinished lines again, by the same ids.
        """
        if not self._tasks:
            await asyncio.sleep(timeout_s)
            return []
        done, _ = await asyncio.wait(self._tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        answers: list[Answer] = []
        for task in done:
            queue = self._tasks.pop(task)
            for result in task.result():
                if isinstance(result, RequestLost):
                    raise result
                number, custom_id = self._lines.pop(result.id)
                answers.append(Answer(number, custom_id, result))
            if len(self._arrivals[queue]):
                self._start_taking(queue)
        return answers

    def close(self) -> None:
        """Stop waiting for results; the requests go on."""
        for task in self._tasks:
            task.cancel()
        for arrivals in self._arrivals.values():
            arrivals.close()
        self._tasks.clear()
        self._lines.clear()

    def _start_taking(self, queue: str) -> None:
        if queue not in self._tasks.values():
            task = asyncio.get_running_loop().create_task(self._arrivals[queue].take())
            self._tasks[task] = queue
