"""The `streamfleet` command: combines its subcommands, and prints expected errors as one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from streamfleet.cli.demo_command import demo, demo_gateway
from streamfleet.cli.exporter_command import exporter
from streamfleet.cli.gateway_command import gateway
from streamfleet.cli.plan_command import plan
from streamfleet.cli.worker_command import worker
from streamfleet.common.errors import InvalidRequest, SettingsError, StreamfleetError
from streamfleet.producer.commands import OPERATIONS, add_commands
from streamfleet.producer.commands.common import FAILED, INTERRUPTED, USAGE, out, say

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


PROCESSES = "Processes"
add_commands(app)
app.add_typer(plan, rich_help_panel=OPERATIONS)
app.command(rich_help_panel=PROCESSES)(worker)
app.command(rich_help_panel=PROCESSES)(exporter)
app.add_typer(gateway, rich_help_panel=PROCESSES)
app.command(rich_help_panel=PROCESSES)(demo)
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
