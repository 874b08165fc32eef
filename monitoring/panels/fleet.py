"""The fleet at a glance."""

from __future__ import annotations

from monitoring.panels.model import BY_QUEUE, QUEUE, RATE, Dashboard, Panel, quantiles, rate

ENDED = "increase(streamfleet_queue_requests_ended_total"
EXPIRED = 'status="expired"'
QUEUED = "sum by (lane) (rate(streamfleet_queued_seconds"

FLEET = Dashboard(
    "streamfleet-fleet",
    "streamfleet: the fleet",
    (BY_QUEUE,),
    (
        Panel(
            "Outstanding",
            "Requests that have not ended.",
            [(f"streamfleet_queue_outstanding{{{QUEUE}}}", "")],
            kind="stat",
            width=6,
        ),
        Panel(
            "Workers ready",
            "Workers that take requests.",
            [(f'streamfleet_queue_workers{{{QUEUE}, state="ready"}}', "")],
            kind="stat",
            width=6,
        ),
        Panel(
            "Deadline pressure",
            "How late the worst of what waits will be; negative is time to spare.",
            [(f"max(streamfleet_queue_deadline_pressure_seconds{{{QUEUE}}})", "")],
            "s",
            "stat",
            6,
        ),
        Panel(
            "Missed deadlines, last 10 minutes",
            "Share of the requests that ended which ended as expired.",
            [
                (f"sum({ENDED}{{{QUEUE}, {EXPIRED}}}[10m])) / sum({ENDED}{{{QUEUE}}}[10m]))", ""),
            ],
            "percentunit",
            "stat",
            6,
        ),
        Panel(
            "Coming in and ending",
            "Requests a second that come in, and that end, by how.",
            [
                (f"rate(streamfleet_queue_requests_added_total{{{QUEUE}}}[{RATE}])", "added"),
                rate("streamfleet_queue_requests_ended_total", "status", QUEUE),
            ],
            "reqps",
        ),
        Panel(
            "Outstanding by lane",
            "Requests of each lane that have not ended.",
            [(f"streamfleet_queue_entries{{{QUEUE}}}", "{{lane}}")],
        ),
        Panel(
            "Deadline pressure by lane",
            "How late the worst of what waits will be; above 0 it will miss its deadline.",
            [(f"streamfleet_queue_deadline_pressure_seconds{{{QUEUE}}}", "{{lane}}")],
            "s",
        ),
        Panel(
            "Oldest request",
            "Age of the oldest request of each lane, running ones too.",
            [(f"streamfleet_queue_oldest_age_seconds{{{QUEUE}}}", "{{lane}}")],
            "s",
        ),
        Panel(
            "Average wait",
            "Mean time from enqueueing to the claim, of what workers claim.",
            [(f"{QUEUED}_sum[{RATE}])) / {QUEUED}_count[{RATE}]))", "{{lane}}")],
            "s",
        ),
        Panel(
            "From enqueueing to the answer",
            "What callers see, of requests that succeeded.",
            quantiles("streamfleet_total_seconds", "lane", 'status="succeeded"'),
            "s",
        ),
        Panel(
            "Workers",
            "Workers that gave a sign of life lately, by what they do.",
            [(f"streamfleet_queue_workers{{{QUEUE}}}", "{{state}}")],
        ),
        Panel(
            "How full the engines are",
            "Requests that workers hold, beside their slots.",
            [
                (f"streamfleet_queue_worker_running{{{QUEUE}}}", "held"),
                (f"streamfleet_queue_worker_slots{{{QUEUE}}}", "slots"),
            ],
        ),
        Panel("Tokens", "Tokens a second of finished requests.", [rate("streamfleet_tokens_total", "kind")]),
        Panel(
            "Dead letters",
            "Dead letters that are written, by reason.",
            [rate("streamfleet_dead_letters_total", "reason")],
            "reqps",
        ),
        Panel(
            "Tokens by tenant",
            "Tokens a second that tenants are served, where requests name one.",
            [(f"deriv(streamfleet_tenant_tokens{{{QUEUE}}}[{RATE}])", "{{tenant}}")],
        ),
        Panel(
            "Requests by tenant",
            "Requests of tenants that wait, and that run.",
            [
                (f"streamfleet_tenant_waiting{{{QUEUE}}}", "{{tenant}} waiting"),
                (f"streamfleet_tenant_running{{{QUEUE}}}", "{{tenant}} running"),
            ],
        ),
        Panel(
            "Ended and missed by tenant",
            "Requests a second of tenants that workers end, and that expire.",
            [
                (f"deriv(streamfleet_tenant_requests{{{QUEUE}}}[{RATE}])", "{{tenant}} ended"),
                (f"deriv(streamfleet_tenant_missed{{{QUEUE}}}[{RATE}])", "{{tenant}} missed"),
            ],
            "reqps",
        ),
        Panel(
            "Time until all is done",
            "What is outstanding, divided by the throughput.",
            [(f"streamfleet_queue_work_seconds{{{QUEUE}}}", "work")],
            "s",
        ),
    ),
)
