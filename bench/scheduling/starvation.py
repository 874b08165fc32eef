"""Share of the workers' picks for each lane while the lanes above it never run empty.

There are two loads: a deep backlog in all three lanes and a worker that answers at once, so that picks come in
hundreds;
and engines that are slower than the high lane's arrivals, so that picks come one or two at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from bench.core.redis import own_server
from bench.core.reports import Table, Target
from bench.core.series import thinned
from bench.core.workers import workers
from bench.scheduling.deadlines import ENVIRONMENT, MEAN_TOKENS, PROMPT_TOKENS, SLOTS, WORKERS
from bench.scheduling.feeding import KEYS, fill, queue_settings, read_outcomes, replay, stage_all
from bench.scheduling.outcomes import picks_in_order, shares, windowed_shares
from bench.scheduling.parts import Part, Say
from bench.scheduling.traces import Arrival, Kind, capacity_per_s, steady
from streamfleet.producer import Client
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST as PROFILE
from tests.broker import Broker

GUARANTEED = {"normal": 10.0, "low": 5.0}
"""Per cent of picks, as STREAMFLEET_SHARES has them by default."""
WINDOW = 1_000
"""One pull takes up to some five hundred, all in the same millisecond: within it there is no order to be seen."""
OVERLOAD = 1.3
AHEAD_S = 8.0
"""So much work stands in the high lane when the workers start, which they do not at the same moment."""
HIGH = Kind(1, "high", None, (MEAN_TOKENS // 2, MEAN_TOKENS * 3 // 2))


@dataclass(frozen=True)
class Sizes:
    """Requests in each lane's backlog, and the seconds for which the high lane gets more than the engine can do."""

    backlog: Mapping[str, int]
    seconds: float


QUICK = Sizes({"high": 12_000, "normal": 3_000, "low": 2_000}, 10.0)
FULL = Sizes({"high": 60_000, "normal": 15_000, "low": 10_000}, 60.0)


def measure(quick: bool, say: Say) -> Part:
    """Measure both loads."""
    sizes = QUICK if quick else FULL
    say("a deep backlog, and a worker that answers at once")
    picks = {"deep backlog, many at a time": _deep(sizes)}
    say(f"high ones for {sizes.seconds:.0f} s at {OVERLOAD} of what the engines can do")
    picks["steady overload, few at a time"] = _steady(sizes)
    return report(picks, {"starvation_backlog": sizes.backlog, "overload_seconds": sizes.seconds})


def report(picks: Mapping[str, Sequence[str]], settings: Mapping[str, object]) -> Part:
    """Shares of the picks, and the error of the low lane's."""
    rows: list[dict[str, Any]] = []
    for load, lanes in picks.items():
        got = shares(lanes)
        windows = windowed_shares(lanes, "low", WINDOW)
        rows.append(
            {
                "load": load,
                "picks": len(lanes),
                **{f"{lane} %": got.get(lane, 0.0) for lane in ("high", *GUARANTEED)},
                f"low in {WINDOW} picks, least %": min(windows, default=None),
                f"low in {WINDOW} picks, most %": max(windows, default=None),
            }
        )
    wanted = ", ".join(f"{lane} {share:g} %" for lane, share in GUARANTEED.items())
    title = f"Starvation: picks of each lane while high always waits (guaranteed: {wanted})"
    targets = [
        Target(
            f"low's share off its guaranteed one, {row['load']}",
            abs(row["low %"] - GUARANTEED["low"]) if row["picks"] >= WINDOW else None,
            1,
            "at most",
            "points",
            "" if row["picks"] >= WINDOW else f"only {row['picks']} picks: too few to tell",
        )
        for row in rows
    ]
    data = {
        "guaranteed_percent": GUARANTEED,
        "percent": {load: shares(lanes) for load, lanes in picks.items()},
        "window_picks": WINDOW,
        "percent_by_window": {
            load: {lane: thinned(windowed_shares(lanes, lane, WINDOW)) for lane in ("high", *GUARANTEED)}
            for load, lanes in picks.items()
        },
    }
    return Part([Table(title, list(rows[0]), rows)], targets, data, settings)


def _deep(sizes: Sizes) -> list[str]:
    with own_server() as server, redis.Redis.from_url(server.url) as client:
        ids = [name for lane, count in sizes.backlog.items() for name in fill(client, lane, count, name=f"{lane}-")]
        asyncio.run(_stage(server.url))
        with workers(server.url, module="bench.core.noop_worker"):
            while client.xlen(KEYS.lane("high")):
                time.sleep(0.05)
        return picks_in_order(read_outcomes(client, ids))


def _steady(sizes: Sizes) -> list[str]:
    reachable = WORKERS * capacity_per_s(PROFILE, SLOTS, MEAN_TOKENS, PROMPT_TOKENS)
    trace = steady(4, sizes.seconds, OVERLOAD * reachable, [HIGH])
    with own_server() as server, redis.Redis.from_url(server.url) as client:
        backlog = {
            "high": reachable * AHEAD_S,
            "normal": reachable * sizes.seconds / 3,
            "low": reachable * sizes.seconds / 6,
        }
        ids = [name for lane, count in backlog.items() for name in fill(client, lane, round(count), name=f"{lane}-")]
        ids += [f"r{number}" for number in range(len(trace))]
        with workers(server.url, WORKERS, environment={**ENVIRONMENT, "STREAMFLEET_DRAIN_MS": 100}):
            asyncio.run(_feed(server.url, trace))
        return picks_in_order(read_outcomes(client, ids))


async def _feed(url: str, trace: Sequence[Arrival]) -> None:
    async with Client(settings=queue_settings(url), notify=False) as fleet:
        await replay(fleet, trace)


async def _stage(url: str) -> None:
    async with Client(settings=queue_settings(url), notify=False) as fleet:
        await fleet.broker.ensure_groups()
        await stage_all(Broker.of(fleet.broker))
