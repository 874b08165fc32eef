"""`streamfleet demo`: the main job on real parts, small enough to watch."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streamfleet.cli.demo.model import model_folder
from streamfleet.cli.demo.server import demo_redis
from streamfleet.cli.demo.worker_process import WorkerProcess
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.common.results import Result
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.broker.audit import Audit
from streamfleet.producer import Client, Handle

STYLES = {"succeeded": "green", "failed": "red", "dead": "red", "expired": "yellow", "cancelled": "yellow"}
CAPITAL = "capital"
MALFORMED = "malformed"
CANCELLED = "cancelled"
EXPIRED = "expired"

_QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "low",
        (
            "Write a sentence about the sea.",
            "Write a sentence about mountains.",
            "Write a sentence about a library.",
            "Write a sentence about rain.",
            "Write a sentence about bread.",
            "Write a sentence about a train.",
            "Write a sentence about winter.",
        ),
    ),
    (
        "normal",
        (
            "Name a colour.",
            "Name a fruit.",
            "What does a baker do?",
            "Is the sun a star?",
            "How many legs has a spider?",
        ),
    ),
    ("high", ("Say hello in French.", "Name an ocean.", "What is ice made of?", "Name a planet.")),
    ("critical", ("Name a metal.", "What colour is the sky?", "Say hi.")),
)


@dataclass(frozen=True, slots=True)
class _Planned:
    """One request of the demo; ``ttl_ms`` is None for no time limit."""

    id: str
    lane: str
    body: dict[str, Any]
    ttl_ms: int | None = None


def _chat(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A chat request with a deterministic answer."""
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}


def _plan() -> list[_Planned]:
    """All lanes and terminal statuses, in about the reverse order of their execution.

    Least urgent lanes come first, and later deadlines first within a lane.
    """
    planned = []
    for lane, questions in _QUESTIONS:
        for number, question in enumerate(questions, start=1):
            deadline_ms = 600_000 - 30_000 * number if lane != "low" else None
            planned.append(_Planned(f"{lane}-{number}", lane, _chat(question, 24), deadline_ms))
    planned.insert(9, _Planned(CANCELLED, "low", _chat("Nobody wants this answer any more.", 64)))
    planned.insert(14, _Planned(EXPIRED, "normal", _chat("Too late for this one.", 16), 1))
    planned.append(
        _Planned(CAPITAL, "critical", _chat("What is the capital of France? Answer in one word.", 16), 300_000)
    )
    return planned


def _lanes() -> dict[str, str]:
    """Lane of each request by its id, including the malformed one, which is not in the plan."""
    return {MALFORMED: "high", **{item.id: item.lane for item in _plan()}}


def demo() -> int:
    """Run the demo from start to end.

    Returns:
        0 if all checks passed; 1 otherwise, with a printed line for each problem.

    Raises:
        StreamfleetError: a part is missing or did not start; the message tells the remedy.
    """
    screen = Console()
    screen.rule("[bold]streamfleet demo")
    with demo_redis(os.environ.get("REDIS_URL")) as server:
        screen.print(f"[bold]1/5[/] Redis: {server.described}")
        model = model_folder(lambda text: screen.print(f"    {text}", style="dim"))
        screen.print(f"[bold]2/5[/] Model: {model.name}, run by vLLM in the worker's process")
        return asyncio.run(_Demo(screen, server.url, model).run())


