"""Limit of requests at once to a server that refuses what is too much for it. Pure.

The engine reports each request that is sent, answered or refused as busy, and sends no more at once than the limit.
`ServerLimit` names the algorithm.
"""

from __future__ import annotations

CUT = 0.7
"""A busy answer leaves this part of the limit, as in CUBIC: half, as in RFC 5681, would leave a third of the server
idle on average."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0
"""Pauses of a worker that is refused its only request: as TCP's retransmission timer, each is twice the former."""


class ServerLimit:
    """Limit that finds how many requests a server takes, and shares that with other workers.

    The algorithm is TCP's congestion control (RFC 5681): a busy answer is a lost packet, a round of as many answers as
    the limit is a round trip. A busy answer cuts the limit by a factor; later answers to what was sent before the cut
    change nothing, so that one burst counts once. Each round without a busy answer adds 1 (congestion avoidance).
    Several workers thus converge to equal parts, because the factor takes more from the larger one. Beyond the limit at
    which the server was busy last, growth doubles each round (slow start; CUBIC, RFC 9438, searches there too): that
    limit holds no longer. A round in which less than half of the limit was used tells nothing (RFC 7661).

    Args:
        most: limit at the start, and the highest.

    Attributes:
        running: number of requests that are sent and not ended.
        pause_until: monotonic seconds before which nothing should be sent; 0 for none.
        still_until: monotonic seconds of the last busy answer, with the wait that it asked for: nothing grows before.
    """

    def __init__(self, most: int) -> None:
        self._most, self._limit, self._busy_at = most, float(most), float(most)
        self.still_until = self._pause_s = self.pause_until = 0.0
        self._cuts = self.running = self._answers = self._peak = 0
        self._growth = 1

    @property
    def value(self) -> int:
        """Most requests at once; at least 1."""
        return int(self._limit)

    @property
    def limited(self) -> bool:
        """True if a busy answer made the limit lower than at the start, and it has not grown beyond that since."""
        return self.value < self._most and self._limit <= self._busy_at

    def sent(self) -> int:
        """Record that a request is sent. Returns what `answered` or `busy` has to be told of it."""
        self.running += 1
        self._peak = max(self._peak, self.running)
        return self._cuts

    def ended(self) -> None:
        """Record that a request ended, in whatever way."""
        self.running -= 1

    def answered(self, sent: int, now: float) -> None:
        """Record an answer. At the end of a round the limit may grow."""
        self._pause_s = self.pause_until = 0.0
        self._answers += sent == self._cuts
        if self._answers < self.value:
            return
        growth, used = self._growth, 2 * self._peak >= self.value
        self._begin_round()
        if not used or now < self.still_until:
            return
        self._limit = min(float(self._most), self._limit + growth)
        self._growth = 2 * growth if self._limit > self._busy_at + 1 else 1

    def busy(self, sent: int, now: float, wait_s: float = 0.0) -> None:
        """Record a busy answer, with the wait that the server asks for: nothing grows meanwhile."""
        self.still_until = max(self.still_until, now + wait_s)
        if sent != self._cuts:
            return
        if self.value == 1:
            self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self.pause_until = now + self._pause_s
        self._busy_at = self._limit
        self._change(max(1.0, self._limit * CUT))

    def restart(self) -> None:
        """Begin at 1, with slow start, as TCP does after a time-out: the server was away."""
        self._busy_at = 0.0
        self._change(1.0)

    def _change(self, limit: float) -> None:
        self._limit, self._growth = limit, 1
        self._cuts += 1
        self._begin_round()

    def _begin_round(self) -> None:
        self._answers, self._peak = 0, self.running
