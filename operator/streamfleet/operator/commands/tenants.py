"""`streamfleet tenants`: how a queue's tenants share it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.common.protocol import LEAST_WEIGHT, MOST_OF_A_TENANT
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
    from streamfleet.operator.tenants import TenantView

tenants = typer.Typer(
    name="tenants",
    no_args_is_help=True,
    help="Tenants: their tokens and requests, weights, and most that run: show, set.",
)


@tenants.command("show")
def show(as_json: AsJson = False, redis_url: RedisUrl = None, queue: QueueName = None) -> None:
    """Show tenants by tokens: the 50 with most, and "other" for the rest.

    Tenants are there while they have requests, and for an hour after; those with a weight or limit of their own always.
    "tokens" are settled; "in flight" are charged by estimate. "lost" are of runs that were lost with their workers.
    "set by" has the API key of the gateway that names weight and most; empty if `tenants set` did.

    ```text
    streamfleet tenants show
    streamfleet tenants show --json | jq '.[] | select(.missed > 0) | .tenant'
    ```
    """
    run(_show(queue_settings(redis_url, queue), as_json))


async def _show(settings: QueueSettings, as_json: bool) -> None:
    from dataclasses import asdict

    from streamfleet.operator.tenants import read_tenants

    async with connected(settings) as broker:
        found = await read_tenants(broker)
    if as_json:
        out(json.dumps([asdict(view) for view in found], indent=2))
    else:
        _print(found)


def _print(found: list[TenantView]) -> None:
    from streamfleet.operator.commands.fitted_table import FittedTable, screen
    from streamfleet.operator.commands.plain import cell

    numbers = ("weight", "most", "waiting", "running", "requests", "missed", "tokens", "in flight", "lost")
    by_keys = any(view.key for view in found)
    table = FittedTable("tenant", *numbers, *(("set by",) if by_keys else ()), right=numbers)
    for view in found:
        counts = (view.waiting, view.running, view.requests, view.missed, view.tokens, view.in_flight, view.lost)
        most = "" if view.max_running is None else str(view.max_running)
        key = [f"key {cell(view.key)}" if view.key else ""] if by_keys else []
        table.add_row(cell(view.tenant or "(none given)"), f"{view.weight:g}", most, *map(str, counts), *key)
    screen().print(table)


@tenants.command("set")
def set_tenant(
    tenant: Annotated[str, typer.Argument(help="The tenant, as requests name it; '' for requests without one.")],
    weight: Annotated[
        float, typer.Option(min=LEAST_WEIGHT, max=MOST_OF_A_TENANT, help="Its part beside the others', 1 by default.")
    ] = 1,
    max_running: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_OF_A_TENANT, help="Most of its requests that run at once. Default: no limit."),
    ] = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Set a tenant's weight, and how many of its requests may run at once, within seconds and without a restart.

    An option that is not given gets its default. A tenant with weight 1 and no limit is like any other.

    They hold until they are set again, here or by an API key of the gateway that is made or changed later.

    ```text
    streamfleet tenants set acme --weight 3
    streamfleet tenants set batch-team --weight 0.5 --max-running 16
    ```
    """
    from streamfleet.common.envelope import check_label

    run(_set(queue_settings(redis_url, queue), check_label(tenant, "tenant"), weight, max_running))


async def _set(settings: QueueSettings, tenant: str, weight: float, max_running: int | None) -> None:
    from streamfleet.common.broker.types import TenantRule

    async with connected(settings) as broker:
        await broker.set_tenant(tenant, TenantRule(weight, max_running))
    out(f"{tenant or '(none given)'}: weight {weight:g}, {f'at most {max_running} run' if max_running else 'no limit'}")
