"""Results of a batch of requests, and their figures."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.core.processes import cpu_seconds
from bench.core.rounds import percentile
from bench.engine.work import Body


@dataclass(frozen=True)
class Row:
    """One request; times in ms.

    Attributes:
        prompt_tokens, output_tokens: counted by the engine.
        first_ms: time from submission to the first token; None if this contender does not show it.
        between_ms: mean time between two tokens; None as above.
        total_ms: time from submission to the whole answer.
    """

    prompt_tokens: int
    output_tokens: int
    first_ms: float | None
    between_ms: float | None
    total_ms: float


@dataclass(frozen=True)
class Batch:
    """One batch of requests, all submitted at once.

    Attributes:
        rows: its requests.
        wall_s: time from the first submission to the last answer.
        front_s: CPU time of the front end's process meanwhile: all but the engine core's, and the driver.
    """

    rows: Sequence[Row]
    wall_s: float
    front_s: float

    def figures(self) -> dict[str, float]:
        """Name to figure, without figures of tokens that were not seen."""
        found = {
            "tokens_per_s": sum(row.output_tokens for row in self.rows) / self.wall_s,
            "total_ms_p50": median(row.total_ms for row in self.rows),
            "front_ms_per_request": self.front_s * 1000 / len(self.rows),
        }
        first = [row.first_ms for row in self.rows if row.first_ms is not None]
        between = [row.between_ms for row in self.rows if row.between_ms is not None]
        if first and between:
            found |= {
                "first_ms_p50": median(first),
                "first_ms_p99": percentile(first, 0.99),
                "between_ms_p50": median(between),
                "between_ms_p99": percentile(between, 0.99),
            }
        return found


class OtherWork(RuntimeError):
    """A contender did not do the work that it was given, so its figures cannot be compared."""


async def timed(pid: int, run: Callable[[], Awaitable[Sequence[Row]]]) -> Batch:
    """Run a batch and measure it; `pid` is the front end's process."""
    cpu_s, began = cpu_seconds(pid), time.perf_counter()
    rows = await run()
    wall_s = time.perf_counter() - began
    return Batch(rows, wall_s, cpu_seconds(pid) - cpu_s)


def check_output(batch: Batch, asked: Sequence[Body]) -> None:
    """Check that every answer has the number of tokens that was asked for.

    Raises:
        OtherWork: an answer has another number.
    """
    wanted = sorted(body["max_tokens"] for body in asked)
    if sorted(row.output_tokens for row in batch.rows) != wanted:
        raise OtherWork(f"{len(batch.rows)} answers of other lengths than the {len(asked)} that were asked for")


def check_same_work(batches: Mapping[str, Batch]) -> None:
    """Check that contenders read and wrote the same number of tokens.

    Raises:
        OtherWork: they did not; the message has the numbers.
    """
    done = {
        name: (sum(row.prompt_tokens for row in batch.rows), sum(row.output_tokens for row in batch.rows))
        for name, batch in batches.items()
    }
    if len(set(done.values())) > 1:
        raise OtherWork(f"tokens read and written differ: {done}")


def between_ms(total_ms: float, first_ms: float, output_tokens: int) -> float | None:
    """Mean time between tokens; None for a single one."""
    return (total_ms - first_ms) / (output_tokens - 1) if output_tokens > 1 else None
