"""A real worker process, fed from Redis through the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench.core.processes import workers
from bench.core.redis import own_server
from bench.engine.batch import Batch, OtherWork, Row, between_ms, timed
from bench.engine.work import Body
from streamfleet.common.results import Result
from streamfleet.producer import Client

ANSWER_S = 600.0


class Fed:
    """A queue with one ready worker, the process `pid`."""

    def __init__(self, url: str, pid: int) -> None:
        self._url, self.pid = url, pid

    async def run(self, asked: Sequence[Body], *, streamed: bool = False) -> Batch:
        """Enqueue all at once, and wait for all results. Streams are read afterwards, so that no reader takes CPU.

        Raises:
            OtherWork: the text of a stream is not that of its result.
        """
        results: list[Result] = []
        async with Client(self._url) as client:

            async def all_at_once() -> list[Row]:
                results.extend(await drained(client, asked, streamed=streamed))
                return [row_of(result) for result in results]

            batch = await timed(self.pid, all_at_once)
            for result in results if streamed else ():
                if "".join([chunk.text async for chunk in client.stream(result.id)]) != result.text:
                    raise OtherWork(f"the stream of {result.id} is not its result's text")
        return batch


@contextmanager
def fed(environment: Mapping[str, str], module: str = "streamfleet.worker") -> Iterator[Fed]:
    """Start a worker with these settings, on a Redis of its own."""
    with own_server() as server, workers(server.url, module=module, environment=environment) as processes:
        yield Fed(server.url, processes[0].pid)


async def drained(client: Client, asked: Sequence[Body], *, streamed: bool = False) -> list[Result]:
    """Every result, in the order of arrival.

    Raises:
        RequestFailed: a request did not succeed.
    """
    handles = await client.enqueue_many([{"body": body, "stream": streamed} for body in asked])
    return [result.raise_for_status() async for result in client.as_completed(handles, timeout=ANSWER_S)]


def row_of(result: Result) -> Row:
    """Timings of a result, from enqueueing on."""
    times, usage = result.timings, result.usage or {}
    before_ms, total_ms = (times.queued_ms or 0.0) + (times.waited_ms or 0.0), times.total_ms or 0.0
    read, written = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
    if times.first_token_ms is None:
        return Row(read, written, None, None, total_ms)
    first_ms = before_ms + times.first_token_ms
    return Row(read, written, first_ms, between_ms(total_ms, first_ms, written), total_ms)
