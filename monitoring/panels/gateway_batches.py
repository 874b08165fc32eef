"""Panels of the gateways' background work: batches, their files, and webhooks."""

from __future__ import annotations

from monitoring.panels.model import RATE, Panel, quantiles, rate

ONE = 'instance=~"$instance"'

BATCHES = (
    Panel(
        "Open batches",
        "Batches that are not through, by where they are, as every gateway sees them, and those that each gateway has.",
        [
            (f"max by (status) (streamfleet_gateway_batches_open{{{ONE}}})", "{{status}}"),
            (f"streamfleet_gateway_batches_running{{{ONE}}}", "at {{instance}}"),
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
        "Batches from hand to hand",
        "Batches that gateways take in five minutes, for the first time or again, and why they have them no more.",
        [
            (f"sum by (how) (increase(streamfleet_gateway_batches_taken_total{{{ONE}}}[5m]))", "taken {{how}}"),
            (f"sum by (outcome) (increase(streamfleet_gateway_batch_runs_total{{{ONE}}}[5m]))", "{{outcome}}"),
        ],
    ),
    Panel(
        "Files: bytes",
        "To and from the store a second.",
        [rate("streamfleet_gateway_file_bytes_total", "direction", ONE)],
        "Bps",
    ),
    Panel(
        "Files: uploads and errors",
        "Uploads a second by outcome, and what the store did not do.",
        [
            rate("streamfleet_gateway_uploads_total", "outcome", ONE),
            (
                f"sum by (reason) (rate(streamfleet_gateway_file_store_errors_total{{{ONE}}}[{RATE}]))",
                "store: {{reason}}",
            ),
        ],
    ),
    Panel(
        "Webhooks",
        "Accepted a second, attempts by what became of them, and given up by reason.",
        [
            (f"sum(rate(streamfleet_gateway_webhooks_announced_total{{{ONE}}}[{RATE}]))", "accepted"),
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
        "Webhooks: one attempt",
        "From looking up the name to the answer.",
        quantiles("streamfleet_gateway_webhook_attempt_seconds", "outcome", ONE),
        "s",
    ),
    Panel(
        "Webhooks: until delivered",
        "From announcing one to its delivery.",
        quantiles("streamfleet_gateway_webhook_delivered_seconds", "instance", ONE),
        "s",
    ),
)
