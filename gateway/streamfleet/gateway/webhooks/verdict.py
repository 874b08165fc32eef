"""What becomes of a webhook after an attempt. Pure: the answer, the time and the chance are handed in."""

from __future__ import annotations

import email.utils
from collections.abc import Sequence
from dataclasses import dataclass

from streamfleet.common.gateway_webhooks import Ending, Reason, Settlement

JITTER = 0.2
"""Up to this share is added to a delay by chance: what failed together is not tried again together."""
MOST_WAIT_MS = 86_400_000
"""However long a receiver asks us to wait."""
GONE, ASK_LATER = 410, frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Answer:
    """What an attempt came to.

    Attributes:
        status: of HTTP; 0 where none came.
        error: what went wrong, in our own words; empty where a status came.
        retry_after: that header, as it came.
        refused: the receiver's address is not one that may be called.
    """

    status: int = 0
    error: str = ""
    retry_after: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """How often to try.

    Attributes:
        delays_s: between the attempts; there is one attempt more.
        life_ms: no attempt so long after the event.
    """

    delays_s: Sequence[float]
    life_ms: int

    @property
    def attempts(self) -> int:
        """How many are made at most."""
        return len(self.delays_s) + 1


def settle(answer: Answer, attempt: int, since_ms: int, now_ms: int, plan: Plan, chance: float) -> Settlement:
    """How a delivery ends with this answer.

    Args:
        answer: of the receiver.
        attempt: which this was, from 1.
        since_ms: when the event was announced, epoch ms.
        now_ms: epoch ms.
        plan: how often to try.
        chance: 0 to 1, for the jitter.
    """
    if 200 <= answer.status < 300:
        return Settlement(Ending.DELIVERED, status=answer.status)
    error = answer.error or f"the receiver answered {answer.status}"

    def dead(reason: Reason) -> Settlement:
        return Settlement(Ending.DEAD, reason=reason, status=answer.status, error=error)

    if answer.refused:
        return dead(Reason.REFUSED)
    if answer.status == GONE:
        return dead(Reason.GONE)
    if attempt >= plan.attempts:
        return dead(Reason.ATTEMPTS)
    delay_ms = round(plan.delays_s[attempt - 1] * 1000 * (1 + JITTER * chance))
    if answer.status in ASK_LATER:
        delay_ms = max(delay_ms, asked_to_wait_ms(answer.retry_after, now_ms))
    if now_ms + delay_ms - since_ms > plan.life_ms:
        return dead(Reason.AGE)
    return Settlement(Ending.LATER, delay_ms, status=answer.status, error=error)


def before_trying(attempt: int, since_ms: int, now_ms: int, plan: Plan) -> Settlement | None:
    """Why an attempt is not made at all; None for one that is."""
    if attempt > plan.attempts:
        text = "the gateways that made its last attempts died in the middle of them"
        return Settlement(Ending.DEAD, reason=Reason.LOST, error=text)
    if now_ms - since_ms > plan.life_ms:
        return Settlement(Ending.DEAD, reason=Reason.AGE, error="it was not delivered within its life")
    return None


def asked_to_wait_ms(header: str, now_ms: int) -> int:
    """What a Retry-After header asks for, seconds or a date; 0 for none, or one that cannot be read."""
    text = header.strip()
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return min(MOST_WAIT_MS, int(text) * 1000)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        return max(0, min(MOST_WAIT_MS, round(moment.timestamp() * 1000) - now_ms))
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0
