"""The HTTP gateway: its callers, its streams, its batches and files, and its webhooks."""

from __future__ import annotations

from monitoring.panels.gateway_batches import BATCHES, each
from monitoring.panels.model import RATE, Dashboard, Panel, Variable, quantiles, rate

_GATEWAY = Variable("instance", "label_values(streamfleet_gateway_redis_up, instance)")
ONE = 'instance=~"$instance"'
API = f'{ONE}, endpoint=~"/v1/.+|/classify|/pooling"'
WAITED = f'{ONE}, endpoint=~"/v1/(chat/completions|completions|embeddings)", code!~"4.."'
REQUESTS = "rate(streamfleet_gateway_requests_total"
SECONDS = "streamfleet_gateway_request_seconds"
FAILED = f'sum({REQUESTS}{{{API}, code=~"5.."}}[{RATE}]))'

CALLERS = (
    Panel(
        "Gateways that reach Redis",
        "Replicas that are scraped, and whose last look Redis answered.",
        [("sum(min by (job, instance) (streamfleet_gateway_redis_up))", "")],
        kind="stat",
        width=6,
    ),
    Panel(
        "Asked",
        "Requests of the API a second that are answered.",
        [(f"sum({REQUESTS}{{{API}}}[{RATE}]))", "")],
        "reqps",
        "stat",
        6,
    ),
    Panel(
        "Errors",
        "Share of them that are answered with a status of 500 or more.",
        [(f"({FAILED} or vector(0)) / sum({REQUESTS}{{{API}}}[{RATE}]))", "")],
        "percentunit",
        "stat",
        6,
    ),
    Panel(
        "Waiting, 99 %",
        "How long callers of models wait for the end of an answer; 99 % of them wait for less.",
        [(f"histogram_quantile(0.99, sum by (le) (rate({SECONDS}_bucket{{{WAITED}}}[{RATE}])))", "")],
        "s",
        "stat",
        6,
    ),
    Panel(
        "Answers by endpoint",
        "Answers a second.",
        [rate("streamfleet_gateway_requests_total", "endpoint", API)],
        "reqps",
    ),
    Panel("Answers by status", "Answers a second.", [rate("streamfleet_gateway_requests_total", "code", API)], "reqps"),
    Panel(
        "Until answered",
        "From the headers of a request of models to the end of its answer, beside the deadline of who names none.",
        [*quantiles(SECONDS, "endpoint", WAITED), (f"max(streamfleet_gateway_deadline_seconds{{{ONE}}})", "deadline")],
        "s",
    ),
    Panel(
        "Open",
        "Requests that are being answered, those that wait for the fleet too, and streams that are being sent.",
        [
            (each("streamfleet_gateway_requests_open"), "{{instance}} requests"),
            (each("streamfleet_gateway_streams_open"), "{{instance}} streams"),
        ],
    ),
    Panel(
        "Connections",
        "Open ones, beside their limit.",
        [
            (each("streamfleet_gateway_connections"), "{{instance}} open"),
            (each("streamfleet_gateway_connections_limit", "max"), "{{instance}} limit"),
        ],
    ),
    Panel(
        "Bodies",
        "Bytes of request bodies that are held, while they are read and put into a queue, and of large answers.",
        [
            (each("streamfleet_gateway_body_bytes"), "{{instance}} requests"),
            (each("streamfleet_gateway_answer_bytes"), "{{instance}} answers"),
        ],
        "bytes",
    ),
    Panel(
        "Refused",
        "What gateways refused a second, by reason.",
        [rate("streamfleet_gateway_refused_total", "reason", ONE)],
        "reqps",
    ),
    Panel(
        "Redis", "1 when Redis answered the last look.", [(each("streamfleet_gateway_redis_up", "min"), "{{instance}}")]
    ),
)

STREAMS = (
    Panel(
        "First token",
        "From the headers of a request to the first chunk of its stream.",
        quantiles("streamfleet_gateway_first_token_seconds", "instance", ONE),
        "s",
    ),
    Panel(
        "Lag",
        "From a group of chunks being in Redis to its being sent.",
        quantiles("streamfleet_gateway_stream_lag_seconds", "instance", ONE),
        "s",
    ),
    Panel(
        "How streams end",
        "Streams a second by their end.",
        [rate("streamfleet_gateway_streams_ended_total", "outcome", ONE)],
        "reqps",
    ),
)

GATEWAY = Dashboard("streamfleet-gateway", "streamfleet: the gateway", (_GATEWAY,), (*CALLERS, *STREAMS, *BATCHES))
