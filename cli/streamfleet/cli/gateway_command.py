"""`streamfleet gateway`, and `streamfleet gateway keys`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.cli.webhooks_command import webhooks
from streamfleet.common.clock import SystemClock
from streamfleet.common.errors import SettingsError
from streamfleet.common.protocol import Lane
from streamfleet.operator.commands.common import FAILED, AsJson, QueueName, RedisUrl, fail, out, out_record, run, say

if TYPE_CHECKING:
    from streamfleet.gateway.api_keys import KeyRecord
    from streamfleet.gateway.broker.api_keys import GatewayBroker
    from streamfleet.operator.commands.fitted_table import FittedTable

gateway = typer.Typer(name="gateway", invoke_without_command=True)
keys = typer.Typer(name="keys", no_args_is_help=True, help="API keys of the gateway: create, list, set, revoke.")
gateway.add_typer(keys)
gateway.add_typer(webhooks)
Weight = Annotated[
    float | None,
    typer.Option("--weight", help="The tenant's part beside others', as of `tenants set`. Default: none is named."),
]
MaxRunning = Annotated[
    int | None,
    typer.Option("--max-running", help="Most requests of the tenant that run at once. Default: no limit is named."),
]
STORED_S = 10.0
"""Time after the end of a key until nothing more is stored for it: a gateway may trust it for five seconds, and what it
has let in may take a few until it is stored."""
EXTRA = {"fastapi", "starlette", "uvicorn", "httptools", "uvloop"}


@gateway.callback()
def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option("--host", help="Where to listen. Default: STREAMFLEET_GATEWAY_HOST, then 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port; 0 picks a free one. Default: STREAMFLEET_GATEWAY_PORT, then 8080."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="MODEL=QUEUE,…",
            help="Which queue answers for which model. Default: STREAMFLEET_GATEWAY_MODELS, then what the workers say.",
        ),
    ] = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Serve OpenAI's and Anthropic's APIs over HTTP until SIGTERM or Ctrl-C.

    Chat, messages, responses, embeddings, files, batches.

    Callers need an API key: `streamfleet gateway keys create`. Everything else is set by environment variables:
    docs/configuration.md has them all, docs/gateway.md what callers may send.

    ```text
    streamfleet gateway
    streamfleet gateway --host 0.0.0.0 --port 8080 --models small=default,large=gpu-large
    STREAMFLEET_GATEWAY_KEYS=off streamfleet gateway
    STREAMFLEET_GATEWAY_PROCESSES=2 streamfleet gateway
    ```
    """
    if context.invoked_subcommand is not None:
        return
    from streamfleet.common.settings import load_for_gateway

    settings = load_for_gateway(
        redis_url=redis_url, queue=queue, gateway_host=host, gateway_port=port, gateway_models=models
    )
    try:
        from streamfleet.gateway.server import run_gateway
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        raise SettingsError(
            f"the gateway needs {missing}, which is not installed: pip install '.[gateway]' in a clone"
        ) from None
    run_gateway(*settings)


