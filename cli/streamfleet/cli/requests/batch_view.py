"""Progress of a batch: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.durations import in_words
from streamfleet.producer.batch import Progress

LINE_EVERY_S = 10.0
PACE_SPAN_S = 30.0
RECORD_EVERY_S = 0.25


class Pace:
    """Speed over the last half minute.

    Args:
        now_s: start, seconds of a monotonic clock.
        done: units done at the start.
    """

    def __init__(self, now_s: float, done: int) -> None:
        self._points: deque[tuple[float, int]] = deque([(now_s, done)])

    def record(self, now_s: float, done: int) -> None:
        """Record the units done now."""
        self._points.append((now_s, done))
        while len(self._points) > 2 and self._points[1][0] <= now_s - PACE_SPAN_S:
            self._points.popleft()

    @property
    def per_second(self) -> float:
        """Units per second; 0 until it is known."""
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def left_s(self, left: int) -> float | None:
        """Estimated seconds for the rest; None while unknown."""
        speed = self.per_second
        return left / speed if speed > 0 else None


class BatchView:
    """Shows a batch's progress on stderr. A context manager.

    Args:
        console: output; stderr by default.
        clock: clock for rates.

    Attributes:
        latest: the newest progress, None before the first.
    """

    def __init__(self, console: Console | None = None, clock: Clock | None = None) -> None:
        self.latest: Progress | None = None
        self._console = console or Console(stderr=True)
        self._clock = clock or SystemClock()
        self._pace: Pace | None = None
        self._shown_s = self._recorded_s = self._clock.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Draw the bar a last time, and stop it."""
        if self._bar is not None:
            if self.latest is not None:
                self._draw(self._bar, self.latest)
            self._bar.stop()
            self._bar = None

    def show(self, progress: Progress) -> None:
        """Show the current progress; call this at every change."""
        now_s = self._clock.monotonic()
        self.latest = progress
        if self._pace is None:
            self._pace = Pace(now_s, progress.done)
            if self._console.is_terminal:
                self._bar = _start_bar(self._console)
        elif now_s - self._recorded_s >= RECORD_EVERY_S:
            self._recorded_s = now_s
            self._pace.record(now_s, progress.done)
        if self._bar is not None:
            self._draw(self._bar, progress)
        elif now_s - self._shown_s >= LINE_EVERY_S:
            self._shown_s = now_s
            self._console.print(f"batch: {describe(progress, self._pace)}", highlight=False, soft_wrap=True)

    def _draw(self, bar: Bar, progress: Progress) -> None:
        pace = self._pace
        bar.update(
            bar.task_ids[0],
            total=progress.total,
            completed=min(progress.done, progress.total),
            words=details(progress, pace) if pace is not None else "",
        )


def describe(progress: Progress, pace: Pace) -> str:
    """Progress as a line: ``120/1000 done, 3 failed, 40.1/s, about 22 s left``."""
    return f"{progress.done}/{progress.total} done, {details(progress, pace)}"


def details(progress: Progress, pace: Pace) -> str:
    """The text beside the bar."""
    left_s = pace.left_s(progress.left)
    parts = [f"{progress.failed} failed", f"{pace.per_second:.1f}/s"]
    if progress.left:
        parts.append("time left unknown" if left_s is None else f"about {in_words(max(1.0, left_s))} left")
    if progress.lane_full:
        parts.append("the lane is full: waiting for room")
    return ", ".join(parts)


def _start_bar(console: Console) -> Bar:
    bar = Bar(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
        console=console,
    )
    bar.add_task("batch", total=None, words="")
    bar.start()
    return bar
