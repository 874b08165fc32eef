"""One lane in depth."""

from __future__ import annotations

from monitoring.panels.model import BY_QUEUE, QUEUE, Dashboard, Panel, Variable, quantiles, rate

_LANE = Variable("lane", "label_values(streamfleet_queue_entries, lane)")
LANE = 'lane="$lane"'

LANE_IN_DEPTH = Dashboard(
    "streamfleet-lane",
    "streamfleet: one lane",
    (BY_QUEUE, _LANE),
    (
        Panel(
            "Where its requests are",
            "All that have not ended, those that wait in order, and those with workers.",
            [
                (f"streamfleet_queue_ready{{{QUEUE}, {LANE}}}", "waiting"),
                (f"streamfleet_queue_running{{{QUEUE}, {LANE}}}", "running"),
                (f"streamfleet_queue_entries{{{QUEUE}, {LANE}}}", "all"),
            ],
        ),
        Panel(
            "Deadlines",
            "How late the worst of what waits will be; negative is time to spare.",
            [(f"streamfleet_queue_deadline_pressure_seconds{{{QUEUE}, {LANE}}}", "pressure")],
            "s",
        ),
        Panel(
            "Until taken by a worker",
            "From enqueueing to the claim.",
            quantiles("streamfleet_queued_seconds", "lane", LANE),
            "s",
        ),
        Panel(
            "Passed over",
            "From enqueueing until another worker than the one with its prefix cache took a request.",
            quantiles("streamfleet_passed_over_seconds", "lane", LANE),
            "s",
        ),
        Panel(
            "In the engine",
            "Of one attempt, by its outcome.",
            quantiles("streamfleet_run_seconds", "status", LANE),
            "s",
        ),
        Panel(
            "First token",
            "From the engine to the first token.",
            quantiles("streamfleet_first_token_seconds", "status", LANE),
            "s",
        ),
        Panel(
            "How its requests end",
            "Requests that workers ended, by terminal status.",
            [rate("streamfleet_requests_finished_total", "status", LANE)],
            "reqps",
        ),
    ),
)
