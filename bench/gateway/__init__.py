"""The gateway: a thousand streams through one process, and the time it adds to an engine that speaks HTTP itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from bench.core.reports import Report, new_report
from bench.engine.served import served
from bench.engine.setup import engine_setup
from bench.gateway import beside, many, tables
from bench.gateway.many import Load
from bench.gateway.work import Work

PARTS = ("streams", "apis", "turns", "beside")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement.

    Attributes:
        load: load of the streams.
        runs: number of runs of that load.
        apis: load of each API, of one worker.
        work: requests of a round.
        rounds: rounds of the APIs, and of the gateway side by side with a server.
        turns: rounds of one server asked both ways, with half of the single requests.
    """

    load: Load
    runs: int
    apis: Load
    work: Work
    rounds: int
    turns: int


QUICK_SIZES = Sizes(
    Load(streams=200, tokens_per_s=10, tokens=60, workers=2, over_s=2),
    runs=1,
    apis=Load(streams=300, tokens_per_s=20, tokens=80, workers=1, over_s=0.75),
    work=Work(batch=16, batch_tokens=24, singles=40, single_tokens=1, warm_up=4),
    rounds=1,
    turns=2,
)
FULL_SIZES = Sizes(
    Load(streams=1000, tokens_per_s=10, tokens=250, workers=4, over_s=12),
    runs=3,
    apis=Load(streams=300, tokens_per_s=20, tokens=200, workers=1, over_s=0.75),
    work=Work(batch=64, batch_tokens=48, singles=120, single_tokens=1),
    rounds=4,
    turns=5,
)


def run(quick: bool, parts: Sequence[str] = PARTS) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        parts: some of `PARTS`.
    """
    sizes = QUICK_SIZES if quick else FULL_SIZES
    report = new_report("gateway", {"quick": quick, "engine": "vllm", **asdict(sizes)})
    if "streams" in parts:
        tables.add_streams(report, sizes.load, [many.measure(sizes.load) for _ in range(sizes.runs)])
    if "apis" in parts:
        tables.add_apis(report, sizes.apis, many.apis(sizes.apis, sizes.rounds))
    if "turns" in parts:
        some = replace(sizes.work, singles=sizes.work.singles // 2)
        tables.add_turns(report, beside.by_turns(partial(served, engine_setup()), some, sizes.turns))
    if "beside" in parts:
        starts = beside.with_vllm(beside.sharing(engine_setup()))
        tables.add_beside(report, beside.side_by_side(starts, sizes.work, sizes.rounds))
    return report
