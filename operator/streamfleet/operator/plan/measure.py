"""Measures an engine: sends waves of requests through a live queue, one wave after the other, and fits a profile.

A wave is a group of requests that start together in an engine. It takes one prefill for all prompts, then steps, first
with all requests and then with fewer as the shorter ones end. Its duration is linear in the unknowns: the prefill time
of a token, and the step times at a few numbers of sequences, the knots (linear in between, as in `Profile.step_s`). So
all waves together determine the unknowns, by least squares over the simulated engine's model. Errors are relative to a
wave's duration, so short and long waves count alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from streamfleet.common.errors import StreamfleetError
from streamfleet.common.results import Result
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.fleet import WorkerView
from streamfleet.operator.plan.profile import NO_LIMIT, EngineProfile
from streamfleet.operator.snapshot import read_workers
from streamfleet.producer.client import Client
from streamfleet.worker.engine.simulated_profile import Profile

WORDS = tuple(
    word
    for line in (
        "the and for are but not you all any can her was one our out day get has him his how man new now old see two",
        "who boy did its let put say she too use air big cat dog eat far had ice job key law map net oil pay red sea",
    )
    for word in line.split()
)
"""Words that are one token each in most vocabularies, with the space before."""
SHORTER = 4
"""Factor by which short prompts and answers are shorter; the difference separates prefill and steps."""
LEAST_OUTPUT, LEAST_PROMPT = 4, 2
WAVE_S = 1_800.0
NOTHING_LEFT = 1e-9


class CannotMeasure(StreamfleetError):
    """The queue is not suited for measuring, or the measurement failed; the message tells the remedy."""


class WaveShape(NamedTuple):
    """A wave to send: a number of equal requests at once."""

    together: int
    prompt_tokens: int
    output_tokens: int


def shapes(prompt_tokens: int, output_tokens: int, up_to: int, rounds: int) -> list[WaveShape]:
    """Waves of 1, 2, 4, … and `up_to` requests, with long and short lengths; repeated `rounds` times."""
    short_prompt = max(LEAST_PROMPT, prompt_tokens // SHORTER)
    short_output = max(LEAST_OUTPUT, output_tokens // SHORTER)
    counts = [count for exponent in range(20) if (count := 2**exponent) < up_to] + [up_to]
    lengths = ((prompt_tokens, output_tokens), (prompt_tokens, short_output), (short_prompt, short_output))
    return [WaveShape(count, *pair) for _ in range(rounds) for count in counts for pair in lengths]


async def _lone_worker(broker: OperatorBroker) -> WorkerView:
    """The only worker of the queue, which must be idle.

    Raises:
        CannotMeasure: there is no worker, more than one, or the queue has requests.
    """
    queue = broker.keys.queue
    own = "start one alone on a queue of its own (streamfleet worker --queue measure …), and measure with that --queue"
    outstanding = (await broker.audit()).outstanding
    if outstanding:
        raise CannotMeasure(f"queue {queue} has {outstanding} requests, which would be in the way: wait, or {own}")
    alive = [worker for worker in await read_workers(broker) if worker.alive]
    if len(alive) != 1:
        raise CannotMeasure(f"queue {queue} has {len(alive)} workers; one engine is measured at a time: {own}")
    if not alive[0].takes_requests or not alive[0].slots:
        raise CannotMeasure(f"worker {alive[0].name} takes no requests ({alive[0].why_not}): wait until it is ready")
    return alive[0]


class Measurement:
    """Runs waves on one worker.

    Args:
        client: client of its queue.
        worker: the queue's only worker.
    """

    def __init__(self, client: Client, worker: WorkerView) -> None:
        self._client, self._worker = client, worker
        # Different prompts each time, because a prefix cache may outlive a measurement.
        self._chance = random.Random()  # noqa: S311 - not for secrets

    async def run(self, wanted: Sequence[WaveShape], shown: Callable[[WaveShape], None]) -> list[Wave]:
        """Run the waves in order, after a short one for the engine's one-time work.

        Args:
            wanted: waves to send.
            shown: called after each wave.

        Raises:
            CannotMeasure: a request failed, another worker came, or the requests did not run together.
        """
        most = max(wanted)
        await self._wave(WaveShape(most.together, LEAST_PROMPT, LEAST_OUTPUT))
        found = []
        for shape in wanted:
            found.append(wave_of(await self._wave(shape)))
            shown(shape)
        return found

    async def _wave(self, shape: WaveShape) -> list[Result]:
        asks = [{"body": self._body(shape), "lane": "critical"} for _ in range(shape.together)]
        handles = await self._client.enqueue_many(asks)
        try:
            arrived = self._client.as_completed(handles, timeout=WAVE_S)
            return [self._checked(result) async for result in arrived]
        except BaseException:
            for handle in handles:
                with suppress(StreamfleetError):
                    await handle.cancel()
            raise

    def _checked(self, result: Result) -> Result:
        if not result.ok:
            said = (result.error or {}).get("message", "no message")
            raise CannotMeasure(
                f"a request {result.status}: {said}. Ask for less with --prompt-tokens, --output-tokens"
            )
        if result.worker != self._worker.name:
            raise CannotMeasure(f"worker {result.worker} answered beside {self._worker.name}: measure one alone")
        return result

    def _body(self, shape: WaveShape) -> dict[str, Any]:
        words = " ".join(self._chance.choices(WORDS, k=shape.prompt_tokens))
        body = {"prompt": words, "max_tokens": shape.output_tokens, "ignore_eos": True, "temperature": 0}
        return {"model": self._worker.models[0], **body} if self._worker.models else body


def wave_of(results: Sequence[Result]) -> Wave:
    """Compute a wave from its results.

    Raises:
        CannotMeasure: not all of its requests were in the engine before the first one ended.
    """
    times = list(_stays(results))
    began_s, ended_s = [began for began, _ in times], [ended for _, ended in times]
    running = sum(began < min(ended_s) for began in began_s)
    if running < len(times):
        raise CannotMeasure(
            f"of {len(times)} requests only {running} ran together: the worker takes no more (BATCH_SIZE, or its KV "
            f"cache), so measure with --up-to {running}; or ask for longer answers (--output-tokens)"
        )
    return Wave(
        span_s=max(ended_s) - min(began_s),
        prompt_tokens=sum(_used(result, "prompt_tokens") for result in results),
        lengths=tuple(max(1, _used(result, "completion_tokens")) for result in results),
        pickup_ms=min((result.timings.queued_ms or 0.0) + (result.timings.waited_ms or 0.0) for result in results),
    )


def _stays(results: Sequence[Result]) -> Iterator[tuple[float, float]]:
    """Start and end of each request in the engine, epoch seconds."""
    for result in results:
        timings, enqueued_ms = result.timings, float(result.fields["enqueued_ms"])
        before_ms = (timings.queued_ms or 0.0) + (timings.waited_ms or 0.0)
        yield (enqueued_ms + before_ms) / 1000, (enqueued_ms + (timings.total_ms or 0.0)) / 1000


def _used(result: Result, name: str) -> int:
    value = (result.usage or {}).get(name)
    if not isinstance(value, int):
        raise CannotMeasure(f"the engine does not say its {name} (usage), without which nothing can be fitted")
    return value


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """The options of `streamfleet plan measure`; see its help."""

    prompt_tokens: int = 256
    output_tokens: int = 64
    up_to: int | None = None
    rounds: int = 2
    name: str | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None


async def measure_engine(
    client: Client, options: MeasureOptions, shown: Callable[[int, int, WaveShape], None] = lambda *_: None
) -> EngineProfile:
    """Measure the engine of the queue's only worker.

    Args:
        client: client of the queue.
        options: options of the measurement.
        shown: called with the number of finished waves, their total, and the last one.

    Raises:
        CannotMeasure: the worker is not alone and idle, or a wave went wrong.
        BadFit: the times contradict each other.
    """
    worker = await _lone_worker(OperatorBroker.of(client.broker))
    slots = min(options.up_to or worker.slots or 1, worker.slots or 1)
    wanted = shapes(options.prompt_tokens, options.output_tokens, slots, options.rounds)
    done = 0

    def one_more(shape: WaveShape) -> None:
        nonlocal done
        done += 1
        shown(done, len(wanted), shape)

    waves = await Measurement(client, worker).run(wanted, one_more)
    return _profile_of(waves, worker, slots, options)


def _profile_of(waves: Sequence[Wave], worker: WorkerView, slots: int, options: MeasureOptions) -> EngineProfile:
    """Fit a profile to the waves of a worker. Raises BadFit."""
    found = fit(waves)
    model = ", ".join(worker.models) or worker.engine
    engine = Profile(
        name=options.name or f"{model.rpartition('/')[2]} ({worker.engine})",
        prefill_s_per_token=found.prefill_s_per_token,
        throughput=found.throughput,
        slots=slots,
        kv_tokens=options.kv_tokens or NO_LIMIT,
        max_model_len=options.max_model_len or NO_LIMIT,
        jitter=0.0,
    )
    measured = {
        "made": datetime.now(UTC).date().isoformat(),
        "version": worker.version,
        "engine": worker.engine,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "waves": len(waves),
        "fit_error": round(found.error, 4),
    }
    return EngineProfile(engine, median(wave.pickup_ms for wave in waves if wave.together == 1), measured)


class BadFit(StreamfleetError):
    """The waves contradict each other; the message tells the remedy."""


@dataclass(frozen=True, slots=True)
class Wave:
    """One measured wave.

    Attributes:
        span_s: seconds from the first request's start in the engine to the last one's end.
        prompt_tokens: number of tokens of all its prompts.
        lengths: output tokens of each request.
        pickup_ms: ms from enqueueing to the engine, of the first request there.
    """

    span_s: float
    prompt_tokens: int
    lengths: tuple[int, ...]
    pickup_ms: float = 0.0

    @property
    def together(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of a fit.

    Attributes:
        prefill_s_per_token: seconds for each prompt token.
        steps_s: (sequences together, seconds of a step), ascending.
        error: median relative difference between a wave's time and the fit's.
    """

    prefill_s_per_token: float
    steps_s: tuple[tuple[int, float], ...]
    error: float

    @property
    def throughput(self) -> tuple[tuple[int, float], ...]:
        """(sequences together, output tokens per second of all), as in a profile."""
        return tuple((together, together / step_s) for together, step_s in self.steps_s)


