"""Redis, as the queue sees it."""

from __future__ import annotations

from monitoring.panels.model import BY_QUEUE, QUEUE, RATE, Dashboard, Panel

BROKER = Dashboard(
    "streamfleet-broker",
    "streamfleet: the broker",
    (BY_QUEUE,),
    (
        Panel(
            "Exporter sees Redis",
            "1 when Redis answered the last look.",
            [(f"streamfleet_exporter_up{{{QUEUE}}}", "up")],
        ),
        Panel(
            "Throughput",
            "Requests that succeed or fail a second, measured while something waits.",
            [(f"streamfleet_queue_throughput{{{QUEUE}}}", "throughput")],
            "reqps",
        ),
        Panel(
            "Added and sent twice",
            "Entries that come in a second, and those of them whose id was there already (reused: with another body).",
            [
                (f"rate(streamfleet_queue_requests_added_total{{{QUEUE}}}[{RATE}])", "added"),
                (f"rate(streamfleet_queue_requests_duplicate_total{{{QUEUE}}}[{RATE}])", "duplicate"),
                (f"rate(streamfleet_queue_requests_id_reused_total{{{QUEUE}}}[{RATE}])", "id reused"),
            ],
            "reqps",
        ),
        Panel(
            "Delayed", "Requests that wait for their next try.", [(f"streamfleet_queue_delayed{{{QUEUE}}}", "delayed")]
        ),
        Panel(
            "Dead letters kept", "Dead letters in the stream.", [(f"streamfleet_queue_dead_letters{{{QUEUE}}}", "kept")]
        ),
        Panel(
            "Redis: memory",
            "By redis_exporter: what is used, and the limit.",
            [("redis_memory_used_bytes", "{{instance}} used"), ("redis_memory_max_bytes", "{{instance}} limit")],
            "bytes",
            outside=True,
        ),
    ),
)
