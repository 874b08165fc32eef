"""`streamfleet audit`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.operator.commands.common import (
    FAILED,
    AsJson,
    QueueName,
    RedisUrl,
    connected,
    out,
    queue_settings,
    run,
    say,
)

if TYPE_CHECKING:
    from streamfleet.common.server_checks import Finding
    from streamfleet.common.settings import QueueSettings
    from streamfleet.operator.broker.audit import Audit
    from streamfleet.operator.repair import Progress, Report

BAR_FROM = 20_000
"""Smallest number of things to check for which a progress bar is shown; fewer take too little time."""


def audit(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is found; workers may go on meanwhile.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only count; do not look through the queue.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Check that every request ever accepted has ended once, or is still there; with --repair, mend what is not right.

    Counts accepted = succeeded + failed + expired + cancelled + dead (+ outstanding), all at one instant, and looks
    through the queue for what only commands by hand can have broken: deleted entries, ready sets and groups, keys of
    another type, results that never expire. Also names streams that a mistyped XADD made, which it never mends. The
    exit status is 1 when something is wrong, or wrong still.

    ```text
    streamfleet audit
    streamfleet audit --quick --json
    streamfleet audit --repair
    streamfleet audit --repair --yes --queue images
    ```
    """
    if repair and quick:
        raise typer.BadParameter("--repair has to look at everything: leave out --quick")
    settings = queue_settings(redis_url, queue)
    if repair and not yes and sys.stdin.isatty():
        typer.confirm(f"Mend queue {settings.queue} where it is broken?", abort=True)
    report, noticed = run(_inspect(settings, repair, quick))
    if as_json:
        server = [{"event": finding.event, "setting": finding.setting} for finding in noticed]
        out(json.dumps({**_as_json(report), "server": server}, indent=2))
    else:
        _print(report)
    for problem in report.problems:
        say(problem)
    if report.problems and not repair:
        say("`streamfleet audit --repair` mends what can be mended")
    for finding in noticed:
        say(f"server: {finding.message}. Set {finding.setting}")
    if report.problems:
        raise typer.Exit(FAILED)


async def _inspect(settings: QueueSettings, repair: bool, quick: bool) -> tuple[Report, list[Finding]]:
    from streamfleet.common.server_checks import check_server
    from streamfleet.operator.repair import Inspection, Report

    async with connected(settings) as broker:
        noticed = await check_server(broker)
        if quick:
            return Report([], False, await broker.audit()), noticed
        with _bar() as progress:
            return await Inspection(broker, repair, progress).run(), noticed


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on stderr, if that is a terminal and there is enough to check."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("looking", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=total >= BAR_FROM)

        yield show


def _print(report: Report) -> None:
    if report.mended:
        for found in report.found:
            out(found.line(True))
        if not report.found:
            out("nothing to mend")
    if report.audit is not None:
        _print_counts(report.audit)


def _print_counts(found: Audit) -> None:
    from streamfleet.operator.commands.fitted_table import FittedTable, screen

    numbers = ("outstanding", "ready", "running", "undelivered")
    table = FittedTable("lane", *numbers, right=numbers)
    for lane in found.lanes:
        undelivered = "many" if lane.undelivered is None else str(lane.undelivered + lane.handed_out)
        table.add_row(lane.lane.value, str(lane.length), str(lane.ready), str(lane.running), undelivered)
    screen().print(table)
    extra = {name: found.counts.get(name, 0) for name in ("duplicate", "id_reused", "vanished", "requeued")}
    out(f"delayed={found.delayed} dead_letters={found.dead_letters} " + " ".join(f"{k}={v}" for k, v in extra.items()))
    out(found.line())


def _as_json(report: Report) -> dict[str, object]:
    found = report.audit
    counts: dict[str, object] = {}
    if found is not None:
        counts = {
            "accepted": found.accepted,
            **found.ended,
            "outstanding": found.outstanding,
            "delayed": found.delayed,
            "dead_letters": found.dead_letters,
            "duplicate": found.counts.get("duplicate", 0),
            "id_reused": found.counts.get("id_reused", 0),
            "vanished": found.counts.get("vanished", 0),
            "requeued": found.counts.get("requeued", 0),
        }
    return {**counts, "found": [each.to_json(report.mended) for each in report.found], "problems": report.problems}
