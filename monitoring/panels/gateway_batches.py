"""Panels of the gateways' background work: batches, their files, and webhooks."""

from __future__ import annotations

from monitoring.panels.model import RATE, Panel, quantiles, rate

ONE = 'instance=~"$instance"'


def each(metric: str, joined: str = "sum") -> str:
    """A gauge of each gateway, whose processes have a value each."""
    return f"{joined} by (instance) ({metric}{{{ONE}}})"


BATCHES = (
    Panel(
        "Open batches",
        "Batches that are not through, by where they are, as every gateway sees them, and those that each gateway has.",
        [
            (f"max by (status) (streamfleet_gateway_batches_open{{{ONE}}})", "{{status}}"),
            (each("streamfleet_gateway_batches_running"), "at {{instance}}"),
        ],
    ),
    Panel(
        "Lines of batches",
        "Lines a second that are written down, by outcome.",
        [rate("streamfleet_gateway_batch_lines_total", "outcome", ONE)],
    ),
    Panel(
        "Without progress",
        "For how long the open batch has stood still that has for longest.",
        [(f"max(streamfleet_gateway_batch_stalled_seconds{{{ONE}}})", "stands still")],
        "s",
    ),
    Panel(
        "Files: errors of the store",
        "What the store did not do, a second.",
        [rate("streamfleet_gateway_file_store_errors_total", "reason", ONE)],
    ),
    Panel(
        "Webhooks",
        "Attempts a second by what became of them, and given up by reason.",
        [
            rate("streamfleet_gateway_webhook_attempts_total", "outcome", ONE),
            (
                f"sum by (reason) (rate(streamfleet_gateway_webhooks_dead_total{{{ONE}}}[{RATE}]))",
                "given up: {{reason}}",
            ),
        ],
    ),
    Panel(
        "Webhooks outstanding",
        "Not delivered and not given up yet; every gateway sees the same ones.",
        [(f"max(streamfleet_gateway_webhooks_outstanding{{{ONE}}})", "outstanding")],
    ),
    Panel(
        "Webhooks: until delivered",
        "From announcing one to its delivery.",
        quantiles("streamfleet_gateway_webhook_delivered_seconds", "instance", ONE),
        "s",
    ),
)
