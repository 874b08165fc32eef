"""`streamfleet audit`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from streamfleet.producer.commands.common import (
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
    from streamfleet.common.records import Audit
    from streamfleet.common.settings import QueueSettings


def audit(as_json: AsJson = False, redis_url: RedisUrl = None, queue: QueueName = None) -> None:
    """Check that every request ever accepted has ended once, or is still there.

    Prints accepted = succeeded + failed + expired + cancelled + dead (+ outstanding), all counted at one instant. The
    exit status is 1 when it does not add up.

    ```text
    streamfleet audit
    streamfleet audit --json
    ```
    """
    import typer

    found = run(_audit(queue_settings(redis_url, queue)))
    problems = found.problems()
    if as_json:
        out(json.dumps(_as_json(found), indent=2))
    else:
        _print(found)
    for problem in problems:
        say(f"does not add up: {problem}")
    if problems:
        raise typer.Exit(FAILED)


async def _audit(settings: QueueSettings) -> Audit:
    async with connected(settings) as broker:
        return await broker.audit()


def _print(found: Audit) -> None:
    out(f"{'lane':<10}{'outstanding':>13}{'ready':>10}{'running':>10}{'undelivered':>13}")
    for lane in found.lanes:
        undelivered = "many" if lane.undelivered is None else str(lane.undelivered + lane.handed_out)
        out(f"{lane.lane:<10}{lane.length:>13}{lane.ready:>10}{lane.running:>10}{undelivered:>13}")
    extra = {name: found.counts.get(name, 0) for name in ("duplicate", "vanished", "requeued")}
    out(f"delayed={found.delayed} dead_letters={found.dead_letters} " + " ".join(f"{k}={v}" for k, v in extra.items()))
    out(found.line())


def _as_json(found: Audit) -> dict[str, object]:
    return {
        "accepted": found.accepted,
        **found.ended,
        "outstanding": found.outstanding,
        "delayed": found.delayed,
        "dead_letters": found.dead_letters,
        "duplicate": found.counts.get("duplicate", 0),
        "vanished": found.counts.get("vanished", 0),
        "requeued": found.counts.get("requeued", 0),
        "problems": found.problems(),
    }