def fit(waves: Sequence[Wave]) -> Fit:
    """Fit the prefill and step times to the waves.

    Args:
        waves: waves with different lengths of answers at each number of requests, to separate prefill and steps.

    Raises:
        BadFit: there is no solution, or a step time is not positive.
    """
    if not waves:
        raise BadFit("no wave was measured: measure again")
    knots = sorted({wave.together for wave in waves})
    rows = [_row(wave, knots) for wave in waves]
    spans_s = [wave.span_s for wave in waves]
    solved = least_squares(rows, spans_s)
    if solved is not None and solved[0] < 0:  # prompts too short to measure: their time is in the steps
        without = least_squares([row[1:] for row in rows], spans_s)
        solved = None if without is None else [0.0, *without]
    if solved is None or min(solved[1:]) <= 0:
        raise BadFit(
            "the measured times contradict each other: keep the machine free of other work, and measure again with "
            "more --output-tokens or --rounds"
        )
    errors = [
        abs(sum(part * value for part, value in zip(row, solved, strict=True)) / span_s - 1)
        for row, span_s in zip(rows, spans_s, strict=True)
    ]
    return Fit(solved[0], tuple(zip(knots, solved[1:], strict=True)), median(errors))


def _row(wave: Wave, knots: Sequence[int]) -> list[float]:
    """Coefficients of a wave's duration: prompt tokens, then steps at each knot."""
    row = [float(wave.prompt_tokens), *[0.0] * len(knots)]
    done = 0
    for gone, length in enumerate(sorted(wave.lengths)):
        for at, part in _parts(len(wave.lengths) - gone, knots):
            row[1 + at] += part * (length - done)
        done = length
    return row


def _parts(running: int, knots: Sequence[int]) -> list[tuple[int, float]]:
    """Knots that interpolate the step time at this number of sequences, with their weights."""
    if running <= knots[0]:
        return [(0, 1.0)]
    for at in range(1, len(knots)):
        low, high = knots[at - 1], knots[at]
        if running <= high:
            part = (running - low) / (high - low)
            return [(at - 1, 1 - part), (at, part)]
    return [(len(knots) - 1, 1.0)]


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Solve for the unknowns with the least relative error; None if the solution is not unique."""
    scaled = [[part / value for part in row] for row, value in zip(rows, values, strict=True)]
    size = len(rows[0])
    normal = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)] + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    whole = [normal[at][at] for at in range(size)]
    for column in range(size):
        # The rest of the diagonal is the part that no other unknown explains.
        if normal[column][column] <= NOTHING_LEFT * whole[column]:
            return None
        for other in range(size):
            if other != column:
                times = normal[other][column] / normal[column][column]
                normal[other] = [a - times * b for a, b in zip(normal[other], normal[column], strict=True)]
    return [normal[at][size] / normal[at][at] for at in range(size)]
