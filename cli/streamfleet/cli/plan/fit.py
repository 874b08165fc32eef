"""From measured waves to a profile: least squares over the engine's own model. Pure.

A wave is some requests that an engine begins together. It takes one prefill for all their prompts, and then steps: so
many with all of them in it, then fewer as the shorter ones end. With the prefill time of a token and the step time at a
few numbers of sequences as unknowns (between them a straight line, as `Profile.step_s` has it), that is linear, so all
waves together give the unknowns. Errors count relative to a wave's time: a short wave says as much as a long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from streamfleet.common.errors import StreamfleetError

NOTHING_LEFT = 1e-9


class BadFit(StreamfleetError):
    """The waves contradict each other; says what to do."""


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave, as it was measured.

    Attributes:
        span_s: from the first request's start in the engine to the last one's end.
        prompt_tokens: of all its prompts.
        lengths: output tokens of each.
        pickup_ms: from enqueueing to the engine, of the first that got there.
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
    """What the waves say.

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
        """(sequences together, output tokens per second of all), as a profile has it."""
        return tuple((together, together / step_s) for together, step_s in self.steps_s)


def fit(waves: Sequence[Wave]) -> Fit:
    """The times that explain the waves best.

    Args:
        waves: with different lengths of answers at each number of requests, or prefill and steps cannot be told apart.

    Raises:
        BadFit: they give no times, or a step time of nothing.
    """
    if not waves:
        raise BadFit("no wave was measured: measure again")
    knots = sorted({wave.together for wave in waves})
    rows = [_row(wave, knots) for wave in waves]
    spans_s = [wave.span_s for wave in waves]
    solved = least_squares(rows, spans_s)
    if solved is not None and solved[0] < 0:  # prompts too short to be seen: their time is in the steps
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
    """How often each unknown is in a wave's time: prompt tokens, then steps at each knot."""
    row = [float(wave.prompt_tokens), *[0.0] * len(knots)]
    done = 0
    for gone, length in enumerate(sorted(wave.lengths)):
        for at, part in _parts(len(wave.lengths) - gone, knots):
            row[1 + at] += part * (length - done)
        done = length
    return row


def _parts(running: int, knots: Sequence[int]) -> list[tuple[int, float]]:
    """Which knots the step time at so many sequences is made of, and how much of each."""
    if running <= knots[0]:
        return [(0, 1.0)]
    for at in range(1, len(knots)):
        low, high = knots[at - 1], knots[at]
        if running <= high:
            part = (running - low) / (high - low)
            return [(at - 1, 1 - part), (at, part)]
    return [(len(knots) - 1, 1.0)]


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Unknowns whose products with the rows come closest to the values, relative to these; None where many would do."""
    scaled = [[part / value for part in row] for row, value in zip(rows, values, strict=True)]
    size = len(rows[0])
    normal = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)] + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    whole = [normal[at][at] for at in range(size)]
    for column in range(size):
        # What is left of the diagonal is what no other unknown explains.
        if normal[column][column] <= NOTHING_LEFT * whole[column]:
            return None
        for other in range(size):
            if other != column:
                times = normal[other][column] / normal[column][column]
                normal[other] = [a - times * b for a, b in zip(normal[other], normal[column], strict=True)]
    return [normal[at][size] / normal[at][at] for at in range(size)]
