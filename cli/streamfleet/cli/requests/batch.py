"""`streamfleet batch`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.cli.requests.enqueue import IfLate
from streamfleet.common.protocol import Lane, check_name
from streamfleet.operator.commands.common import (
    FAILED,
    QueueName,
    RedisUrl,
    queue_settings,
    run,
    say,
)

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.producer.batch import BatchOptions, Progress
    from streamfleet.producer.batch_files import AppendFile


def batch(  # noqa: PLR0913, PLR0917 - each parameter is an option
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", exists=True, dir_okay=False, readable=True, help="Requests.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT.jsonl", dir_okay=False, help="Answers.")],
    errors: Annotated[
        Path | None,
        typer.Option("--errors", metavar="FILE", dir_okay=False, help="Failures. Default: OUT.errors.jsonl."),
    ] = None,
    lane: Annotated[Lane, typer.Option("--lane", "-l", help="Priority.")] = Lane.LOW,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="When answers are worthless: a time, a span from now, or epoch ms."),
    ] = None,
    if_late: Annotated[
        IfLate | None,
        typer.Option(
            "--if-late",
            help="refuse: a line that will likely be late, as a worker finds it, fails with code likely_late. Needs "
            "--deadline. Default: it waits.",
        ),
    ] = None,
    id_prefix: Annotated[
        str | None, typer.Option("--id-prefix", help="What request ids begin with. Default: made up for each batch.")
    ] = None,
    window: Annotated[
        int, typer.Option("--window", min=1, max=100_000, help="How many requests are outstanding at most.")
    ] = 1000,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Run a file of requests in the OpenAI Batch format: a JSON line for each, with custom_id, method, url, body.

    Ctrl-C stops it; the same command goes on where it stopped, and so it does after a crash. Each custom_id is answered
    once: in OUT when it succeeded, else in the error file. Within the window, lines whose prompts begin alike run
    together, for the engines' prefix caches. To have failures tried again, remove them from the error
    file and run the same command.

    Exit status: 0 every line succeeded, 1 some failed, 2 wrong usage, 130 interrupted.

    ```text
    streamfleet batch prompts.jsonl out.jsonl
    streamfleet batch prompts.jsonl out.jsonl --lane normal --deadline 2h --window 5000
    streamfleet batch prompts.jsonl out.jsonl --deadline 10m --if-late refuse
    ```
    """
    from streamfleet.cli.requests.batch_view import BatchView
    from streamfleet.producer.batch import BatchOptions
    from streamfleet.producer.batch_files import AppendFile, Job, default_error_file

    settings = queue_settings(redis_url, queue)
    error_file = errors or default_error_file(output)
    _check_files(source, output, error_file)
    deadline_ms = _deadline_ms(deadline)
    if if_late is IfLate.DOWNGRADE:
        raise typer.BadParameter(
            "--if-late downgrade is of `streamfleet enqueue`: the lines of a file stay in one lane"
        )
    if if_late is not None and deadline_ms is None:
        raise typer.BadParameter("--if-late needs --deadline: nothing else can be late")
    with Job(output) as job, BatchView() as view:
        if job.unlocked:
            say(f"{output.parent} has no locks ({job.unlocked}): see that no other run writes the same output")
        prefix = job.name if id_prefix is None else check_name(id_prefix, "id_prefix")
        options = BatchOptions(prefix, lane, deadline_ms, window, if_late)
        try:
            progress = run(_batch(settings, source, AppendFile(output), AppendFile(error_file), options, view.show))
        except typer.Exit:
            view.close()
            _say_interrupted(view.latest)
            raise
        job.finish()
    _say_done(progress, output, error_file)
    if progress.refused == progress.total:
        say(f"no line of {source} is a request; the first: {progress.first_refusal}")
    if progress.failed:
        raise typer.Exit(FAILED)


async def _batch(
    settings: QueueSettings,
    source: Path,
    output: AppendFile,
    errors: AppendFile,
    options: BatchOptions,
    show: Callable[[Progress], None],
) -> Progress:
    from streamfleet.producer.batch import Batch
    from streamfleet.producer.client import Client

    # Redis may be unreachable for minutes during a batch of hours, so the client waits for ever.
    async with Client(settings=settings, patience_s=None) as fleet:
        return await Batch(fleet, source, output, errors, options, show).run()


def _check_files(source: Path, output: Path, errors: Path) -> None:
    from streamfleet.producer.batch_files import has_lines

    if len({path.resolve() for path in (source, output, errors)}) < 3:
        raise typer.BadParameter("the input, the output and the error file must be three different files")
    if not has_lines(source):
        raise typer.BadParameter(f"{source} has no requests: one JSON object on each line is expected")
    for path in (output, errors):
        if not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} in")


def _deadline_ms(text: str | None) -> int | None:
    if text is None:
        return None
    from streamfleet.common.clock import SystemClock
    from streamfleet.common.durations import parse_deadline

    return parse_deadline(text, SystemClock().now_ms())


def _say_interrupted(progress: Progress | None) -> None:
    answered = "" if progress is None else f" {progress.done} of {progress.total} lines are answered,"
    going = "" if progress is None else f" {progress.outstanding} requests go on without you."
    say(f"interrupted:{answered}{going} Run the same command again to go on.")


def _say_done(progress: Progress, output: Path, errors: Path) -> None:
    earlier = f" ({progress.earlier} of them by earlier runs)" if progress.earlier else ""
    say(f"{progress.done} lines answered{earlier}: {progress.succeeded} in {output}")
    if progress.failed:
        say(f"{progress.failed} failed: see {errors}")