@keys.command("create")
def create(  # noqa: PLR0913, PLR0917 - each parameter is an option
    name: Annotated[str, typer.Argument(help="What the key is for, for people.")],
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose requests come with it. Default: the name.")
    ] = None,
    lane: Annotated[
        list[Lane] | None,
        typer.Option("--lane", "-l", help="Where it may put requests; may be repeated. Default: all but critical."),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            "--requests-per-minute", help="0 for any number. Default: STREAMFLEET_GATEWAY_REQUESTS_PER_MINUTE."
        ),
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option("--tokens-per-minute", help="0 for any number. Default: STREAMFLEET_GATEWAY_TOKENS_PER_MINUTE."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="A span from now (90d), or a time with its offset. Default: never.")
    ] = None,
    operator: Annotated[
        bool,
        typer.Option("--operator", help="It opens the page /ui too: all requests of all tenants, to read and to end."),
    ] = False,
    weight: Weight = None,
    max_running: MaxRunning = None,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Make an API key and print it. It is shown this once: only its hash is kept.

    Gateways write weight and most running, of all requests of the key's tenant, to each queue that they serve.

    ```text
    streamfleet gateway keys create billing
    streamfleet gateway keys create acme --weight 3 --max-running 16
    streamfleet gateway keys create reports --lane low --tokens-per-minute 200000 --expires 90d
    streamfleet gateway keys create ops --operator
    ```
    """
    limits = (requests_per_minute, tokens_per_minute)
    rule = (weight, max_running)
    run(_create(redis_url, name, tenant or name, lane, limits, expires, rule, operator=operator, as_json=as_json))


@keys.command("list")
def list_keys(as_json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """List the API keys, without what they are themselves: nobody knows that any more.

    ```text
    streamfleet gateway keys list
    ```
    """
    run(_list(redis_url, as_json))


@keys.command("set")
def set_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
    weight: Weight = None,
    max_running: MaxRunning = None,
    redis_url: RedisUrl = None,
) -> None:
    """Give a key another weight and most running of its tenant, from now on; an option not given is not named any more.

    Gateways that know the key write them within a second, others at its next request. They hold until they are set
    again, by a key or by `streamfleet tenants set`: the newest count.

    ```text
    streamfleet gateway keys set 1f0a9c3b5d7e2468 --weight 3
    streamfleet gateway keys set 1f0a9c3b5d7e2468 --weight 0.5 --max-running 16
    ```
    """
    if weight is None and max_running is None:
        raise typer.BadParameter("give --weight, --max-running or both; --weight 1 is a tenant like any other")
    run(_set(redis_url, key_id, weight, max_running))


@keys.command("revoke")
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `list` shows them.")],
    erase: Annotated[
        bool, typer.Option("--erase-responses", help="Delete the responses that are stored for them, too.")
    ] = False,
    redis_url: RedisUrl = None,
) -> None:
    """Let nobody in with these API keys any more, from now on; what was enqueued with them goes on.

    ```text
    streamfleet gateway keys revoke 1f0a9c3b5d7e2468
    streamfleet gateway keys revoke 1f0a9c3b5d7e2468 --erase-responses
    ```
    """
    run(_revoke(redis_url, ids, erase=erase))


@asynccontextmanager
async def _connected(redis_url: str | None) -> AsyncIterator[GatewayBroker]:
    from streamfleet.common.connection import Connection
    from streamfleet.gateway.api_keys import GatewayNames
    from streamfleet.gateway.broker.api_keys import GatewayBroker
    from streamfleet.operator.commands.common import queue_settings

    settings = queue_settings(redis_url, None)
    broker = GatewayBroker(Connection.open(settings), GatewayNames(settings.key_prefix))
    try:
        yield broker
    finally:
        await broker.close()


async def _create(  # noqa: PLR0913 - an argument for each property of a key
    redis_url: str | None,
    name: str,
    tenant: str,
    lanes: list[Lane] | None,
    limits: tuple[int | None, int | None],
    expires: str | None,
    rule: tuple[float | None, int | None],
    *,
    operator: bool,
    as_json: bool,
) -> None:
    from streamfleet.common.durations import parse_deadline
    from streamfleet.gateway.api_keys import USUAL_LANES, digest_of, make_record, new_secret, with_rule

    async with _connected(redis_url) as broker:
        now_ms = await broker.now_ms()
        expires_ms = None if expires is None else parse_deadline(expires, now_ms, "expires")
        secret = new_secret()
        digest = digest_of(secret)
        usable = lanes or USUAL_LANES
        record = make_record(digest, name, tenant, usable, limits, now_ms, expires_ms, operator=operator)
        record = with_rule(record, *rule, now_ms)
        await broker.add(digest, record)
    if as_json:
        out_record({**asdict(record), "key": secret})
        return
    out(secret)
    may = ", and the page /ui" if record.operator else ""
    given = f", {_words(record)}" if record.rule else ""
    lanes_of = ", ".join(record.lanes)
    say(f"key {record.id} of tenant {record.tenant!r}, lanes {lanes_of}{given}{may}; it is not shown again")


async def _set(redis_url: str | None, key_id: str, weight: float | None, max_running: int | None) -> None:
    _check_id(key_id)
    async with _connected(redis_url) as broker:
        record = await broker.set_rule(key_id, weight, max_running)
    if record is None:
        fail(f"{key_id}: there is no such key, or it was changed just now")
    out(f"tenant {record.tenant}: {_words(record)}")


def _words(record: KeyRecord) -> str:
    """Weight and limit that a key names."""
    most = "no limit" if record.max_running is None else f"at most {record.max_running} run"
    return f"weight {record.weight or 1:g}, {most}"


async def _list(redis_url: str | None, as_json: bool) -> None:
    async with _connected(redis_url) as broker:
        records, now_ms = await broker.records(), await broker.now_ms()
    if as_json:
        for record in records:
            out_record(asdict(record))
    elif records:
        from streamfleet.operator.commands.fitted_table import screen

        screen().print(keys_table(records, now_ms))
    else:
        out("no API keys; make one: streamfleet gateway keys create NAME")


async def _revoke(redis_url: str | None, ids: list[str], *, erase: bool) -> None:
    for each in ids:
        _check_id(each)
    async with _connected(redis_url) as broker:
        ended = [record for each in ids if erase and (record := await broker.end(each)) is not None]
        if ended:
            await _erase(broker, ended)
        # The record of a key, which names its tenant, goes last: what broke midway can be repeated.
        there = {record.id for record in ended} if erase else {*ids}
        missing = [each for each in ids if each not in there or not await broker.revoke(each)]
    for each in ids:
        say(f"{each}: {'there is no such key, or it was changed just now' if each in missing else 'revoked'}")
    if missing:
        raise typer.Exit(FAILED)


async def _erase(broker: GatewayBroker, ended: list[KeyRecord]) -> None:
    """Delete the responses that are stored for keys that have just ended, once no gateway stores any more."""
    from streamfleet.gateway.broker.responses import ResponseBroker, ResponseNames

    say(f"nobody gets in with them any more; waiting {STORED_S:g} s for what the gateways still store")
    await SystemClock().sleep(STORED_S)
    stored = ResponseBroker(broker.connection, ResponseNames(broker.names.base))
    for record in ended:
        for each in await stored.ids_of(record.tenant, record.id):
            await stored.delete(record.tenant, each)


def _check_id(text: str) -> None:
    from streamfleet.common.errors import InvalidRequest
    from streamfleet.gateway.api_keys import is_key_id

    if not is_key_id(text):
        raise InvalidRequest(f"{text[:40]!r} is no id of a key: 16 hex digits, as `keys list` shows them", "id")


def keys_table(records: list[KeyRecord], now_ms: int) -> FittedTable:
    """API keys for people, without the keys themselves."""
    from streamfleet.common.durations import in_words
    from streamfleet.operator.commands.fitted_table import FittedTable
    from streamfleet.operator.commands.plain import cell

    ruled = any(record.rule for record in records)
    columns = ("lanes", "requests/min", "tokens/min", *(("weight",) if ruled else ()), "age", "expires in", "/ui")
    table = FittedTable("id", "name", "tenant", *columns, fold=("name", "tenant"))
    for record in records:
        ends = None if record.expires_ms is None else (record.expires_ms - now_ms) / 1000
        table.add_row(
            record.id,
            cell(record.name),
            cell(record.tenant),
            " ".join(record.lanes),
            *(
                "default" if limit is None else str(limit or "any")
                for limit in (record.requests_per_minute, record.tokens_per_minute)
            ),
            *([_weight(record)] if ruled else []),
            in_words((now_ms - record.created_ms) / 1000),
            "never" if ends is None else in_words(ends),
            "operator" if record.operator else "",
        )
    return table


def _weight(record: KeyRecord) -> str:
    most = "" if record.max_running is None else f", most {record.max_running}"
    return "" if record.rule is None else f"{record.rule.weight:g}{most}"
