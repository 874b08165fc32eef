"""Decides the next step of a webhook after an attempt. Pure: answer, time and random number are arguments.

`give_up_unattempted` and `decide` return the `Settlement` that `deliverer` records.
"""

from __future__ import annotations

import email.utils
from collections.abc import Sequence
from dataclasses import dataclass

from streamfleet.gateway.webhook_messages import Ending, Reason, Settlement

DELAYS_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Waits between attempts that the Standard Webhooks specification suggests: ten attempts over about three days."""
LIFE_MS = 432_000_000
"""Age of an event after which no attempt is made: five days, so that a receiver's Retry-After cannot stretch it on."""
JITTER = 0.2
"""Up to this share is added to a delay at random, so that webhooks that failed together are not tried together."""
MOST_WAIT_MS = 86_400_000
"""Longest delay that a receiver may ask for."""
REFUSED_MS, REFUSED_GROWTH, MOST_REFUSALS = 1_000, 1.25, 32
"""First pause after a refusal by one gateway's settings, while others may send it, its growth, and most refusals: they
last for about one and a half hours."""
GONE, ASK_LATER = 410, frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of an attempt.

    Attributes:
        status: HTTP status; 0 if no answer came.
        error: reason in our own words; empty if a status came.
        retry_after: the header, as it came.
        refused: True if this gateway's settings forbid the receiver's address; another's may allow it.
        forbidden: True if no gateway's settings can allow it.
    """

    status: int = 0
    error: str = ""
    retry_after: str = ""
    refused: bool = False
    forbidden: bool = False


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number and times of attempts.

    Attributes:
        delays_s: pauses between attempts; there is one attempt more than pauses.
        life_ms: age of the event after which no attempt is made.
    """

    delays_s: Sequence[float] = DELAYS_S
    life_ms: int = LIFE_MS

    @property
    def attempts(self) -> int:
        """Most attempts."""
        return len(self.delays_s) + 1


def decide(
    answer: Answer,
    attempt: int,
    since_ms: int,
    now_ms: int,
    retry_policy: RetryPolicy,
    chance: float,
    refusals: int = 0,
) -> Settlement:
    """Returns the outcome of a delivery by an answer.

    Args:
        answer: of the receiver.
        attempt: number of the attempt, from 1.
        since_ms: when the event was announced, epoch ms.
        now_ms: epoch ms.
        retry_policy: number and times of attempts.
        chance: random number from 0 to 1, for the jitter.
        refusals: number of refusals by gateways' settings before this attempt.
    """
    if 200 <= answer.status < 300:
        return Settlement(Ending.DELIVERED, status=answer.status)
    error = answer.error or f"the receiver answered {answer.status}"

    def dead(reason: Reason) -> Settlement:
        return Settlement(Ending.DEAD, reason=reason, status=answer.status, error=error)

    if answer.refused:
        pause_ms = round(REFUSED_MS * REFUSED_GROWTH ** min(refusals, MOST_REFUSALS) * (1 + JITTER * chance))
        late = now_ms + pause_ms - since_ms > retry_policy.life_ms
        over = late or answer.forbidden or refusals >= MOST_REFUSALS
        return dead(Reason.REFUSED) if over else Settlement(Ending.BACK, pause_ms, Reason.REFUSED, error=error)
    if answer.status == GONE:
        return dead(Reason.GONE)
    if attempt >= retry_policy.attempts:
        return dead(Reason.ATTEMPTS)
    delay_ms = round(retry_policy.delays_s[attempt - 1] * 1000 * (1 + JITTER * chance))
    if answer.status in ASK_LATER:
        delay_ms = max(delay_ms, retry_after_ms(answer.retry_after, now_ms))
    if now_ms + delay_ms - since_ms > retry_policy.life_ms:
        return dead(Reason.AGE)
    return Settlement(Ending.LATER, delay_ms, status=answer.status, error=error)


def give_up_unattempted(attempt: int, since_ms: int, now_ms: int, retry_policy: RetryPolicy) -> Settlement | None:
    """Returns the outcome of a delivery that must not be tried; None if it may be."""
    if attempt > retry_policy.attempts:
        text = "the gateways that made its last attempts died in the middle of them"
        return Settlement(Ending.DEAD, reason=Reason.LOST, error=text)
    if now_ms - since_ms > retry_policy.life_ms:
        return Settlement(Ending.DEAD, reason=Reason.AGE, error="it was not delivered within its life")
    return None


def retry_after_ms(header: str, now_ms: int) -> int:
    """Returns the delay in a Retry-After header, in seconds or as a date; 0 for none or an invalid one."""
    text = header.strip()
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return min(MOST_WAIT_MS, int(text) * 1000)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        return max(0, min(MOST_WAIT_MS, round(moment.timestamp() * 1000) - now_ms))
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0
