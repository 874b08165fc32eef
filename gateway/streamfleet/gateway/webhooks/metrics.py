"""Metrics of webhooks: attempted, delivered and given up, and how long a delivery took.

`service` and `deliverer` count here. Labels have few values, all known in advance; no label is a host, a type or a
tenant.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from streamfleet.gateway.metrics import REGISTRY
from streamfleet.gateway.webhook_messages import Ending, Reason

LOST = "lost"
"""Outcome of an attempt whose lease had ended, so that another process had the webhook."""
OUTCOMES = (*Ending, LOST)

ATTEMPTS = Counter(
    "streamfleet_gateway_webhook_attempts_total",
    "Webhooks taken to be delivered, by what became of them.",
    ["outcome"],
    registry=REGISTRY,
)
DEAD = Counter("streamfleet_gateway_webhooks_dead_total", "Webhooks given up.", ["reason"], registry=REGISTRY)
DELIVERED = Histogram(
    "streamfleet_gateway_webhook_delivered_seconds",
    "From announcing a webhook to its delivery.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 600, 3_600, 14_400, 43_200, 86_400, 259_200, 432_000),
    registry=REGISTRY,
)
OUTSTANDING = Gauge(
    "streamfleet_gateway_webhooks_outstanding", "Webhooks not delivered and not given up yet.", registry=REGISTRY
)


def begin() -> None:
    """Set counters with known labels to 0."""
    for outcome in OUTCOMES:
        ATTEMPTS.labels(outcome)
    for reason in Reason:
        DEAD.labels(reason)
