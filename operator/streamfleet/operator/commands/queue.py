"""`streamfleet queue`: the configuration that all workers and clients of a queue share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import (
    AsJson,
    QueueName,
    RedisUrl,
    connected,
    out,
    queue_settings,
    run,
)

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings

queue = typer.Typer(
    name="queue",
    no_args_is_help=True,
    help="The configuration that all workers and clients share: show, set.",
)


@queue.command("show")
def show(as_json: AsJson = False, redis_url: RedisUrl = None, queue: QueueName = None) -> None:
    """Show the queue's configuration, and where this shell's environment says otherwise.

    The first worker of a queue writes what its environment says; from then on the queue's value holds. What no worker
    acts on (lane_limit, lane_bytes, lane_tenant_percent) is each client's own until it is set. Times are in ms.

    ```text
    streamfleet queue show
    streamfleet queue show --json | jq '.[] | select(.name == "lease_ms") | .value'
    ```
    """
    run(_show(queue_settings(redis_url, queue), as_json))


async def _show(settings: QueueSettings, as_json: bool) -> None:
    from streamfleet.common.queue_configuration import NAMES, said

    own = said(settings)
    async with connected(settings) as broker:
        fields = await broker.configuration()
    differing = {name: value for name, value in own.items() if fields.get(name, value) != value}
    if as_json:
        rows = [
            {"name": name, "value": _value(fields.get(name)), "environment": _value(differing.get(name))}
            for name in NAMES
        ]
        out(json.dumps(rows, indent=2))
    elif fields:
        _print(fields, differing)
    else:
        out("no configuration yet: the first worker writes what its environment says")


def _value(text: str | None) -> int | list[int] | str | None:
    parts = (text or "").split(",")
    if text is None or not all(part.isdecimal() for part in parts):
        return text
    return [int(part) for part in parts] if len(parts) > 1 else int(text)


def _print(fields: Mapping[str, str], differing: Mapping[str, str]) -> None:
    from streamfleet.common.queue_configuration import NAMES
    from streamfleet.operator.commands.fitted_table import FittedTable, screen
    from streamfleet.operator.commands.plain import cell

    table = FittedTable("setting", "value", "this environment", right=("value", "this environment"))
    for name in NAMES:
        table.add_row(name, cell(fields.get(name, "not set")), f"[yellow]{cell(differing.get(name, ''))}[/yellow]")
    screen().print(table)


@queue.command("set")
def set_values(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="As `streamfleet queue show` names it.")],
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Change the queue's configuration for all its workers and clients, within a second and without a restart.

    docs/operate.md says which values apply to requests that are in the queue already.

    ```text
    streamfleet queue set lease_ms=20000
    streamfleet queue set max_deliveries=3 shares=0,0,200,100 --queue images
    ```
    """
    from streamfleet.common.queue_configuration import assignments

    run(_set(queue_settings(redis_url, queue), assignments(values)))


async def _set(settings: QueueSettings, values: Mapping[str, str]) -> None:
    from streamfleet.common.queue_configuration import decode, encode

    async with connected(settings) as broker:
        before = await broker.configuration()
        after = encode(decode(broker.limits, {**before, **values}))
        changed = {name: after[name] for name in values if before.get(name) != after[name]}
        if changed:
            await broker.set_configuration(changed)
    for name in values:
        now = f"{before.get(name, 'not set')} -> {after[name]}" if name in changed else f"{after[name]} already"
        out(f"{name}: {now}")
