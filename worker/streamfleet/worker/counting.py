"""Metrics of the requests that a worker ended, and of the room that its engine has.

`complete.py` makes a `Tally` for each batch of written outcomes. This module only writes to the process's metrics.
"""

from __future__ import annotations

import json
from collections import Counter

from streamfleet.common import metrics
from streamfleet.common.broker.types import RetryCode
from streamfleet.common.envelope import unknown_fields
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.results import cached_tokens, tokens_used
from streamfleet.worker.in_flight import InFlightRequest
from streamfleet.worker.outcome import Finished, HandedBack, Outcome, Postponed

_ENDED_BY_RETRYING = {
    RetryCode.DEAD: (Status.DEAD, metrics.Reason.ENGINE),
    RetryCode.EXPIRED: (Status.EXPIRED, metrics.Reason.DEADLINE),
}
_BY_CODE = {
    "too_expensive": metrics.Reason.TOO_EXPENSIVE,
    "not_allowed": metrics.Reason.NOT_ALLOWED,
    "internal_error": metrics.Reason.INTERNAL,
}


class Tally:
    """Counts a batch of requests whose outcomes are written; each counter changes once for the whole batch.

    Args:
        now: monotonic seconds, the same for all requests of the batch.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._ended: Counter[tuple[Lane, Status]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._cached_tokens = 0

    def finished(self, request: InFlightRequest, outcome: Finished) -> None:
        """Count a request that ended with this worker's outcome."""
        lane, status = request.claim.lease.lane, outcome.status
        self._count(request, lane, status)
        if outcome.first_token_ms is not None:
            metrics.FIRST_TOKEN.labels(lane, status).observe(outcome.first_token_ms / 1000)
        for kind, name in (("prompt", "prompt_tokens"), ("completion", "completion_tokens")):
            if (used := tokens_used(outcome.usage, name)) is not None:
                self._tokens[kind] += used
        self._cached_tokens += cached_tokens(outcome.usage)
        if outcome.resumed_tokens:
            metrics.TOKENS_RESUMED.inc(outcome.resumed_tokens)
        elif request.resume is not None:
            metrics.of(metrics.TOKENS_WASTED, "handed_back").inc(request.resume.tokens)
        if outcome.error and status is not Status.CANCELLED:
            metrics.of(metrics.DEAD_LETTERS, _reason(outcome)).inc()

    def given_up(self, request: InFlightRequest, code: RetryCode) -> None:
        """Count a request that ended instead of a retry: it has no attempt left, or its deadline is too near."""
        status, reason = _ENDED_BY_RETRYING[code]
        self._count(request, request.claim.lease.lane, status)
        metrics.of(metrics.DEAD_LETTERS, reason).inc()

    def close(self) -> None:
        """Add the counts to the metrics."""
        for labels, number in self._ended.items():
            metrics.of(metrics.FINISHED, *labels).inc(number)
        for kind, number in self._tokens.items():
            metrics.of(metrics.TOKENS, kind).inc(number)
        metrics.TOKENS_CACHED.inc(self._cached_tokens)

    def _count(self, request: InFlightRequest, lane: Lane, status: Status) -> None:
        self._ended[lane, status] += 1
        for meant, _ in unknown_fields(request.claim.fields):
            metrics.of(metrics.UNKNOWN_FIELDS, meant).inc()
        claimed_at, queued_s = request.claimed_at, (request.claimed_ms - request.enqueued_ms) / 1000
        metrics.TOTAL.labels(lane, status).observe(queued_s + self._now - claimed_at)


def count_wasted(outcome: Finished, why: str) -> None:
    """Count the tokens of an answer that nobody gets, as the engine reported them.

    Args:
        outcome: the discarded outcome.
        why: ``lease_lost``, or ``ended_before``: the request had a result already.
    """
    metrics.of(metrics.TOKENS_WASTED, why).inc(tokens_used(outcome.usage, "completion_tokens") or 0)


def how_it_ended(outcome: Outcome) -> str:
    """Returns the label of one attempt's run: its terminal status, or ``postponed``, ``released`` or ``lost``."""
    if isinstance(outcome, Finished):
        return outcome.status
    return "postponed" if isinstance(outcome, Postponed) else "released" if isinstance(outcome, HandedBack) else "lost"


def _reason(outcome: Finished) -> metrics.Reason:
    """Returns the reason by status and error code; the engine's own words never become a label."""
    if outcome.status is Status.EXPIRED:
        return metrics.Reason.DEADLINE
    by_status = metrics.Reason.REFUSED if outcome.http_status < 500 else metrics.Reason.ENGINE
    return _BY_CODE.get(str(json.loads(outcome.error)["error"].get("code")), by_status)
