"""The gateway: a thousand streams through one process, and the time it adds to an engine that speaks HTTP itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from bench.core.machine import describe
from bench.core.reports import Report
from bench.engine.setup import EngineSetup
from bench.gateway import beside, by_turns, many, tables
from bench.gateway.figures import DIRECT
from bench.gateway.many import Load
from bench.gateway.work import Work
from streamfleet.cli.demo.model import MODEL_NAME

PARTS = ("streams", "sides", "apis", "turns", "beside")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement.

    Attributes:
        load: load of the streams.
        runs: number of runs of that load.
        work: requests of a round.
        rounds: rounds of the gateway side by side with a server.
        turns: rounds of one server asked both ways, with half of the single requests.
        side_tokens: tokens of the streams by turns with another commit.
    """

    load: Load
    runs: int
    work: Work
    rounds: int
    turns: int
    side_tokens: int = 200

    @property
    def sides(self) -> list[Load]:
        """Loads by turns with another commit: so many streams of one worker that its pace differs."""
        return [Load(count, 20, self.side_tokens, workers=1, over_s=count / 400) for count in (300, 1000)]


QUICK_SIZES = Sizes(
    Load(streams=200, tokens_per_s=10, tokens=60, workers=2, over_s=2),
    runs=1,
    work=Work(batch=16, batch_tokens=24, singles=40, single_tokens=1, warm_up=4),
    rounds=1,
    turns=2,
    side_tokens=80,
)
FULL_SIZES = Sizes(
    Load(streams=1000, tokens_per_s=10, tokens=250, workers=4, over_s=12),
    runs=3,
    work=Work(batch=64, batch_tokens=48, singles=120, single_tokens=1),
    rounds=4,
    turns=5,
)
GPU_WORK = Work(batch=256, batch_tokens=128, singles=60, single_tokens=16)


def run(
    quick: bool,
    setup: EngineSetup | None,
    *,
    rounds: int | None = None,
    parts: tuple[str, ...] = PARTS,
    rate: float = 0,
    against: str = "",
) -> Report:
    """Run the measurement.

    Args:
        quick: small sizes, as a quick check.
        setup: setup of vLLM; None for the simulated engine, which takes only seconds.
        rounds: rounds of the part beside, instead of the size's own.
        parts: some of `PARTS`.
        rate: tokens a second of each stream, instead of the size's own.
        against: another commit, whose gateway and worker take turns with this checkout's.
    """
    sizes = QUICK_SIZES if quick else FULL_SIZES
    sizes = replace(sizes, rounds=rounds or sizes.rounds)
    if rate:
        sizes = replace(sizes, load=replace(sizes.load, tokens_per_s=rate))
    if setup and not setup.cpu and not quick:
        sizes = replace(sizes, work=GPU_WORK)
    engine = "vllm" if setup else "simulated"
    settings = {"quick": quick, "engine": engine, **asdict(sizes)}
    report = Report("gateway", datetime.now(UTC).date().isoformat(), describe(), settings)
    if "streams" in parts:
        tables.add_streams(report, sizes.load, [many.measure(sizes.load) for _ in range(sizes.runs)])
    if "sides" in parts:
        tables.add_sides(report, sizes.sides, many.sides(sizes.sides, against, sizes.rounds))
    if "apis" in parts:
        tables.add_apis(report, sizes.sides[0], many.apis(sizes.sides[0], sizes.rounds))
    starts, model = (beside.with_vllm(setup), MODEL_NAME) if setup else (beside.simulated(), many.MODEL)
    if "turns" in parts:
        some = replace(sizes.work, singles=sizes.work.singles // 2)
        tables.add_turns(report, by_turns.measure(starts[DIRECT], some, sizes.turns, model), engine)
    if "beside" in parts:
        starts = beside.with_vllm(beside.sharing(setup)) if setup else starts
        tables.add_beside(report, beside.measure(starts, sizes.work, sizes.rounds, model), engine)
    return report
