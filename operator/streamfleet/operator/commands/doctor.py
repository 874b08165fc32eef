"""`streamfleet doctor`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from streamfleet.operator.commands.common import FAILED, AsJson, QueueName, RedisUrl, as_given, out, queue_settings, run

if TYPE_CHECKING:
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.doctor.check import Check

_COMMAND = re.compile(r"(`streamfleet (?:(?! --queue)[^`])+)(?: --queue NAME)?`")
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "cyan"}


def doctor(as_json: AsJson = False, redis_url: RedisUrl = None, queue: QueueName = None) -> None:
    """Examine Redis and the queue, and say what to change.

    Run it where your producers run: it compares clocks.

    Looks at the server's version, eviction, memory, persistence and replication; at what the user of REDIS_URL may do;
    at clocks and the time of a ping; at the queue's keys, groups, workers, configuration and ages, at other queues
    beside it, and for streams that a mistyped XADD made. Changes nothing, and costs no more on a long queue. Each
    line is ok, warn, fail, or unknown where Redis does not tell this user. The exit status is 1 when anything
    fails. `streamfleet audit` looks through the whole queue.

    ```text
    streamfleet doctor
    streamfleet doctor --queue images
    streamfleet doctor --json | jq '.[] | select(.level != "ok")'
    ```
    """
    settings = queue_settings(redis_url, queue)
    named = "" if queue is None and settings.queue == "default" else f" --queue {shlex.quote(settings.queue)}"
    found = [
        replace(check, seen=as_given(_naming(named, check.seen)), change=as_given(_naming(named, check.change)))
        for check in run(_examine(settings))
    ]
    if as_json:
        out(json.dumps([check.to_json() for check in found], indent=2))
    else:
        _print(found)
    if any(check.level == "fail" for check in found):
        raise typer.Exit(FAILED)


def _naming(queue: str, text: str) -> str:
    """Returns a text with the option for the queue behind each command that names none."""
    return _COMMAND.sub(lambda found: f"{found[1]}{queue}`", text)


async def _examine(settings: QueueSettings) -> list[Check]:
    from streamfleet.common.clock import SystemClock
    from streamfleet.common.queue_configuration import said
    from streamfleet.operator.broker import OperatorBroker
    from streamfleet.operator.doctor.examine import examine

    environment = said(settings)
    password_given = "@" in settings.redis_url.get_secret_value() or settings.redis_credentials is not None
    broker = OperatorBroker.open(settings)
    try:
        return await examine(broker, SystemClock(), password_given=password_given, environment=environment)
    finally:
        await broker.close()


def _print(found: Sequence[Check]) -> None:
    from rich.text import Text

    from streamfleet.operator.commands.fitted_table import screen
    from streamfleet.operator.commands.plain import one_line

    console = screen()
    for check in found:
        line = Text(f"{check.level:<9}", style=STYLES[check.level])
        line.append(f"{check.name:<13} {one_line(check.seen)}", style="default")
        if check.change:
            apart = f"\n{'':<23}" if console.is_terminal else "  "
            line.append(f"{apart}change: {one_line(check.change)}", style="default")
        console.print(line, highlight=False, soft_wrap=True)
