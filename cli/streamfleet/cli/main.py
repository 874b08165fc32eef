"""The `streamfleet` command: combines its subcommands, and prints expected errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from streamfleet.cli.gateway_command import gateway
from streamfleet.cli.requests.batch import batch
from streamfleet.cli.requests.bench import bench
from streamfleet.cli.requests.enqueue import enqueue
from streamfleet.cli.requests.result import cancel, result
from streamfleet.common.errors import InvalidRequest, SettingsError, StreamfleetError
from streamfleet.operator.commands.acl import acl
from streamfleet.operator.commands.audit import audit
from streamfleet.operator.commands.backlog import backlog
from streamfleet.operator.commands.common import FAILED, GIVEN, INTERRUPTED, USAGE, QueueName, RedisUrl, out, say
from streamfleet.operator.commands.dead import dead
from streamfleet.operator.commands.doctor import doctor
from streamfleet.operator.commands.exporter import exporter
from streamfleet.operator.commands.pause import pause, resume
from streamfleet.operator.commands.plan import plan
from streamfleet.operator.commands.queue import queue
from streamfleet.operator.commands.tenants import tenants
from streamfleet.operator.commands.trace import trace
from streamfleet.operator.commands.workers import drain, workers

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


def worker(
    engine: Annotated[
        str | None, typer.Option("--engine", help="vllm, openai or simulated. Default: STREAMFLEET_ENGINE.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model name or folder, as vLLM takes it. Default: STREAMFLEET_MODEL."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Default: STREAMFLEET_WORKER_NAME, then host, process id, a random part."),
    ] = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models", help="Several queues: MODEL=QUEUE,… Default: STREAMFLEET_WORKER_MODELS, or one queue."
        ),
    ] = None,
    engine_args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ENGINE ARGS]...",
            help="vLLM's own arguments, as vLLM names them. Default: STREAMFLEET_ENGINE_ARGS.",
        ),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C, which drain it.

    Everything else is set by environment variables: docs/configuration.md has them all.

    ```text
    streamfleet worker --model Qwen/Qwen2.5-7B-Instruct
    streamfleet worker -m ./model -- --max-num-seqs 64 --enable-prefix-caching
    streamfleet worker -m ./model --models ./model=chat,sql=sql -- --enable-lora --lora-modules sql=./sql-lora
    VLLM_URL=http://localhost:8000 streamfleet worker
    ```
    """
    from streamfleet.common.settings import load_all

    settings = load_all(
        redis_url=redis_url,
        queue=queue,
        engine=engine,
        model=model,
        engine_args=tuple(engine_args) if engine_args else None,
        worker_name=name,
        worker_models=models,
    )
    from streamfleet.worker.main import run_worker

    raise typer.Exit(run_worker(*settings))


def demo(
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Make the model's folder, print its path, and start nothing.")
    ] = False,
) -> None:
    """See it work: a Redis server, a worker with a small real model, requests in all four lanes.

    Starts everything itself, on free ports, and stops it again. Needs the extras: `make demo` installs them.

    ```text
    streamfleet demo
    streamfleet worker --model "$(streamfleet demo --model-only)"
    ```
    """
    try:
        if model_only:
            from streamfleet.cli.demo.model import model_folder

            out(str(model_folder(say)))
            return
        from streamfleet.cli.demo.run import demo as run_demo
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    raise typer.Exit(run_demo())


def _missing(error: ModuleNotFoundError) -> Exception:
    """Error for a package that is not installed; a missing module of streamfleet itself is raised as it is."""
    missing = error.name or ""
    if missing.startswith("streamfleet"):
        return error
    return SettingsError(
        f"the demo needs {missing}, which is not installed: run `make demo`, or pip install '.[demo,cpu]' in a clone"
    )


REQUESTS, OPERATIONS, PROCESSES = "Requests", "Operations", "Processes"
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    REQUESTS: (enqueue, result, cancel, batch),
    OPERATIONS: (backlog, workers, trace, pause, resume, drain, bench, doctor, audit, acl),
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


def main() -> NoReturn:
    """Run the command line and exit: 0 well, 1 failed, 2 wrong usage or settings, 130 interrupted."""
    GIVEN.clear()
    try:
        _noting(get_command(app))()
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


def _noting(command: Any) -> Any:
    """Let a command, and all under it, note which options are on the command line, for errors to name."""
    invoke = command.invoke

    def noting(context: typer.Context) -> Any:
        for param in command.params:
            source = context.get_parameter_source(param.name)
            if source is not None and source.name == "COMMANDLINE":
                option = max(param.opts, key=len)
                shown = option if option.startswith("-") else (param.metavar or option.upper()).strip("[].")
                GIVEN[option.lstrip("-").replace("-", "_")] = shown
        return invoke(context)

    command.invoke = noting
    for each in getattr(command, "commands", {}).values():
        _noting(each)
    return command


def _end(text: str, status: int) -> NoReturn:
    for line in text.splitlines():
        field, colon, message = line.partition(": ")
        option = GIVEN.get(field.removesuffix("_ms"), "")
        # Wrong usage begins with the field: "ttl: must be …" of --ttl.
        named = f"{option}{colon}{message}" if status == USAGE and option.startswith("--") else line
        say(f"streamfleet: {named}")
    sys.exit(status)


if __name__ == "__main__":
    main()
