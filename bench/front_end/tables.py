"""The tables and targets of the front end's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.core.reports import Report, Table, Target
from bench.core.rounds import Sample, middle, ratio
from bench.core.tables import shown
from bench.front_end.ways import ASGI, BARE, ENGINE, SERVE, Sizes

RENDERING = "template and tokenizer"
WHOLE = {ENGINE: "a whole worker on Redis", ASGI: "the same worker over ASGI"}
"""Names of whole workers, by the way of their engines."""
ENGINE_TO_BARE, WHOLE_TO_BARE, FIRST_TO_ASGI = 1.03, 1.2, 0.2
"""Most of bare AsyncLLM's CPU, and of the time over ASGI until a burst's first request is in the core."""
STREAMED_MS, CORES = 2.0, 0.8
"""Most CPU of a streamed answer, and of a worker with paced streams."""
STEP_S = 0.05
"""Duration of a step of the paced streams: 20 tokens a second of each."""
Samples = Mapping[str, Sequence[Sample]]


def key(name: str, count: int, tokens: int, streamed: bool = False) -> str:
    """The name of a measure: a way or a whole worker, with its burst."""
    return f"{name}{', streamed' if streamed else ''}; {count:,} at once, {tokens} tokens"


def fill(report: Report, samples: Samples, sizes: Sizes) -> None:
    """Put all tables, targets and samples into the report."""
    report.tables = [_bursts(samples, sizes), _parts(samples, sizes), _whole(samples, sizes)]
    report.targets = _targets(samples, sizes)
    report.data = {"samples": {name: [dict(each) for each in found] for name, found in samples.items()}}


def paced(report: Report, samples: Sequence[Sample], sizes: Sizes) -> None:
    """Put the table and the target of streams at the pace of a reader into the report."""
    # by the time that the tokens should take: a machine without idle time must not make the worker look cheap
    cores = middle(samples, "process_us") * sizes.paced / 1e6 / (sizes.paced_tokens * STEP_S)
    row = {
        "of a core": cores,
        "CPU ms a stream": middle(samples, "process_us") / 1000,
        "all answered, s": middle(samples, "wall_s"),
    }
    what = f"{sizes.paced:,} streams of {1 / STEP_S:g} tokens/s each"
    report.tables.append(Table(f"Front end: {what}, a whole worker", list(row), [row]))
    report.targets.append(
        Target(f"CPU of a whole worker with {what}", cores, CORES, "at most", "cores", "every text whole, in order")
    )
    report.data["paced"] = [dict(each) for each in samples]


def _bursts(samples: Samples, sizes: Sizes) -> Table:
    rows = [
        {
            "at once": count,
            "": name + (", streamed" if streamed else ""),
            "main thread": middle(found, "main_us"),
            "to bare": ratio(found, samples[key(BARE, count, sizes.tokens, streamed)], "main_us"),
            "whole process": middle(found, "process_us"),
            "first in the core, ms": middle(found, "core_first_ms"),
            "median": middle(found, "core_median_ms"),
            "last": middle(found, "core_last_ms"),
            "all answered, s": middle(found, "wall_s"),
        }
        for streamed, at_once in ((False, sizes.at_once), (True, sizes.streamed_at_once))
        for count in at_once
        for name in (BARE, ENGINE, ASGI, SERVE)
        if (found := samples.get(key(name, count, sizes.tokens, streamed)))
    ]
    return Table(f"Front end: CPU µs a request of {sizes.tokens} tokens, simulated model", list(rows[0]), rows)


def _parts(samples: Samples, sizes: Sizes) -> Table:
    """Differences of ways: the main thread's, and for a whole worker the process's."""

    def us(name: str, figure: str = "main_us") -> float:
        return middle(samples[key(name, sizes.parts_at, sizes.tokens)], figure)

    rendering = middle(samples[RENDERING], "main_us")
    parts = {
        RENDERING: rendering,
        "AsyncLLM.generate": us(BARE) - rendering,
        "what vLLM's own application adds": us(SERVE) - us(BARE),
        "what a worker's engine adds in its place": us(ENGINE) - us(BARE),
        "pull, admission, completion, with Redis's client": us(WHOLE[ENGINE], "process_us") - us(ENGINE, "process_us"),
    }
    rows = [{"part": part, "CPU µs a request": spent} for part, spent in parts.items()]
    title = f"Front end: parts of a request of {sizes.tokens} tokens, {sizes.parts_at:,} at once"
    return Table(title, list(rows[0]), rows)


def _whole(samples: Samples, sizes: Sizes) -> Table:
    rows = [
        {
            "at once": count,
            "": name + (", streamed" if streamed else ""),
            "whole process": middle(found, "process_us"),
            "to bare": ratio(found, samples[key(BARE, count, sizes.tokens, streamed)], "process_us"),
            "first token, ms": middle(found, "first_token_ms"),
            "all answered, s": middle(found, "wall_s"),
        }
        for streamed, at_once in ((False, sizes.at_once), (True, sizes.streamed_at_once))
        for count in at_once
        for name in WHOLE.values()
        if (found := samples.get(key(name, count, sizes.tokens, streamed)))
    ]
    return Table(f"Front end: CPU µs a request of {sizes.tokens} tokens, whole workers", list(rows[0]), rows)


def _targets(samples: Samples, sizes: Sizes) -> list[Target]:
    targets = []
    for name, what, figure, limit in (
        (ENGINE, "worker's engine, main thread", "main_us", ENGINE_TO_BARE),
        (WHOLE[ENGINE], "whole worker on Redis", "process_us", WHOLE_TO_BARE),
    ):
        for count in sizes.at_once:
            mine, bare = (samples[key(each, count, sizes.tokens)] for each in (name, BARE))
            note = f"{shown(middle(mine, figure))} and {shown(middle(bare, figure))} µs a request"
            title = f"CPU of a {what}, to bare AsyncLLM; {count:,} at once"
            targets.append(Target(title, ratio(mine, bare, figure), limit, "at most", "x", note))
    for count in sizes.streamed_at_once:
        ms = middle(samples[key(WHOLE[ENGINE], count, sizes.tokens, streamed=True)], "process_us") / 1000
        title = f"CPU of a whole worker, a streamed answer of {sizes.tokens} tokens; {count:,} at once"
        targets.append(Target(title, ms, STREAMED_MS, "at most", "ms"))
    return [*targets, _first(samples, max(sizes.at_once), sizes.tokens)]


def _first(samples: Samples, count: int, tokens: int) -> Target:
    first, note = None, "the engine makes no direct calls"
    mine, other = samples[key(ENGINE, count, tokens)], samples.get(key(ASGI, count, tokens))
    if other:
        first = ratio(mine, other, "core_first_ms")
        note = f"{shown(middle(mine, 'core_first_ms'))} and {shown(middle(other, 'core_first_ms'))} ms"
    title = f"first of {count:,} in the engine core, to the same over ASGI"
    return Target(title, first, FIRST_TO_ASGI, "at most", "x", note)
