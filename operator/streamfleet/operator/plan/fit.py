"""Fits a profile to measured waves: least squares over the simulated engine's model. Pure.

A wave is a group of requests that start together in an engine. It takes one prefill for all prompts, then steps, first
with all requests and then with fewer as the shorter ones end. Its duration is linear in the unknowns: the prefill time
of a token, and the step times at a few numbers of sequences, the knots (linear in between, as in `Profile.step_s`). So
all waves together determine the unknowns. Errors are relative to a wave's duration, so short and long waves count
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from streamfleet.common.errors import StreamfleetError

NOTHING_LEFT = 1e-9


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
