"""Computes the plan from the options of the command line."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from streamfleet.common.durations import in_words, parse_span
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import Lane
from streamfleet.common.settings import QueueSettings, WorkerSettings, load
from streamfleet.operator.plan.arrivals import Arrival, Defaults, Shape, Traffic, read_trace
from streamfleet.operator.plan.checks import number, share, whole
from streamfleet.operator.plan.lengths import Lengths
from streamfleet.operator.plan.profile import EngineProfile, load_profile
from streamfleet.operator.plan.simulate import Fleet
from streamfleet.operator.plan.size import NoFleet, Sized, busy_workers, evaluator, hopeless, size
from streamfleet.worker.credit import PREFETCH

SEEDS_APART = 1_000_003


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as given; see `streamfleet plan --help`."""

    profile: Path | None
    rate: float | None = None
    trace: Path | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    lengths: Shape = "log-normal"
    deadline: str | None = None
    lane: Lane = Lane.NORMAL
    late: str = "1%"
    spare: int = 0
    batch_size: int | None = None
    seed: int = 0
    runs: int = 3
    requests: int = 10_000
    most: int = 1_000
    learnt: Lengths | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan to print.

    Attributes:
        found: the fleet.
        late: share that may be late, 0 to 1.
        spare: number of extra workers.
        basis: description of the simulation, one line.
    """

    found: Sized
    late: float
    spare: int
    basis: str


def plan_fleet(asked: Asked, shown: Callable[[int], None] = lambda _: None) -> Plan:
    """Find the smallest sufficient fleet.

    Args:
        asked: the options.
        shown: called with the number of workers that is simulated next.

    Raises:
        InvalidRequest: an option, a profile or a trace is wrong; the error names the field.
        NoFleet: no number of workers is enough.
    """
    if asked.profile is None:
        raise InvalidRequest("give an engine's profile; to make one: streamfleet plan measure", "--profile")
    late = share(asked.late, "--late")
    spare, most = whole(asked.spare, "--spare", most=10_000), whole(asked.most, "--most", least=1, most=100_000)
    engine = load_profile(asked.profile)
    runs, basis = _arrivals(asked, engine)
    if all(arrival.deadline_s is None for arrivals in runs for arrival in arrivals):
        raise InvalidRequest("without deadlines nothing is late, and one worker is enough: give one", "--deadline")
    fleet = _fleet(engine, asked.batch_size)
    if (alone := hopeless(fleet, runs)) > late:
        raise NoFleet(
            f"{alone:.2%} of the requests take longer than their deadline even alone in an engine, and only {late:.2%} "
            "may be late: give more time (--deadline), ask for shorter answers, or use a faster engine"
        )
    evaluate = evaluator(fleet, runs, shown)
    return Plan(size(evaluate, late, busy_workers(fleet, runs), most, spare), late, spare, basis)


def _arrivals(asked: Asked, engine: EngineProfile) -> tuple[Sequence[Sequence[Arrival]], str]:
    """The arrivals of each run, and their description."""
    deadline_s = None
    if asked.deadline is not None:
        deadline_s = number(parse_span(asked.deadline, "--deadline"), "--deadline", above=True) / 1000
    longest = engine.engine.max_model_len
    if (known := asked.learnt) is not None:
        asked = replace(
            asked,
            prompt_tokens=asked.prompt_tokens or known.prompt_tokens,
            output_tokens=asked.output_tokens or known.output_tokens,
        )
    if asked.trace is not None:
        if asked.rate is not None:
            raise InvalidRequest("give either --rate or --trace, not both", "--rate")
        defaults = Defaults(asked.lane, asked.prompt_tokens, asked.output_tokens, deadline_s, _drawn(asked))
        trace = read_trace(asked.trace, defaults, longest)
        span = in_words(trace[-1].at_s)
        return [trace], f"{asked.trace.name}: {len(trace):,} requests in {span}; engine: {engine.engine.name}"
    traffic = _traffic(asked, deadline_s, longest)
    count = whole(asked.requests, "--requests", least=100, most=1_000_000)
    seeds = range(asked.seed * SEEDS_APART, asked.seed * SEEDS_APART + whole(asked.runs, "--runs", least=1, most=1_000))
    basis = (
        f"{traffic.per_s:g} requests/s of {traffic.prompt_tokens} prompt and {traffic.output_tokens} output tokens "
        f"({traffic.shape}), due after {in_words(deadline_s)}; {len(seeds)} x {count:,} requests; "
        f"engine: {engine.engine.name}"
    )
    return [traffic.arrivals(seed, count) for seed in seeds], basis


def _drawn(asked: Asked) -> Callable[[str, int | None], int | None]:
    """Draws outputs of the queue's learnt lengths; the same for the same seed."""
    known, chance = asked.learnt or Lengths({}, None, None), random.Random(f"lengths:{asked.seed}")  # noqa: S311
    return lambda tenant, limit: known.output(tenant, limit, chance, asked.lengths)


def _traffic(asked: Asked, deadline_s: float | None, longest: int) -> Traffic:
    if asked.rate is None:
        raise InvalidRequest("give requests per second, or a recorded --trace", "--rate")
    for name, tokens in (("--prompt-tokens", asked.prompt_tokens), ("--output-tokens", asked.output_tokens)):
        if tokens is None:
            raise InvalidRequest("give the mean length, a recorded --trace, or a --queue that has learnt lengths", name)
    traffic = Traffic(
        number(asked.rate, "--rate", above=True, most=1_000_000),
        whole(asked.prompt_tokens, "--prompt-tokens", least=1, most=10_000_000),
        whole(asked.output_tokens, "--output-tokens", least=1, most=10_000_000),
        deadline_s,
        asked.lane,
        asked.lengths,
        longest,
    )
    if traffic.prompt_tokens + traffic.output_tokens > longest:
        text = f"with the prompt, {traffic.prompt_tokens + traffic.output_tokens} tokens are more than the engine's "
        raise InvalidRequest(f"{text}max_model_len, {longest}", "--output-tokens")
    return traffic


def _fleet(engine: EngineProfile, batch_size: int | None) -> Fleet:
    """A fleet of one worker of this kind, with the environment's settings of worker and queue."""
    queue, worker = load(QueueSettings), load(WorkerSettings)
    return Fleet(
        engine,
        1,
        PREFETCH,
        worker.batch_size if batch_size is None else whole(batch_size, "--batch-size", most=100_000),
        queue.shares,
        queue.patience_ms / 1000,
    )
