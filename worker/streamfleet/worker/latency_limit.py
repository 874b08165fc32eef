"""Limit of concurrent requests that keeps latency at a target, adjusted by finished requests. Pure.

The adaptive batching policy reports each request that starts and ends, with its length in tokens, and reads the limit.
`LatencyLimit` explains how the limit follows the latency, and why it converges.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

FIRST_LIMIT = 4
"""The limit at the start: from one, every start of a worker would waste time; few engines are overloaded by four."""
SHORTEST_ROUND, LONGEST_ROUND = 4, 32
"""Finished requests of a round; between them, as many as the limit."""
COMFORT = 0.95
"""Below this share of the target it grows; between there and the target it rests."""
PROBE = 0.25
"""Growth of a round at least, in requests: else a limit of 1 that 1.5 would suit could never show that it suits 2."""
FEWEST, REMEMBERED = 8, 128
"""Requests that the median length is taken of; more where the engine holds many."""
PROMPT_SHARE = 1 / 32
"""Work in reading one token, as a share of that in writing one. The order of magnitude is enough: it only matters while
the mix of long prompts and long answers changes."""


def work(prompt_tokens: int, output_tokens: int, sequences: int = 1) -> float:
    """Length of a request, in tokens written one after the other; at least 1, also for embeddings.

    Args:
        prompt_tokens: tokens read.
        output_tokens: tokens written, by all sequences together.
        sequences: number of sequences, which run side by side.
    """
    return max(1.0, output_tokens / max(1, sequences)) + prompt_tokens * PROMPT_SHARE


@dataclass(eq=False, slots=True)
class Run:
    """One request in the engine.

    Attributes:
        began_s: time at which it went in, monotonic seconds.
        spent_s: request-seconds that the engine had spent by then, on all requests.
        work: its length; None until it is finished.
    """

    began_s: float
    spent_s: float
    work: float | None = None


class LatencyLimit:
    """Limit of concurrent requests and the measurements behind it.

    Of every engine one can see when a request went in, when it came out, and its usage in tokens. The run time alone
    says little: one answer can take a hundred times as long as another in an idle engine. But an engine with continuous
    batching makes one token for each sequence in each of its steps, so the time per token depends on the batch, not on
    the request. Therefore the latency that is compared with the target is
        time per token, of the requests that finished in this round   x   tokens of the median request

    which is the run time of a request of the usual length. A long answer has more tokens and takes more time, so it
    does not look like overload. Long answers do not move the median either, as long as they are fewer than half.

    The limit follows two known algorithms. Once a round, it compares the measured value with the wanted one, as TCP
    Vegas does once a round trip (Brakmo and Peterson, "TCP Vegas", 1994). It changes by a gradient, wanted latency over
    measured latency, down to half of the limit at most and without growth while the limit is not used up, as Netflix's
    concurrency-limits does (Gradient2Limit). Here the wanted latency is given, so it need not be learnt without load.

    The limit converges: each finished request knows its company, the mean number of requests in the engine during its
    run. If latency grows with company, but at most in proportion (a step of an engine has a fixed cost and a cost for
    each sequence), the value

        right  =  company  x  target / latency

    lies between the company and the wanted limit, from either side. So no step overshoots. Requests from before the
    last step, which had another company, cannot mislead: a decrease is not made twice because of them. Growth goes only
    half of the way (as a ratio), so that latency may even grow with the square of company.

    Call `started` once for each request that runs, then one of `finished`, `stopped` or `left` once, in the order of
    time.

    Args:
        target_s: wanted run time of a request of the usual length, in seconds.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._limit, self._most = float(FIRST_LIMIT), math.inf
        self._running = self._peak = 0
        self._now_s = self._spent_s = 0.0
        self._started: deque[Run] = deque()
        self.latency_s: float | None = None
        self._begin_round()

    @property
    def value(self) -> int:
        """Most requests at once; at least 1."""
        return int(self._limit)

    @property
    def out_of_reach(self) -> bool:
        """True if requests of the usual length take longer than the target even alone in the engine."""
        return self.value == 1 and self.latency_s is not None and self.latency_s > self._target_s

    def bound(self, most: int) -> None:
        """Cap the limit at `most`, which is at least 1."""
        self._most = most
        self._limit = min(self._limit, most)

    def started(self, now: float) -> Run:
        """Record that a request starts to run."""
        self._pass_time(now)
        self._running += 1
        self._peak = max(self._peak, self._running)
        run = Run(now, self._spent_s)
        self._started.append(run)
        if len(self._started) > self._running + max(REMEMBERED, 4 * self._running):
            self._started.popleft()
        return run

    def finished(self, run: Run, work: float, now: float) -> bool:
        """Record that a request ran to its end. Returns True if this ended a round, which adjusts the limit."""
        self._leave(now)
        run.work = work
        return self._count(run, work, now)

    def stopped(self, run: Run, most_work: float, now: float) -> bool:
        """Record that a request ran out of time. It counts if it is too slow even for its largest length, `most_work`.

        Otherwise an engine so overloaded that nothing finishes would never be noticed.
        """
        self._leave(now)
        self._forget(run)
        usual = self._usual_work()
        if usual is None or usual * (now - run.began_s) / most_work <= self._target_s:
            return False
        return self._count(run, most_work, now)

    def left(self, run: Run, now: float) -> None:
        """Record that a request ended in a way that says nothing about the engine's speed."""
        self._leave(now)
        self._forget(run)

    def _begin_round(self) -> None:
        self._count_in_round, self._peak = 0, self._running
        self._run_s = self._work = self._company_s = 0.0

    def _pass_time(self, now: float) -> None:
        self._spent_s += self._running * (now - self._now_s)
        self._now_s = now

    def _leave(self, now: float) -> None:
        self._pass_time(now)
        self._running -= 1

    def _forget(self, run: Run) -> None:
        if run in self._started:
            self._started.remove(run)

    def _count(self, run: Run, work: float, now: float) -> bool:
        self._count_in_round += 1
        self._run_s += now - run.began_s
        self._company_s += self._spent_s - run.spent_s
        self._work += work
        if self._count_in_round < min(max(self.value, SHORTEST_ROUND), LONGEST_ROUND):
            return False
        usual = self._usual_work()
        if usual is not None and self._run_s > 0:
            self._move(usual * self._run_s / self._work, self._company_s / self._run_s)
        self._begin_round()
        return usual is not None

    def _usual_work(self) -> float | None:
        """Length of the median request, of those started before the ones that run now; None while they are too few.

        The order of starts counts, because short requests finish first: while the limit grows, only they would be seen.
        Those
        of them that still run count as longer than the rest.
        """
        earlier = len(self._started) - self._running
        if earlier < FEWEST:
            return None
        usual = median(
            math.inf if run.work is None else run.work for run, _ in zip(self._started, range(earlier), strict=False)
        )
        return None if math.isinf(usual) else usual

    def _move(self, latency_s: float, company: float) -> None:
        self.latency_s = latency_s
        right = company * self._target_s / latency_s
        if latency_s > self._target_s:
            self._limit = max(1.0, self._limit / 2, min(self._limit, math.floor(right)))
        elif latency_s <= self._target_s * COMFORT and self._peak >= self.value:
            half_way = math.sqrt(self._limit * max(right, self._limit))
            self._limit = min(self._most, 2 * self._limit, max(half_way, self._limit + PROBE))
