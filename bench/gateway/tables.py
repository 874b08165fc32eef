"""The tables and targets of the gateway's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from bench.core.reports import Report, Table, Target
from bench.core.rounds import Sample, middle, percentile, ratio
from bench.gateway.figures import DIRECT, FIRST, GATEWAY, WHOLE, Found
from bench.gateway.many import MESSAGES, RESPONSES, Load, Seen
from streamfleet.common.protocol import CHAT

TO_CHAT = {RESPONSES: 1.5, MESSAGES: 1.3}
"""Most of the CPU of a streamed chat, by endpoint."""
LAG_P99_MS, RATIO, WHOLE_MS, FIRST_MS = 100.0, 0.97, 5.0, 15.0
FIGURES = {
    "tokens_per_s": "tokens/s",
    "whole_ms_p50": "whole answer p50 ms",
    "whole_ms_p95": "p95 ms",
    "first_ms_p50": "first token p50 ms",
    "first_ms_p95": "p95 ms ",
    "front_ms": "CPU ms a request",
}
CPU = {
    "gateway": "gateway's CPU ms an answer",
    "worker": "worker's",
    "redis": "Redis's",
    "groups": "groups",
    "p99_ms": "lag p99 ms",
    "cores": "cores in use, all",
}
SERVER = "vllm serve"
TIMES = {WHOLE: "a short answer", FIRST: "the first streamed token"}


def add_streams(report: Report, load: Load, runs: Sequence[Seen]) -> None:
    """Many streams at once. Over all runs, a time is the median, and a count of failures is the worst."""
    rows = [_stream_row(number, seen) for number, seen in enumerate(runs, 1)]
    what = f"{load.streams} streams of {load.tokens_per_s:g} tokens/s each, through one gateway"
    cores = [{"run": number, **_cores(seen)} for number, seen in enumerate(runs, 1)]
    report.tables += [
        Table(f"Streams: {what}", list(rows[0]), rows),
        Table("CPU: share of a core that each process took", list(cores[0]), cores),
    ]
    cut = max(seen.streams - seen.whole for seen in runs)
    odd = sum(not seen.same for seen in runs)
    together = min(seen.at_once for seen in runs)
    report.targets += [
        Target("streams that were open at the same time", together, load.streams, "at least", "streams"),
        Target(f"streams cut, of {load.streams} in one gateway process", cut, 0, "at most", "streams"),
        Target("runs whose texts are not all that of the same request unstreamed", odd, 0, "at most", "runs"),
        Target(
            f"lag p99, {load.streams} streams of {load.tokens_per_s:g} tokens/s",
            median(seen.p99_ms for seen in runs),
            LAG_P99_MS,
            "at most",
            "ms",
            "from the worker's write to Redis to arrival; Redis, workers and readers share the cores",
        ),
    ]
    report.data["streams"] = [asdict(seen) for seen in runs]


def add_apis(report: Report, load: Load, samples: Mapping[str, Sequence[Sample]]) -> None:
    """CPU of a streamed answer of as many tokens, by API."""
    title = f"APIs by turns: CPU of a streamed answer of {load.tokens} tokens, {load.streams} streams, one worker"
    rows = [
        {"": path, **{column: middle(found, figure) for figure, column in CPU.items()}}
        for path, found in samples.items()
    ]
    report.tables.append(Table(title, list(rows[0]), rows))
    for path, most in TO_CHAT.items():
        value = ratio(samples[path], samples[CHAT], "gateway")
        report.targets.append(Target(f"gateway's CPU of a stream of {path}, to chat's", value, most, "at most", "x"))
    report.data["apis"] = {path: [dict(each) for each in found] for path, found in samples.items()}


def add_turns(report: Report, found: Found) -> None:
    """One server that speaks HTTP, asked directly and through the gateway."""
    names = {DIRECT: SERVER, GATEWAY: f"gateway, worker, and the same {SERVER}"}
    report.tables += _tables(f"By turns: one {SERVER}, directly and through the gateway", names, found)
    report.targets += _targets(found, "one server, by turns")
    _keep(report, "turns", found)


def add_beside(report: Report, found: Found) -> None:
    """The gateway side by side with an engine that speaks HTTP itself."""
    names = {DIRECT: SERVER, GATEWAY: "gateway, worker with vllm"}
    report.tables += _tables(f"Side by side with {SERVER}: each with an engine of its own", names, found)
    report.targets += _targets(found, "an engine each, side by side")
    _keep(report, "beside", found)


def _tables(title: str, names: Mapping[str, str], found: Found) -> list[Table]:
    ways: list[dict[str, Any]] = [
        {"": name, **{column: middle(found.samples[key], figure) for figure, column in FIGURES.items()}}
        for key, name in names.items()
    ]
    added = [_added_row(what, name, found) for name, what in TIMES.items()]
    how, _, _ = title.partition(":")
    return [
        Table(title, list(ways[0]), ways),
        Table(f"{how}: what the gateway adds, by pairs of the same request", list(added[0]), added),
    ]


def _added_row(what: str, name: str, found: Found) -> dict[str, Any]:
    pairs = found.pairs[name]
    return {
        "added to": what,
        "p50 ms": _added(name, found),
        "a quarter of the pairs below ms": percentile(pairs, 0.25),
        "a quarter above ms": percentile(pairs, 0.75),
        "pairs": len(pairs),
    }


def _targets(found: Found, how: str) -> list[Target]:
    tokens = ratio(found.samples[GATEWAY], found.samples[DIRECT], "tokens_per_s")
    return [
        Target(f"tokens/s through the gateway, to {SERVER}; {how}", tokens, RATIO, "at least", "x"),
        Target(f"added to {TIMES[WHOLE]}, p50; {how}", _added(WHOLE, found), WHOLE_MS, "at most", "ms"),
        Target(f"added to {TIMES[FIRST]}, p50; {how}", _added(FIRST, found), FIRST_MS, "at most", "ms"),
    ]


def _added(name: str, found: Found) -> float:
    """Median over rounds of each round's median of pairs."""
    return middle(found.samples[GATEWAY], f"added_{name}")


def _keep(report: Report, part: str, found: Found) -> None:
    report.data[part] = found.samples
    report.data[f"{part}_pairs"] = {name: [round(each, 2) for each in pairs] for name, pairs in found.pairs.items()}


def _stream_row(number: int, seen: Seen) -> dict[str, Any]:
    return {
        "run": number,
        "whole": seen.whole,
        "at once": seen.at_once,
        "texts": seen.texts,
        "lag p50 ms": seen.p50_ms,
        "p99 ms": seen.p99_ms,
        "most ms": seen.most_ms,
        "groups in Redis": seen.entries,
        "groups/s": seen.entries / seen.seconds,
        "gateway's CPU ms a group": seen.cores["gateway"] * seen.seconds * 1000 / seen.entries,
    }


def _cores(seen: Seen) -> dict[str, float]:
    workers = sum(share for part, share in seen.cores.items() if part.startswith("worker"))
    return {
        "gateway": seen.cores["gateway"],
        "redis": seen.cores["redis"],
        "workers, all": workers,
        "readers": seen.cores["readers"],
    }
