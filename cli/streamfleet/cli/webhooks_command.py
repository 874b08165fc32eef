"""`streamfleet gateway webhooks`: dead webhooks, and signing secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import FAILED, AsJson, RedisUrl, out, out_record, run, say

if TYPE_CHECKING:
    from streamfleet.gateway.broker.webhooks import WebhookBroker
    from streamfleet.gateway.webhook_messages import DeadWebhook

webhooks = typer.Typer(
    name="webhooks", no_args_is_help=True, help="Webhooks of the gateway: dead ones, and the secrets that sign them."
)
secret = typer.Typer(
    name="secret",
    no_args_is_help=True,
    help="Secrets that sign webhooks: create, rotate, list. As the Redis user of the gateway: no other may read them.",
)
webhooks.add_typer(secret)

Tenant = Annotated[
    str,
    typer.Option(
        "--tenant", help="Whose webhooks, as `gateway keys list` shows it. Default: of a gateway without keys."
    ),
]


@webhooks.command("list")
def list_dead(
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, help="So many at most, newest first.")] = 20,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List the webhooks that were given up, newest first.

    ```text
    streamfleet gateway webhooks list
    streamfleet gateway webhooks list --newest 100 --json
    ```
    """
    run(_list(redis_url, newest, as_json))


@webhooks.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="Dead letter id, or webhook-id.")],
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Show one: why it was given up, where it was to go, and what it says.

    ```text
    streamfleet gateway webhooks show 1790000000000-0
    ```
    """
    run(_show(redis_url, name, as_json))


@webhooks.command("requeue")
def requeue(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letter ids, or webhook-ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    redis_url: RedisUrl = None,
) -> None:
    """Deliver dead webhooks after all, with all their attempts again. Their webhook-ids stay.

    ```text
    streamfleet gateway webhooks requeue 1790000000000-0
    streamfleet gateway webhooks requeue --all
    ```
    """
    if bool(ids) == everything:
        raise typer.BadParameter("name ids, or give --all")
    run(_requeue(redis_url, ids or []))


@secret.command("create")
def create(tenant: Tenant = "", redis_url: RedisUrl = None) -> None:
    """Make a tenant's first signing secret, and print it.

    ```text
    streamfleet gateway webhooks secret create --tenant billing
    ```
    """
    run(_replace(redis_url, tenant, None))


@secret.command("rotate")
def rotate(
    tenant: Tenant = "",
    overlap: Annotated[
        str, typer.Option("--overlap", help="How long the former ones go on signing beside it; 0s ends them now.")
    ] = "1d",
    redis_url: RedisUrl = None,
) -> None:
    """Replace a tenant's signing secret, and print the new one. Until the overlap ends, both sign.

    ```text
    streamfleet gateway webhooks secret rotate --tenant billing
    streamfleet gateway webhooks secret rotate --tenant billing --overlap 0s
    ```
    """
    from streamfleet.common.durations import parse_span

    run(_replace(redis_url, tenant, parse_span(overlap, "overlap")))


@secret.command("list")
def list_secrets(as_json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """List who has signing secrets, by their fingerprints: the first 12 hex digits of the SHA-256 of the whole secret.

    ```text
    streamfleet gateway webhooks secret list
    ```
    """
    run(_list_secrets(redis_url, as_json))


@asynccontextmanager
async def _connected(redis_url: str | None) -> AsyncIterator[WebhookBroker]:
    from streamfleet.common.connection import Connection
    from streamfleet.gateway.broker.webhooks import WebhookBroker
    from streamfleet.gateway.webhook_messages import WebhookNames
    from streamfleet.operator.commands.common import queue_settings

    settings = queue_settings(redis_url, None)
    broker = WebhookBroker(Connection.open(settings), WebhookNames(settings.key_prefix))
    try:
        await broker.connection.ping()
        yield broker
    finally:
        await broker.close()


async def _list(redis_url: str | None, newest: int, as_json: bool) -> None:
    from streamfleet.cli.webhooks_view import as_json_value, table

    async with _connected(redis_url) as broker:
        found, now_ms = await broker.dead(newest), await broker.now_ms()
    if as_json:
        for letter in found:
            out_record(as_json_value(letter))
    elif found:
        from streamfleet.operator.commands.fitted_table import screen

        screen().print(table(found, now_ms))
    else:
        out("no dead webhooks")


async def _show(redis_url: str | None, name: str, as_json: bool) -> None:
    from streamfleet.cli.webhooks_view import as_json_value, page

    async with _connected(redis_url) as broker:
        letter = await _find(broker, name)
    out(json.dumps(as_json_value(letter), ensure_ascii=False, indent=2) if as_json else page(letter))


async def _requeue(redis_url: str | None, ids: list[str]) -> None:
    from dataclasses import replace

    done = refused = 0
    async with _connected(redis_url) as broker:
        now_ms = await broker.now_ms()
        async for letter in _chosen(broker, ids, now_ms):
            message = letter.message
            if message is None:
                say(f"{letter.letter_id} cannot be read: somebody changed it")
                refused += 1
            elif await broker.requeue(letter.letter_id, replace(message, since_ms=now_ms)):
                out(f"{message.id} requeued")
                done += 1
    say(f"{done} requeued" + (f", {refused} not" if refused else ""))
    if refused:
        raise typer.Exit(FAILED)


async def _chosen(broker: WebhookBroker, ids: list[str], now_ms: int) -> AsyncIterator[DeadWebhook]:
    if ids:
        for name in ids:
            yield await _find(broker, name)
        return
    async for letter in broker.every_dead():
        if letter.written_ms > now_ms:
            return  # written after this command began
        yield letter


async def _find(broker: WebhookBroker, name: str) -> DeadWebhook:
    from streamfleet.common.errors import InvalidRequest

    async for letter in broker.every_dead():
        if name in (letter.letter_id, letter.webhook_id):
            return letter
    raise InvalidRequest(
        f"there is no dead webhook {name[:80]!r}; `streamfleet gateway webhooks list` shows them", "ID"
    )


async def _replace(redis_url: str | None, tenant: str, overlap_ms: int | None) -> None:
    """Put a new secret first; `overlap_ms` of None is for a tenant that has none."""
    from streamfleet.common.envelope import check_label
    from streamfleet.common.errors import InvalidRequest
    from streamfleet.gateway.webhooks.signing import active_secrets, encode_secrets, new_secret, read_secrets, rotate

    if tenant:
        check_label(tenant, "tenant")
    async with _connected(redis_url) as broker:
        now_ms, before = await broker.now_ms(), await broker.secrets(tenant)
        former = active_secrets(read_secrets(before), now_ms)
        if former and overlap_ms is None:
            raise InvalidRequest("has a secret already; `secret rotate` replaces it", "tenant")
        if not former and overlap_ms is not None:
            raise InvalidRequest("has no secret yet; `secret create` makes one", "tenant")
        fresh = new_secret()
        await broker.set_secrets(tenant, before, encode_secrets(rotate(former, fresh, now_ms, overlap_ms or 0)))
    out(fresh)
    say("give it to whoever receives the webhooks; it is not shown again")


async def _list_secrets(redis_url: str | None, as_json: bool) -> None:
    from streamfleet.cli.webhooks_view import secret_rows, secrets_table

    async with _connected(redis_url) as broker:
        rows, now_ms = secret_rows(await broker.every_secret()), await broker.now_ms()
    if as_json:
        for row in rows:
            out_record(row)
    elif rows:
        from streamfleet.operator.commands.fitted_table import screen

        screen().print(secrets_table(rows, now_ms))
    else:
        out("no secrets; make one: streamfleet gateway webhooks secret create")
