"""Tables for readers, and series for pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.reports import Table
from bench.core.rounds import Sample, middle
from bench.shards.costs import BESIDE, LONE, VERBS, case, memory_case
from bench.shards.fleets import Seen
from bench.shards.fleets import rows as fleet_rows
from bench.shards.needs import KINDS, Need
from bench.shards.sizes import Sizes

TITLES = {
    **{
        name: words
        for call, title in (
            ("heartbeat", "sign of life"),
            ("acquire_housekeeping_lock", "asking whose turn the housekeeping is"),
            ("empty_pull", "pull that finds nothing"),
            ("PING", "a PING"),
        )
        for name, words in (
            (call, title),
            (f"{LONE}{call}", "the same, of a server that has slept for 10 ms"),
            (f"{LONE}{call}{BESIDE}", "the same, while another process works"),
        )
    },
    "bench": "a wait on the bench",
    "watch": "a watcher's read that brings an arrival",
    "notices": "a wait for cancellations",
    "tick": "a round of housekeeping, nothing held",
    "tick, many running": "the same, this many held",
    "forget": "looking for dead workers, none known",
    "forget, many known": "the same, this many known",
    "alone": "a second of a server that is asked nothing",
    "connections": "the same with this many idle connections",
}
SIZES_OF_FLEETS = (100, 300, 1_000, 3_000, 10_000)


def of_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table with the columns of its first row."""
    return Table(title, list(rows[0]), rows)


def requests_table(samples: Mapping[str, Sequence[Sample]], sizes: Sizes) -> Table:
    """CPU µs of the server and bytes for each request, by verb."""
    rows = []
    for body in sizes.bodies:
        memory = memory_of(samples, body)
        for batch in sizes.batches:
            found = samples[case(body, batch)]
            total = sum(middle(found, f"{verb} us") for verb in VERBS)
            traffic = sum(middle(found, f"{verb} {way} B") for verb in VERBS for way in ("in", "out"))
            rows.append(
                {
                    "body and answer, B": body,
                    "in a call": batch,
                    **{f"{verb}, µs": middle(found, f"{verb} us") for verb in VERBS},
                    "all, µs": total,
                    "requests/s at half a core": 5e5 / total,
                    "network, B": traffic,
                    "waiting, B": memory["queued"],
                    "ended, B": memory["kept"],
                }
            )
    return of_rows("Costs: CPU of the server for each request", rows)


def upkeep_table(samples: Mapping[str, Sequence[Sample]]) -> Table:
    """CPU µs of the server for each call of workers."""
    rows = [
        {
            "call": TITLES[name],
            "number": middle(samples[name], "number") if "number" in samples[name][0] else None,
            "CPU, µs": middle(samples[name], "us"),
            "network, B": middle(samples[name], "in B") + middle(samples[name], "out B")
            if "in B" in samples[name][0]
            else None,
        }
        for name in TITLES
    ]
    return of_rows("Workers: CPU of the server for what they ask, whatever they run", rows)


def memory_of(samples: Mapping[str, Sequence[Sample]], body: int) -> dict[str, float]:
    """Bytes of a waiting request ("queued") and of an ended one ("kept")."""
    found = samples[memory_case(body)]
    return {"queued": middle(found, "queued B"), "kept": middle(found, "kept B")}


def fleets_table(seen: Sequence[Seen]) -> Table:
    """The measured fleets."""
    return of_rows("Fleets: real workers on one server", fleet_rows(seen))


def needs_data(found: Mapping[str, Sequence[Need]]) -> dict[str, Any]:
    """Shards by workers, for each kind of traffic."""
    return {
        name: {
            "title": KINDS[name].title,
            "workers": [each.workers for each in several],
            "shards": [each.shards for each in several],
            "share": several[-1].one.share,
        }
        for name, several in found.items()
    }