class _Demo:
    def __init__(self, screen: Console, url: str, model: Path) -> None:
        self._screen, self._url = screen, url
        self._queue = f"demo-{secrets.token_hex(3)}"
        self._broker = OperatorBroker(Connection(url), Keys(self._queue))
        self._log_file = Path(tempfile.gettempdir()) / f"streamfleet-{self._queue}.log"
        self._worker = WorkerProcess(url, self._queue, self._log_file, model)
        self._finished: list[Result] = []

    async def run(self) -> int:
        try:
            async with Client(self._url, self._queue) as client:
                handles = await self._enqueue(client)
                await self._worker.start()
                await self._worker.until_ready(self._broker, self._screen, "4/5")
                await self._watch(client, handles)
            await self._worker.stop()
            return self._verdict(await self._broker.audit())
        finally:
            await self._worker.stop()
            await self._broker.delete_queue()
            await self._broker.close()

    async def _enqueue(self, client: Client) -> list[Handle]:
        handles = [await client.enqueue(item.body, lane=item.lane, id=item.id, ttl_ms=item.ttl_ms) for item in _plan()]
        # A malformed request, added as from redis-cli.
        lane = self._broker.keys.lane("high")
        await self._broker.connection.command("XADD", lane, "*", "id", MALFORMED, "body", "this is not JSON")
        handles.append(client.handle(MALFORMED))
        await client.cancel(CANCELLED)
        self._screen.print(
            f"[bold]3/5[/] Enqueued {len(handles)} requests, least urgent first: one malformed, one cancelled, "
            "one that expires\n"
            f"    look on: [cyan]redis-cli -u {self._broker.connection.address} XLEN '{lane}'[/]",
            soft_wrap=True,
            highlight=False,
        )
        return handles

    async def _watch(self, client: Client, handles: list[Handle]) -> None:
        self._screen.print("[bold]5/5[/] Results, in the order in which they came:\n")
        lanes = _lanes()
        async for result in client.as_completed(handles, timeout=300):
            self._finished.append(result)
            answer = result.text if result.ok else (result.error or {}).get("message", "")
            shown = escape(_short(answer, max(30, self._screen.width - 46)))
            waited = f"{result.timings.total_ms / 1000:6.1f} s" if result.timings.total_ms is not None else "       –"
            self._screen.print(
                f"{len(self._finished):3}/{len(handles)}  {lanes[result.id]:8} {result.id:11} "
                f"[{STYLES[result.status]}]{result.status:9}[/] {waited}  {shown}",
                highlight=False,
                no_wrap=True,
                overflow="ellipsis",
            )

    def _verdict(self, audit: Audit) -> int:
        self._screen.print(_summary(self._finished))
        problems = audit.problems() + _check(self._finished)
        for problem in problems:
            self._screen.print(f"[red]not as it should be:[/] {problem}")
        self._screen.print(audit.line(), highlight=False, soft_wrap=True)
        return 1 if problems or audit.outstanding else 0


def _check(finished: Sequence[Result]) -> list[str]:
    """Results that differ from the demo's promises, one line each."""
    by_id = {result.id: result for result in finished}
    problems = []
    for name, status in (
        (MALFORMED, Status.FAILED),
        (CANCELLED, Status.CANCELLED),
        (EXPIRED, Status.EXPIRED),
        (CAPITAL, Status.SUCCEEDED),
    ):
        if name not in by_id or by_id[name].status is not status:
            problems.append(f"request {name} should have {status}")
    if CAPITAL in by_id and "Paris" not in by_id[CAPITAL].text:
        problems.append("the capital of France should be Paris")
    ended = {
        lane: [_ended_ms(result) for result in finished if result.ok and result.fields["lane"] == lane]
        for lane in LANES
    }
    if ended[Lane.CRITICAL] and ended[Lane.LOW] and max(ended[Lane.CRITICAL]) > min(ended[Lane.LOW]):
        problems.append("critical requests should end ahead of the low ones that were enqueued before them")
    return problems


def _ended_ms(result: Result) -> int:
    return int(result.fields["finished_ms"])


def _summary(finished: Sequence[Result]) -> Table:
    table = Table(title="\nBy lane", title_justify="left", box=None, pad_edge=False)
    for column in ("lane", *(status.value for status in Status), "median wait"):
        table.add_column(column, justify="left" if column == "lane" else "right")
    lanes = _lanes()
    for lane in LANES:
        mine = [result for result in finished if lanes[result.id] == lane]
        waits = sorted(result.timings.total_ms for result in mine if result.ok and result.timings.total_ms is not None)
        counts = (str(sum(result.status is status for result in mine)) for status in Status)
        table.add_row(lane, *counts, f"{waits[len(waits) // 2] / 1000:.1f} s" if waits else "–")
    return table


def _short(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
