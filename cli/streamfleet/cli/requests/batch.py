"""`streamfleet batch`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.cli.requests.enqueue import IfLate, with_labels
from streamfleet.common.envelope import check_label
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


@with_labels
def batch(  # noqa: PLR0913 - each parameter is an option
    source: Annotated[
        Path,
        typer.Argument(metavar="IN.jsonl", dir_okay=False, readable=True, help="Requests; - is stdin. IN.gz is gzip."),
    ],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT.jsonl", dir_okay=False, help="Answers; - is stdout. OUT.gz is gzip."),
    ],
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors",
            metavar="FILE",
            dir_okay=False,
            help="Failures. Default: answers.errors.jsonl for answers.jsonl; stderr where OUT is -.",
        ),
    ] = None,
    lane: Annotated[Lane, typer.Option("--lane", "-l", help="Priority.")] = Lane.LOW,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", help="Time after which answers are worthless: a time, a span from now, or epoch ms."
        ),
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
    *,
    labels: Mapping[str, str],
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Run a file of requests in the OpenAI Batch format: a JSON line for each, with custom_id, method, url, body.

    Ctrl-C stops it; the same command goes on where it stopped, and so it does after a crash. Each custom_id is answered
    once: in OUT when it succeeded, else in the error file. Within the window, lines whose prompts begin alike run
    together, for the engines' prefix caches. To have failures tried again, remove them from the error
    file and run the same command.

    Where OUT is -, none of this is promised: the same command begins anew, as nobody knows what was read of its output,
    and no lock keeps a second run away. With --id-prefix it finds the answers that Redis still has. Where IN is -, or a
    pipe, it is copied to a temporary file first, to its end; to go on, give the same lines again.

    Exit status: 0 every line succeeded, 1 some failed, 2 wrong usage, 130 interrupted.

    ```text
    streamfleet batch prompts.jsonl out.jsonl
    streamfleet batch prompts.jsonl out.jsonl --lane normal --deadline 2h --window 5000
    streamfleet batch prompts.jsonl out.jsonl --deadline 10m --if-late refuse
    streamfleet batch prompts.jsonl.gz out.jsonl.gz --tenant reports
    jq -c … prompts.json | streamfleet batch - - | jq -r .response.body.choices[0].message.content
    ```
    """
    from streamfleet.producer.batch import BatchOptions

    settings = queue_settings(redis_url, queue)
    deadline_ms = _deadline_ms(deadline)
    if if_late is IfLate.DOWNGRADE:
        raise typer.BadParameter(
            "--if-late downgrade is of `streamfleet enqueue`: the lines of a file stay in one lane"
        )
    if if_late is not None and deadline_ms is None:
        raise typer.BadParameter("--if-late needs --deadline: nothing else can be late")
    for name, label in labels.items():
        check_label(label, name)
    prefix = None if id_prefix is None else check_name(id_prefix, "id_prefix")
    options = BatchOptions(prefix or "", lane, deadline_ms, window, if_late, labels)
    with TemporaryDirectory(prefix="streamfleet-batch-") as folder:
        progress = _run_files(settings, source, output, errors, options, Path(folder))
    if progress.failed:
        raise typer.Exit(FAILED)


def _run_files(
    settings: QueueSettings, source: Path, output: Path, errors: Path | None, options: BatchOptions, folder: Path
) -> Progress:
    """Run the batch; `folder` is for what it needs only meanwhile. Prints how it ended."""
    from rich.console import Console

    from streamfleet.cli.requests.batch_view import BatchView
    from streamfleet.producer.batch_files import STANDARD, Job, has_lines, readable_twice

    answers, failures = _outputs(source, output, errors)
    if source != STANDARD and not source.exists():
        raise typer.BadParameter(f"there is no file {source}")
    requests, name = readable_twice(source, folder), "stdin" if source == STANDARD else source
    if not has_lines(requests):
        raise typer.BadParameter(f"{name} has no requests: one JSON object on each line is expected")
    kept = output != STANDARD
    console = Console(stderr=True, force_terminal=None if kept else False)  # no bar between answers
    with Job(output if kept else folder / "stdout") as job, BatchView(console) as view:
        if job.unlocked:
            say(f"{output.parent} has no locks ({job.unlocked}): see that no other run writes the same output")
        asked = options if options.id_prefix else replace(options, id_prefix=job.name)
        try:
            progress = run(_batch(settings, requests, answers, failures, asked, view.show))
        except typer.Exit:
            view.close()
            _say_interrupted(view.latest, kept=kept or asked is options)
            raise
        job.finish()
    _say_done(progress, answers.path, failures.path)
    if progress.refused == progress.total:
        say(f"no line of {name} is a request; the first: {progress.first_refusal}")
    return progress


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


def _outputs(source: Path, output: Path, errors: Path | None) -> tuple[AppendFile, AppendFile]:
    """The files for answers and for failures."""
    from streamfleet.producer.batch_files import STANDARD, AppendFile, append_file, default_error_file

    error_file = errors or default_error_file(output)
    files = [path.resolve() for path in (source, output, error_file) if path != STANDARD]
    if len(set(files)) < len(files):
        raise typer.BadParameter("the input, the output and the error file must be three different files")
    for path in (output, error_file):
        if not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} in")
    to_stderr = errors is None and output == STANDARD
    return append_file(output), AppendFile(Path("stderr"), sys.stderr.buffer) if to_stderr else append_file(error_file)


def _deadline_ms(text: str | None) -> int | None:
    if text is None:
        return None
    from streamfleet.common.clock import SystemClock
    from streamfleet.common.durations import parse_deadline

    return parse_deadline(text, SystemClock().now_ms())


def _say_interrupted(progress: Progress | None, *, kept: bool) -> None:
    answered = "" if progress is None else f" {progress.done} of {progress.total} lines are answered,"
    going = "" if progress is None else f" {progress.outstanding} requests go on without you."
    again = "Run the same command again to go on." if kept else "The same command begins anew."
    say(f"interrupted:{answered}{going} {again}")


def _say_done(progress: Progress, output: Path, errors: Path) -> None:
    earlier = f" ({progress.earlier} of them by earlier runs)" if progress.earlier else ""
    say(f"{progress.done} lines answered{earlier}: {progress.succeeded} in {output}")
    if progress.failed:
        say(f"{progress.failed} failed: see {errors}")
