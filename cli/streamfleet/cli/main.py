"""The `streamfleet` command: combines its subcommands, and prints expected errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from streamfleet.cli.demo_command import demo, demo_gateway
from streamfleet.cli.gateway_command import gateway
from streamfleet.cli.requests.batch import batch
from streamfleet.cli.requests.enqueue import enqueue
from streamfleet.cli.requests.result import cancel, result
from streamfleet.cli.worker_command import worker
from streamfleet.common.errors import InvalidRequest, SettingsError, StreamfleetError
from streamfleet.operator.commands.acl import acl
from streamfleet.operator.commands.audit import audit
from streamfleet.operator.commands.backlog import backlog
from streamfleet.operator.commands.common import FAILED, INTERRUPTED, USAGE, out, say
from streamfleet.operator.commands.dead import dead
from streamfleet.operator.commands.doctor import doctor
from streamfleet.operator.commands.drain import drain
from streamfleet.operator.commands.exporter import exporter
from streamfleet.operator.commands.pause import pause, resume
from streamfleet.operator.commands.plan import plan
from streamfleet.operator.commands.queue import queue
from streamfleet.operator.commands.tenants import tenants
from streamfleet.operator.commands.trace import trace
from streamfleet.operator.commands.workers import workers

app = typer.Typer(
    name="streamfleet",
    help="LLM inference on a fleet of workers, through Redis Streams.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out(f"streamfleet {version('streamfleet')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


REQUESTS, OPERATIONS, PROCESSES = "Requests", "Operations", "Processes"
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    REQUESTS: (enqueue, result, cancel, batch),
    OPERATIONS: (backlog, workers, trace, pause, resume, drain, doctor, audit, acl),
    PROCESSES: (worker, exporter, demo),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(dead, rich_help_panel=OPERATIONS)
app.add_typer(queue, rich_help_panel=OPERATIONS)
app.add_typer(tenants, rich_help_panel=OPERATIONS)
app.add_typer(plan, rich_help_panel=OPERATIONS)
app.add_typer(gateway, rich_help_panel=PROCESSES)
app.command("demo-gateway", rich_help_panel=PROCESSES)(demo_gateway)


def main() -> NoReturn:
    """Run the command line and exit: 0 well, 1 failed, 2 wrong usage or settings, 130 interrupted."""
    try:
        app()
    except (SettingsError, InvalidRequest) as error:
        _end(str(error), USAGE)
    except StreamfleetError as error:
        _end(str(error), FAILED)
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe; redirect stdout, because Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except OSError as error:
        _end(str(error), FAILED)
    sys.exit(0)


def _end(text: str, status: int) -> NoReturn:
    for line in text.splitlines():
        say(f"streamfleet: {line}")
    sys.exit(status)


if __name__ == "__main__":
    main()
