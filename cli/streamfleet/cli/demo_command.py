"""`streamfleet demo` and `streamfleet demo-gateway`."""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated

import typer

from streamfleet.cli.gateway_command import EXTRA
from streamfleet.common.errors import SettingsError

ENGINES = ("vllm", "simulated")
INSTALL_GATEWAY = ("make demo-gateway", "demo,gateway,cpu")


def demo() -> None:
    """See it work: a Redis server, a worker with a small real model, requests in all four lanes.

    Starts everything itself, on free ports, and stops it again. Needs the extras: `make demo` installs them.

    ```text
    streamfleet demo
    ```
    """
    try:
        from streamfleet.cli.demo.run import demo as run_demo
    except ModuleNotFoundError as error:
        raise _missing(error, "make demo", "demo,cpu") from None
    raise typer.Exit(run_demo())


def demo_gateway(
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Stay at the end, with the page and everything behind it, until Ctrl-C. Default: on a terminal.",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open a browser on the page, on a desktop.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where the gateway listens; 0 picks a free one.")
    ] = 0,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="ENGINE", help="vllm; or simulated, which needs no vLLM and makes answers up."
        ),
    ] = "vllm",
) -> None:
    """See OpenAI's API at work: curl, OpenAI's Python SDK, a batch, a webhook, and the page.

    Starts a Redis, a worker with a small real model and a gateway, on free ports, and stops them again. Needs the
    extras: `make demo-gateway` installs them.

    ```text
    streamfleet demo-gateway
    streamfleet demo-gateway --open
    streamfleet demo-gateway --no-wait --engine simulated
    ```
    """
    if engine not in ENGINES:
        raise SettingsError(f"--engine: must be {' or '.join(ENGINES)}, not {engine[:40]!r}")
    for name in sorted(EXTRA):
        if importlib.util.find_spec(name) is None:  # the gateway's own process would report it later
            raise _missing(ModuleNotFoundError(name=name), *INSTALL_GATEWAY)
    try:
        from streamfleet.cli.demo.gateway_run import Options
        from streamfleet.cli.demo.gateway_run import demo_gateway as run_demo
    except ModuleNotFoundError as error:
        raise _missing(error, *INSTALL_GATEWAY) from None
    stay = sys.stdout.isatty() if wait is None else wait
    raise typer.Exit(run_demo(Options(engine, port, stay, open_page)))


def _missing(error: ModuleNotFoundError, target: str, extras: str) -> Exception:
    """Error for a package that is not installed; a missing module of streamfleet itself is raised as it is."""
    missing = error.name or ""
    if missing.startswith("streamfleet"):
        return error
    return SettingsError(
        f"the demo needs {missing}, which is not installed: run `{target}`, or pip install '.[{extras}]' in a clone"
    )
