"""Cost of a request on its server, by verb: CPU, network and memory, through the real client and broker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from bench.core.parts import Part, Say
from bench.core.redis import own_server
from bench.core.reports import Table
from bench.core.rounds import Sample, interleave, middle
from bench.shards import life
from bench.shards.sizes import Sizes

VERBS = ("enqueue", "pull", "renew", "complete", "results")
"""Of a request's life; `results` is its notification and its result, read by the caller."""
LONE = "1, alone"
"""A call that finds the server asleep, whose caches are cold by then: most calls of a small fleet."""
LONE_BODY, LONE_NUMBER = 500, 200
LONE_PAUSE_S = 0.01
"""Before a lone call: with longer pauses a call costs hardly more."""


def measure(sizes: Sizes, say: Say) -> Part:
    """Measure requests of all sizes, on one server."""
    say("requests, verb by verb")
    with own_server() as server:
        measures: dict[str, Callable[[], Sample]] = {
            case(body, batch): functools.partial(
                life.one_round, server.url, batch, life.number_of(batch, sizes.calls, body), body
            )
            for body in sizes.bodies
            for batch in sizes.batches
        }
        lone = min(sizes.calls, LONE_NUMBER)
        measures[case(LONE_BODY, LONE)] = functools.partial(
            life.one_round, server.url, 1, lone, LONE_BODY, LONE_PAUSE_S
        )
        for body in sizes.bodies:
            number = life.number_of(life.AT_ONCE, sizes.calls, body)
            measures[memory_case(body)] = functools.partial(life.memory, server.url, number, body)
        samples = interleave(measures, sizes.rounds, title="requests")
    return Part([table(samples, sizes)], data=samples, settings={"rounds": sizes.rounds})


def case(body: int, batch: int | str) -> str:
    """Name of a case: bodies of so many bytes, and so many requests in a call."""
    return f"{body} B by {batch}"


def memory_case(body: int) -> str:
    """Name of the case with the memory of requests of so many bytes."""
    return f"memory of {body} B"


def table(samples: Mapping[str, Sequence[Sample]], sizes: Sizes) -> Table:
    """CPU µs of the server and bytes for each request, by verb."""
    rows = []
    for body in sizes.bodies:
        memory = samples[memory_case(body)]
        for batch in ([LONE] if body == LONE_BODY else []) + list(sizes.batches):
            found = samples[case(body, batch)]
            total = sum(middle(found, f"{verb} us") for verb in VERBS)
            traffic = sum(middle(found, f"{verb} {way} B") for verb in VERBS for way in ("in", "out"))
            rows.append(
                {
                    "body and answer, B": body,
                    "in a call": batch,
                    **{f"{verb}, µs": middle(found, f"{verb} us") for verb in VERBS},
                    "all, µs": total,
                    "requests/s at half a core": None if batch == LONE else 5e5 / total,
                    "network, B": traffic,
                    "waiting, B": middle(memory, "queued B"),
                    "ended, B": middle(memory, "kept B"),
                }
            )
    return Table("Costs: CPU of the server for each request", list(rows[0]), rows)
