"""The tables and targets of a proof, from the results of its pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.core.reports import Report, Table, Target
from bench.core.rounds import middle, ratio
from bench.core.tables import shown
from bench.engine.tables import TO_HTTP
from bench.gateway.tables import LAG_P99_MS
from bench.gpu.pieces import (
    ANSWERS,
    BARE,
    GPU_SIZES,
    KILL,
    ROUND,
    SERVE,
    SIZES,
    SPARE_MIB,
    STREAMS,
    WORKER,
    pieces,
    speed_of,
)
from bench.gpu.schedule import Found

TO_BARE, TO_BARE_MANY, MANY = 0.98, 1.0, 256
"""Least tokens/s to bare AsyncLLM with few requests at once, where each waits for the pull before it, and with many."""
Results = Mapping[str, Found]
SPEED = {name: speed_of(name) for name in (WORKER, ROUND, SERVE, BARE)}


def fill(report: Report) -> None:
    """Make tables and targets from the results in `report.data`; a dry run has no targets."""
    results = report.data["pieces"]
    good = {name: found for name, found in results.items() if "failed" not in found}
    report.tables = [steps(results), *(make(good) for needed, make in TABLES if not needed.isdisjoint(good))]
    judged = {} if report.settings["dry run"] else good
    report.targets = [target for name, judge in TARGETS if name in judged for target in judge(judged)]


def steps(results: Results) -> Table:
    """All pieces by step: result, duration, and duration on an H100."""
    rows = [
        {
            "step": piece.step,
            "what": piece.name,
            "": "not yet run" if found is None else found.get("failed", "measured").split("\n")[0],
            "took s": None if found is None else found.get("took_s"),
            "planned for an H100, s": piece.seconds,
        }
        for piece in sorted(pieces(GPU_SIZES), key=lambda piece: piece.step)
        for found in [results.get(piece.name)]
    ]
    return Table("Steps", list(rows[0]), rows)


def _killed(good: Results) -> Table:
    found = good[KILL]
    row = {
        "MiB before the start": found["before_mib"],
        "with the engine": found["with_mib"],
        "after SIGKILL": found["after_mib"],
        "processes of worker and engine": found["processes"],
        "left after SIGKILL": found["left"],
        "seconds until free": found["free_s"],
    }
    return Table("SIGKILL: the GPU's memory, and processes", list(row), [row])


def _speeds(good: Results) -> Table:
    rows = [
        {
            "requests at once": int(count),
            "": name,
            "tokens/s": middle(samples, "tokens_per_s"),
            "worker's to this": _to(good, name, count) if name != WORKER else None,
            "whole answer p50 ms": middle(samples, "total_ms_p50"),
            "front end's CPU ms a request": middle(samples, "front_ms_per_request"),
        }
        for name, piece in SPEED.items()
        if piece in good
        for count, samples in good[piece]["at_once"].items()
    ]
    rows.sort(key=lambda row: int(row["requests at once"] or 0))
    return Table("Speed: the same requests to each, all at once", list(rows[0]), rows)


def _to(good: Results, other: str, count: str) -> float | None:
    """The worker's tokens/s divided by another's; None if one is missing, or their work differs."""
    mine, theirs = (good.get(SPEED[name], {}).get("at_once", {}).get(count) for name in (WORKER, other))
    if not mine or not theirs or _work(mine) != _work(theirs):
        return None
    return ratio(mine, theirs, "tokens_per_s")


def _work(samples: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    return [(each["prompt_tokens"], each["output_tokens"]) for each in samples]


def _sizes(good: Results) -> Table:
    rows = [
        {
            "batch size": int(size),
            "tokens/s": found["tokens_per_s"],
            "p50 ms": found["run_ms_p50"],
            "p95 ms": found["run_ms_p95"],
            "p99 ms": found["run_ms_p99"],
            "in the engine": found["running"],
            "GPU busy %": found["utilisation"],
        }
        for size, found in good[SIZES]["sizes"].items()
    ]
    return Table("Batch sizes: time in the engine, answers of one length", list(rows[0]), rows)


def _streams(good: Results) -> Table:
    found = good[STREAMS]
    row = {
        "streams": found["streams"],
        "whole": found["whole"],
        "at once": found["at_once"],
        "lag p50 ms": found["p50_ms"],
        "p99 ms": found["p99_ms"],
        "most ms": found["most_ms"],
        "groups of tokens/s": found["entries"] / found["seconds"],
        **{f"{part}, of a core": share for part, share in found["cores"].items()},
    }
    return Table("Streams: from the in-process worker, through one gateway", list(row), [row])


TABLES: Sequence[tuple[set[str], Callable[[Results], Table]]] = (
    ({KILL}, _killed),
    (set(SPEED.values()), _speeds),
    ({SIZES}, _sizes),
    ({STREAMS}, _streams),
)
"""Functions that make the tables, each behind the pieces of which it needs one."""


def _answers_targets(good: Results) -> list[Target]:
    found = good[ANSWERS]
    name = f"answers of the in-process worker through Redis, of {found['asked']}"
    return [Target(name, found["answered"], found["asked"], "at least", "answers")]


def _kill_targets(good: Results) -> list[Target]:
    found = good[KILL]
    note = f"{shown(found['with_mib'])} MiB with the engine; {shown(found['free_s'])} s after SIGKILL"
    return [
        Target("memory of the GPU after SIGKILL, over before", found["over_mib"], SPARE_MIB, "at most", "MiB", note),
        Target("processes left after SIGKILL", found["left"], 0, "at most", "processes"),
    ]


def _speed_targets(good: Results) -> list[Target]:
    return [
        Target(
            f"tokens/s of the worker, to {other}; {int(count):,} at once",
            _to(good, other, count),
            limit,
            "at least",
            "x",
        )
        for other in (BARE, SERVE)
        if SPEED[other] in good
        for count in good[SPEED[WORKER]]["at_once"]
        for limit in (TO_HTTP if other == SERVE else TO_BARE if int(count) < MANY else TO_BARE_MANY,)
    ]


def _stream_targets(good: Results) -> list[Target]:
    found = good[STREAMS]
    count = found["streams"]
    return [
        Target("streams open at the same time", found["at_once"], count, "at least", "streams"),
        Target(
            f"streams cut, of {count:,} from the in-process worker", count - found["whole"], 0, "at most", "streams"
        ),
        Target(f"lag p99 of {count:,} streams", found["p99_ms"], LAG_P99_MS, "at most", "ms"),
    ]


TARGETS: Sequence[tuple[str, Callable[[Results], list[Any]]]] = (
    (ANSWERS, _answers_targets),
    (KILL, _kill_targets),
    (SPEED[WORKER], _speed_targets),
    (STREAMS, _stream_targets),
)
"""Functions that judge the pieces."""
