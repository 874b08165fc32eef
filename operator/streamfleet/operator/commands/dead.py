"""`streamfleet dead`: requests that ended without success, with the reason and their original fields."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import (
    FAILED,
    AsJson,
    QueueName,
    RedisUrl,
    connected,
    out,
    out_record,
    queue_settings,
    run,
    say,
)

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.broker import OperatorBroker
    from streamfleet.operator.dead_letters import DeadLetter

dead = typer.Typer(
    name="dead",
    no_args_is_help=True,
    help="Requests that ended without success: list, show, requeue, purge.",
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letter ids, or request ids.")]
Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Those of a status (failed, expired, dead) or error code (deadline_exceeded)."),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]


@dead.command("list")
def list_letters(
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, help="So many at most, newest first.")] = 20,
    reason: Reason = None,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """List dead letters, newest first.

    ```text
    streamfleet dead list
    streamfleet dead list --reason expired --newest 100
    ```
    """
    run(_list(queue_settings(redis_url, queue), newest, reason, as_json))


async def _list(settings: QueueSettings, newest: int, reason: str | None, as_json: bool) -> None:
    from streamfleet.operator.commands.dead_view import as_json_value, table
    from streamfleet.operator.dead_letters import letters, read_letter

    async with connected(settings) as broker:
        if reason is None:
            found = [read_letter(letter_id, fields) for letter_id, fields in await broker.dead_letters(newest)]
        else:
            found = [letter async for letter in letters(broker, reason)][::-1][:newest]
        now_ms = await broker.now_ms()
    if as_json:
        for letter in found:
            out_record(as_json_value(letter, now_ms))
    elif found:
        from streamfleet.operator.commands.fitted_table import screen

        screen().print(table(found, now_ms))
    else:
        out("no dead letters")


@dead.command("show")
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Dead letter id, or request id.")],
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Show one: why it ended, and the fields that it was enqueued with.

    ```text
    streamfleet dead show 1790000000000-0
    streamfleet dead show r-42
    ```
    """
    run(_show(queue_settings(redis_url, queue), letter, as_json))


async def _show(settings: QueueSettings, name: str, as_json: bool) -> None:
    from streamfleet.operator.commands.dead_view import as_json_value, page
    from streamfleet.operator.dead_letters import find_letter

    async with connected(settings) as broker:
        letter, now_ms = await find_letter(broker, name), await broker.now_ms()
    out(json.dumps(as_json_value(letter, now_ms), ensure_ascii=False, indent=2) if as_json else page(letter))


@dead.command("requeue")
def requeue_letters(
    ids: Ids = None,
    everything: Everything = False,
    reason: Reason = None,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Enqueue the original requests again, under their ids and in their lanes; their old results are forgotten.

    A deadline or ttl that has passed is dropped, or it would end them at once.

    ```text
    streamfleet dead requeue r-42
    streamfleet dead requeue --reason dead
    streamfleet dead requeue --all
    ```
    """
    _check_choice(ids, everything, reason)
    run(_requeue(queue_settings(redis_url, queue), ids or [], reason))


async def _requeue(settings: QueueSettings, ids: list[str], reason: str | None) -> None:
    from streamfleet.operator.dead_letters import NotRequeued, requeue

    done = refused = 0
    async with connected(settings) as broker:
        now_ms = await broker.now_ms()
        async for letter in _chosen(broker, ids, reason, now_ms):
            try:
                revived = await requeue(broker, letter, now_ms)
            except NotRequeued as error:
                say(str(error))
                refused += 1
                continue
            if revived is not None:
                done += 1
                dropped = f" (its {' and '.join(revived[1])} had passed and was dropped)" if revived[1] else ""
                out(f"{letter.request_id} requeued as {revived[0]}{dropped}")
    say(f"{done} requeued" + (f", {refused} not" if refused else ""))
    if refused:
        raise typer.Exit(FAILED)


@dead.command("purge")
def purge(
    ids: Ids = None,
    everything: Everything = False,
    reason: Reason = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Delete dead letters for good. Results stay until they expire.

    ```text
    streamfleet dead purge 1790000000000-0
    streamfleet dead purge --reason expired --yes
    ```
    """
    _check_choice(ids, everything, reason)
    if not ids and not yes:
        typer.confirm("Delete them for good?", abort=True)
    run(_purge(queue_settings(redis_url, queue), ids or [], reason))


async def _purge(settings: QueueSettings, ids: list[str], reason: str | None) -> None:
    deleted = 0
    async with connected(settings) as broker:
        now_ms = await broker.now_ms()
        some: list[str] = []
        async for letter in _chosen(broker, ids, reason, now_ms):
            some.append(letter.letter_id)
            if len(some) == 500:
                deleted += await broker.purge(some)
                some = []
        deleted += await broker.purge(some)
    out(f"{deleted} deleted")


async def _chosen(broker: OperatorBroker, ids: list[str], reason: str | None, now_ms: int) -> AsyncIterator[DeadLetter]:
    from streamfleet.operator.dead_letters import find_letter, letters

    if ids:
        for name in ids:
            yield await find_letter(broker, name)
        return
    async for letter in letters(broker, reason):
        if letter.written_ms > now_ms:
            return  # written after this command began; a request that fails again must not be processed twice
        yield letter


def _check_choice(ids: list[str] | None, everything: bool, reason: str | None) -> None:
    if sum((bool(ids), everything, reason is not None)) != 1:
        raise typer.BadParameter("name ids, or give --reason, or --all")
