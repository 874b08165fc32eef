"""Chooses the pieces that fit into the remaining time, and runs them: valuable steps first, engine by engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

Found: TypeAlias = dict[str, Any]
"""Figures of a piece, as JSON has them."""


class OutOfTime(KeyboardInterrupt):
    """The time is over. Not an `Exception`, so that asyncio and pieces do not handle it as a failure of theirs."""


@dataclass(frozen=True)
class Piece:
    """A measurement that needs one engine.

    Attributes:
        name: key of its result.
        step: number of its step; a smaller one is more valuable.
        engine: engine that it needs. Pieces of one engine run in a row.
        seconds: its duration, without the engine's start.
        measure: returns figures, given the running engine.
    """

    name: str
    step: int
    engine: str
    seconds: float
    measure: Callable[[Any], Found]


def fitting(left: Sequence[Piece], time_s: float, start_s: float, running: str = "") -> list[Piece]:
    """The pieces that fit into a time: whole steps, the most valuable first, then pieces of steps that do not fit.

    Args:
        time_s: remaining time.
        start_s: start time of an engine.
        running: engine that needs no start.
        running: engine that needs no start.
    """
    chosen: list[Piece] = []
    by_value = sorted(left, key=lambda piece: piece.step)
    whole = [list(pieces) for _, pieces in groupby(by_value, lambda piece: piece.step)]
    for more in [*whole, *([piece] for piece in by_value)]:
        wanted = [piece for piece in left if piece in chosen or piece in more]
        starts = len({piece.engine for piece in wanted} - {running})
        if starts * start_s + sum(piece.seconds for piece in wanted) <= time_s:
            chosen = wanted
    return chosen


@dataclass
class Prover:
    """Runs pieces within a time.

    Attributes:
        engines: functions that start the engines, by name.
        budget_s: time for everything.
        start_s: expected start time of an engine; after a start, that of the last one.
        keep: gets each piece's name with its result: its figures and `took_s`, or `failed` with the reason.
        tell: gets lines of progress.
        clock: monotonic, in seconds.
    """

    engines: Mapping[str, Callable[[], AbstractContextManager[Any]]]
    budget_s: float
    start_s: float
    keep: Callable[[str, Found], None]
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def run(self, pieces: Sequence[Piece]) -> None:
        """Run the pieces that fit, in their order."""
        self._began = self.clock()
        for engine, of_engine in groupby(pieces, lambda piece: piece.engine):
            group = list(of_engine)
            after = list(pieces)[list(pieces).index(group[-1]) + 1 :]
            if self._fitting([*group, *after], "", group):
                self._with_engine(engine, group, after)

    def _fitting(self, left: Sequence[Piece], running: str, of: Sequence[Piece]) -> list[Piece]:
        time_s = self.budget_s - (self.clock() - self._began)
        fit = fitting(left, time_s, self.start_s, running)
        return [piece for piece in of if piece in fit]

    def _with_engine(self, engine: str, group: Sequence[Piece], after: Sequence[Piece]) -> None:
        doing, began = group[0].name, self.clock()
        self.tell(f"starting {engine}")
        try:
            with self.engines[engine]() as running:
                self.start_s = self.clock() - began
                self.tell(f"{engine} is up after {self.start_s:.0f} s")
                for number, piece in enumerate(group):
                    doing = piece.name
                    if self._fitting([*group[number:], *after], engine, [piece]):
                        self.tell(f"{doing} (about {piece.seconds:.0f} s)")
                        began = self.clock()
                        found = piece.measure(running)
                        self.keep(doing, {**found, "took_s": round(self.clock() - began, 1)})
                    doing = f"ending {engine}"  # takes no result from a piece that has one
        except Exception as error:  # noqa: BLE001 - the other engines' pieces must still run
            self.keep(doing, {"failed": f"{type(error).__name__}: {error}"})
            self.tell(f"{doing} FAILED: {error}")
