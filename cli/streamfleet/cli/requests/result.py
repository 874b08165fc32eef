"""`streamfleet result` and `streamfleet cancel`: one request, by its id."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.cli.requests.show import show_result, show_stream
from streamfleet.operator.commands.common import AsJson, QueueName, RedisUrl, fail, out, queue_settings, run

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.producer.status import StatusView

NEVER_SEEN = 3
"""Exit status of `cancel` for an id that the queue has never seen."""
RequestId = Annotated[str, typer.Argument(metavar="ID", help="Request id, or `<lane>:<stream id>` of one without.")]


def result(
    request_id: RequestId,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for it.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", "-s", help="Print it while it comes; it was enqueued with --stream.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="With --wait, --stream: for so many seconds at most.")
    ] = None,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Print a request's result: its text, or with --json everything. With --stream: while it comes.

    The exit status is 0 when the request succeeded, 1 when it ended otherwise or has not ended.

    ```text
    streamfleet result r-42
    streamfleet result r-42 --wait --timeout 60
    streamfleet result r-42 --json
    streamfleet result r-42 --stream
    ```
    """
    settings = queue_settings(redis_url, queue)
    if stream:
        run(_stream(settings, request_id, timeout, as_json))
    else:
        run(_result(settings, request_id, wait, timeout, as_json))


async def _result(settings: QueueSettings, request_id: str, wait: bool, timeout: float | None, as_json: bool) -> None:
    from streamfleet.common.errors import ResultTimeout
    from streamfleet.producer.client import Client

    async with Client(settings=settings) as fleet:
        try:
            found = await fleet.result(request_id, timeout if wait else 0)
        except ResultTimeout:
            fail(_not_yet(await fleet.status(request_id)))
        show_result(found, as_json)


async def _stream(settings: QueueSettings, request_id: str, timeout: float | None, as_json: bool) -> None:
    from streamfleet.producer.client import Client

    async with Client(settings=settings) as fleet:
        await show_stream(fleet.handle(request_id), timeout, as_json)


def cancel(
    request_id: RequestId,
    before_it_comes: Annotated[
        bool,
        typer.Option("--before-it-comes", help="If the queue has never seen it: cancel it when it comes, for an hour."),
    ] = False,
    within: Annotated[
        str | None,
        typer.Option("--within", metavar="SPAN", help="With --before-it-comes, in place of an hour: 10m, 1d."),
    ] = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Cancel a request, queued or running.

    A running one is ended in the engine within a second. The exit status is 0 when it is cancelled, 1 when it had ended
    before, and 3 when the queue has never seen its id (or its result has expired): then nothing is blocked, and a later
    request with this id runs, unless --before-it-comes is given. A producer's user asks a worker: there, 3 takes 5 s.

    ```text
    streamfleet cancel r-42
    streamfleet cancel r-42; [ $? = 3 ] && echo "r-42 is not known"
    streamfleet cancel r-43 --before-it-comes --within 10m
    ```
    """
    from streamfleet.common.durations import parse_span

    if within is not None and not before_it_comes:
        raise typer.BadParameter("--within goes with --before-it-comes")
    within_ms = parse_span(within or "1h", "--within") if before_it_comes else None
    run(_cancel(queue_settings(redis_url, queue), request_id, within_ms))


async def _cancel(settings: QueueSettings, request_id: str, within_ms: int | None) -> None:
    from streamfleet.common.errors import UnknownRequest
    from streamfleet.producer.client import Client

    async with Client(settings=settings) as fleet:
        try:
            cancelled = await fleet.cancel(request_id)
        except UnknownRequest as error:
            if within_ms is None:
                fail(f"{error}; --before-it-comes cancels it when it comes", NEVER_SEEN)
            await fleet.cancel(request_id, timedelta(milliseconds=within_ms))
            out(f"the queue has never seen request {request_id}: cancelled if it comes within {within_ms / 1000:g} s")
            return
        if not cancelled:
            status = await fleet.status(request_id)
            fail(f"request {request_id} had ended before: {status.state}")
    out(f"request {request_id} cancelled")


def _not_yet(status: StatusView) -> str:
    if status.state == "unknown":
        return (
            f"request {status.id} has no result. No client enqueued it, or it is long gone; "
            "if it was put in by XADD, it is waiting or running"
        )
    lane = f" in lane {status.lane}" if status.lane else ""
    worker = f" on {status.worker}, attempt {status.attempt}" if status.worker else ""
    return f"request {status.id} has no result yet: {status.state}{lane}{worker}"
