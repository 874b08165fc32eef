"""Shared code of the commands: options that name a queue, running asynchronous code, output and exit statuses."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.broker import OperatorBroker

T = TypeVar("T")
FAILED, USAGE, INTERRUPTED = 1, 2, 130
GIVEN: dict[str, str] = {}
"""The options on this process's command line, by field: ``redis_url``: ``--redis-url``."""
_VARIABLE = re.compile(r"\b(?:STREAMFLEET_(?:(?:WORKER|GATEWAY|EXPORTER)_)?([A-Z_]+)|(REDIS_URL|BATCH_SIZE))\b")

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        metavar="URL",
        help="Redis to use. Default: REDIS_URL, then redis://localhost:6379/0. Everybody on this machine can read a "
        "command line: put a URL with a password into REDIS_URL, or into a file that REDIS_URL_FILE names.",
    ),
]
QueueName = Annotated[
    str | None,
    typer.Option("--queue", "-q", metavar="NAME", help="The queue. Default: STREAMFLEET_QUEUE, then 'default'."),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on, as a live view; Ctrl-C ends it.")]
Interval = Annotated[
    float,
    typer.Option("--interval", "-n", min=0.1, max=3600, help="With --watch: seconds between looks."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def queue_settings(redis_url: str | None, queue: str | None) -> QueueSettings:
    """The queue's settings from the environment; given options take precedence.

    Raises:
        SettingsError: one line for each wrong setting.
    """
    from streamfleet.common.settings import QueueSettings, load

    return load(QueueSettings, redis_url=redis_url, queue=queue)


@asynccontextmanager
async def connected(settings: QueueSettings) -> AsyncIterator[OperatorBroker]:
    """A connected broker of the queue.

    Raises:
        BrokerUnavailable: no server answers at the address.
        UnknownProtocol: this version does not know the queue's protocol.
    """
    from streamfleet.operator.broker import OperatorBroker

    broker = OperatorBroker.open(settings)
    try:
        await broker.connection.ping()
        await broker.refresh_configuration()
        yield broker
    finally:
        await broker.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's asynchronous part, logging to stderr.

    Raises:
        typer.Exit: Ctrl-C (status 130) or SIGTERM (143) came, and everything was closed; a second one ends at once.
    """
    from streamfleet.common import logs
    from streamfleet.common.settings import LogSettings, load

    try:
        logs.configure(load(LogSettings))
    except BaseException:
        work.close()
        raise
    came: list[int] = []
    try:
        return asyncio.run(_until_signalled(work, came))
    except asyncio.CancelledError:
        if not came:
            raise
        raise typer.Exit(128 + came[0]) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _until_signalled(work: Coroutine[Any, Any, T], came: list[int]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def stop(signum: int) -> None:
        came.append(signum)
        loop.remove_signal_handler(signum)
        task.cancel()

    # Own handlers, because Python installs none for SIGINT if a script runs the command in the background.
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop, signum)
    return await task


def as_given(text: str) -> str:
    """A message that names the options which were given, in place of the variables that they take precedence of."""
    return _VARIABLE.sub(lambda found: GIVEN.get((found[1] or found[2]).lower(), found[0]), text)


def say(text: str) -> None:
    """Print a message to stderr; stdout is for the command's output."""
    print(as_given(text), file=sys.stderr, flush=True)  # noqa: T201 - this is what a command line does


def out(text: str) -> None:
    """Print a line of the command's output."""
    print(text, flush=True)  # noqa: T201 - this is what a command line does


def out_record(value: Any) -> None:
    """Print a value as JSON on a line of its own, for readers of any kind."""
    from streamfleet.common.jsontext import json_line

    out(json_line(value))


async def show_looks(
    looks: AsyncIterator[T],
    render: Callable[[T], RenderableType],
    to_json: Callable[[T], object] | None,
    *,
    watched: bool,
) -> None:
    """Print what each look finds: with `to_json` as a line of JSON; on a watched terminal in place of the last one."""
    if to_json is not None:
        async for found in looks:
            out(json.dumps(to_json(found)))
        return
    from rich.live import Live

    from streamfleet.operator.commands.fitted_table import screen

    console = screen()
    if not watched or not console.is_terminal:
        async for found in looks:
            console.print(render(found))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        async for found in looks:
            live.update(render(found), refresh=True)


def fail(text: str, status: int = FAILED) -> NoReturn:
    """End with one line on stderr."""
    say(text)
    raise typer.Exit(status)
