"""`streamfleet enqueue`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfleet.cli.requests.show import show_result, show_stream
from streamfleet.common.envelope import FIELDS
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane
from streamfleet.operator.commands.common import QueueName, RedisUrl, out, queue_settings, run, say

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings


class IfLate(StrEnum):
    """Choices of --if-late."""

    REFUSE = "refuse"
    DOWNGRADE = "downgrade"


LABELS = {field.name: field.meaning for field in FIELDS if field.option}


def with_labels(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has options for the labels of a request in the place of its parameter `labels`, a mapping."""
    options = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(f"--{name}", help=text)],
        )
        for name, text in LABELS.items()
    ]

    @wraps(command)
    def with_options(**given: Any) -> None:
        labels = {name: given.pop(name) for name in LABELS}
        command(**given, labels={name: value for name, value in labels.items() if value is not None})

    known = [
        each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(command, eval_str=True).parameters.values()
    ]
    place = [each.name for each in known].index("labels")
    with_options.__signature__ = Signature([*known[:place], *options, *known[place + 1 :]])  # type: ignore[attr-defined]
    return with_options


@with_labels
def enqueue(  # noqa: PLR0913, PLR0917 - each parameter is an option
    message: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="A user message; makes a chat request of it.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The same, as an option.")] = None,
    body: Annotated[
        str | None,
        typer.Option("--body", "-b", metavar="JSON|@FILE|-", help="A whole OpenAI request body; - reads stdin."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Sets max_tokens.")] = None,
    lane: Annotated[Lane, typer.Option("--lane", "-l", help="Priority.")] = Lane.NORMAL,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", help="Time after which the answer is worthless: 2030-01-31T12:00:00Z, a span, or epoch ms."
        ),
    ] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", help="The same, as a span from now: 30s, 10m, 2h.")] = None,
    if_late: Annotated[
        IfLate | None,
        typer.Option(
            "--if-late",
            help="If it will likely be late: refuse it, which tells the expected time; or put it into lane low. Needs "
            "--ttl or --deadline. Default: it waits.",
        ),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--id", help="The request's id. The same id and body again is the same request.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="OpenAI path. Inferred from the body.")] = None,
    *,
    labels: Mapping[str, str],
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait, and print the answer's text in place of the id.")
    ] = False,
    stream: Annotated[bool, typer.Option("--stream", "-s", help="The same, while it comes.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            help="With --wait, --stream: seconds to wait; then status 1, and the request goes on. Default: for ever.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --wait: print the whole result. With --stream: each chunk, on a line.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Enqueue one request; prints its id.

    Needs a prompt or --body. With --wait or --stream, stdout has the answer alone, and the exit status is 0 when it
    succeeded and 1 when it did not. It is 1, too, when --if-late refuse has refused it.

    ```text
    streamfleet enqueue "What is the capital of France? Answer in one word." --max-tokens 16 --wait
    streamfleet enqueue "Tell me a story" --stream
    streamfleet enqueue "Summarise …" --lane high --ttl 30s --id report-7 --tenant acme
    streamfleet enqueue "And then?" --session chat-17 --program agent-17-3
    streamfleet enqueue "Answer at once" --lane high --ttl 5s --if-late refuse
    streamfleet enqueue --body @request.json --lane low --deadline 2030-01-31T12:00:00Z
    ```
    """
    options: dict[str, Any] = {"lane": lane, "id": request_id, "endpoint": endpoint, "stream": stream}
    options |= {"if_late": if_late, **_deadline(deadline, ttl), **labels}
    request = _body([each for each in (message, prompt) if each is not None], body, max_tokens)
    if as_json and not (wait or stream):
        raise typer.BadParameter("--json prints the answer: give --stream too, or --wait")
    run(_enqueue(queue_settings(redis_url, queue), request, options, wait or stream, timeout, as_json))


async def _enqueue(
    settings: QueueSettings,
    body: dict[str, Any],
    options: dict[str, Any],
    wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    from streamfleet.producer.client import Client

    async with Client(settings=settings, notify=wait) as fleet:
        handle = await fleet.enqueue(body, **options)
        if options["if_late"] and not handle.existing and not handle.entry.startswith(f"{options['lane']}:"):
            say(f"request {handle.id} would likely be late in lane {options['lane']}: it is in lane {Lane.LOW}")
        if not wait:
            out(handle.id)
            return
        say(f"request {handle.id}{' (enqueued before)' if handle.existing else ''}")
        if options["stream"]:
            await show_stream(handle, timeout, as_json)
        else:
            show_result(await handle.result(timeout), as_json)


def _body(prompts: list[str], body: str | None, max_tokens: int | None) -> dict[str, Any]:
    if len(prompts) + (body is not None) != 1:
        raise typer.BadParameter("give either --prompt or --body, or the prompt alone")
    if prompts:
        request: dict[str, Any] = {"messages": [{"role": "user", "content": prompts[0]}]}
    else:
        from streamfleet.common.protocol import parse_body

        request = parse_body(_read(body or ""), 2**63)
    return request if max_tokens is None else request | {"max_tokens": max_tokens}


def _read(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {text[1:]}: {error.strerror}", "body") from None


def _deadline(deadline: str | None, ttl: str | None) -> dict[str, int]:
    if deadline is not None and ttl is not None:
        raise typer.BadParameter("give --deadline or --ttl, not both")
    if ttl is not None:
        from streamfleet.common.durations import parse_span

        return {"ttl_ms": parse_span(ttl)}
    if deadline is not None:
        from streamfleet.common.clock import SystemClock
        from streamfleet.common.durations import parse_deadline

        return {"deadline": parse_deadline(deadline, SystemClock().now_ms())}
    return {}
