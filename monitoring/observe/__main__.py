"""Ask every panel and every alert rule of a real Prometheus that scrapes a real fleet under load; one line for each.

    python -m monitoring.observe
    python -m monitoring.observe --seconds 120     give rare things longer to happen
    python -m monitoring.observe --picture docs/pictures/fleet.svg --for 120
                                                   let it run for two minutes, and draw the overview

Ends with status 0 when every panel has data and every rule can be evaluated, 1 when not, 77 when there is no
Prometheus.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from monitoring.observe.fleet import Fleet, fleet, load
from monitoring.observe.gateway import call_until, let_in
from monitoring.observe.prometheus import NoPrometheus, Prometheus, prometheus
from monitoring.observe.questions import Question, questions
from monitoring.panels.fleet import FLEET

AGAIN_S = 1.0


def main() -> int:
    """Start everything, ask, stop everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long data may take to come")
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw the fleet's dashboard into a file")
    parser.add_argument("--for", type=float, default=0.0, dest="least", metavar="S", help="go on for so long at least")
    args = parser.parse_args()
    try:
        with fleet() as watched, prometheus(watched.targets) as server:
            began = time.time()
            status = asyncio.run(_observe(watched, server, args.seconds, args.least))
            if args.picture is not None:
                from monitoring.observe.picture import draw

                draw(server, FLEET, began, time.time(), args.picture)
            return status
    except NoPrometheus as error:
        print(f"observe: {error}", file=sys.stderr)
        return 77


async def _observe(watched: Fleet, server: Prometheus, seconds: float, least: float) -> int:
    stopped = asyncio.Event()
    door = await let_in(watched.redis_url, watched.gateway_url)
    loading = asyncio.create_task(load(watched.redis_url, stopped))
    calling = asyncio.create_task(call_until(stopped, door))
    until = time.monotonic() + least
    try:
        empty = await _until_answered(server, list(questions()), seconds, loading)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
    finally:
        stopped.set()
    print(f"{await loading} requests enqueued and {await calling} calls over HTTP answered meanwhile")
    broken = _rules(server)
    for question in empty:
        print(f"no data   {question.dashboard} / {question.panel}: {'; '.join(question.queries)}")
    print(f"panels without data: {len(empty)}; rules that cannot be evaluated: {broken}")
    return int(bool(empty or broken))


async def _until_answered(
    server: Prometheus, asked: list[Question], seconds: float, loading: asyncio.Task[int]
) -> list[Question]:
    """Query all panels until each has data, or `seconds` passed. Returns the panels without data."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    for question in asked:
        if question.outside:
            print(f"outside   {question.dashboard} / {question.panel}: another exporter's")
    left = [question for question in asked if not question.outside]
    while left and loop.time() < until and not loading.done():
        left = [question for question in left if not await asyncio.to_thread(_answered, server, question)]
        await asyncio.sleep(AGAIN_S)
    if loading.done():
        loading.result()
    return left


def _answered(server: Prometheus, question: Question) -> bool:
    """True if every query of a panel finds at least one series; prints the success."""
    found = [server.query(query) for query in question.queries]
    if not all(found):
        return False
    print(f"ok        {question.dashboard} / {question.panel}: {sum(map(len, found))} series")
    return True


def _rules(server: Prometheus) -> int:
    broken = 0
    rules: Iterable[dict[str, str]] = server.rules()
    for rule in rules:
        well = rule["health"] == "ok"
        broken += not well
        print(
            f"{'ok' if well else 'broken':<9} rule {rule['name']}: {rule['state'] if well else rule.get('lastError')}"
        )
    return broken


if __name__ == "__main__":
    sys.exit(main())
