"""A worker and its engine."""

from __future__ import annotations

from monitoring.panels.model import RATE, Dashboard, Panel, Variable, quantiles, rate

_WORKER = Variable("instance", "label_values(streamfleet_ready, instance)")
ONE = 'instance=~"$instance"'
STEP = "sum by (instance) (rate(vllm:iteration_tokens_total"
CACHED = f"sum by (instance) (rate(streamfleet_tokens_cached_total{{{ONE}}}"
PROMPT = f'sum by (instance) (rate(streamfleet_tokens_total{{kind="prompt", {ONE}}}'
EACH_REQUEST = "sum by (le, instance) (rate(vllm:request_time_per_output_token_seconds"

WORKER = Dashboard(
    "streamfleet-worker",
    "streamfleet: worker and engine",
    (_WORKER,),
    (
        Panel("Ready", "1 when it takes requests.", [(f"streamfleet_ready{{{ONE}}}", "{{instance}}")]),
        Panel(
            "Held requests, slots and credit",
            "Requests that run, sequences that the engine runs together, and how many more requests there is room for.",
            [
                (f"streamfleet_running{{{ONE}}}", "{{instance}} run"),
                (f"streamfleet_slots{{{ONE}}}", "{{instance}} slots"),
                (f"streamfleet_credit{{{ONE}}}", "{{instance}} credit"),
            ],
        ),
        Panel(
            "Claimed",
            "Requests taken a second.",
            [rate("streamfleet_requests_claimed_total", "instance", ONE)],
            "reqps",
        ),
        Panel(
            "Through vLLM's application",
            "Requests a second that went through vLLM's HTTP application, which takes longer, and why.",
            [rate("streamfleet_engine_by_application_total", "reason", ONE)],
            "reqps",
        ),
        Panel(
            "Unknown fields",
            "Fields a second that look like a mistake, of requests that a worker claimed and ended, by the name meant.",
            [rate("streamfleet_unknown_fields_total", "meant", ONE)],
        ),
        Panel(
            "Tried again, handed back",
            "Requests a second that went back after a fault, or went back untried; those that a busy server refused.",
            [
                (f"sum(rate(streamfleet_requests_retried_total{{{ONE}}}[{RATE}]))", "tried again"),
                (f"sum(rate(streamfleet_requests_released_total{{{ONE}}}[{RATE}]))", "handed back"),
                (f"sum(rate(streamfleet_server_busy_total{{{ONE}}}[{RATE}]))", "refused"),
            ],
            "reqps",
        ),
        Panel(
            "Urgent work on a full engine",
            "Requests a second that gave way; the share of time without room for urgent requests.",
            [
                rate("streamfleet_requests_interrupted_total", "lane", ONE),
                (f"rate(streamfleet_urgent_blocked_seconds_total{{{ONE}}}[{RATE}])", "{{instance}} blocked"),
            ],
        ),
        Panel(
            "Leases",
            "Late renewals, lost leases, and entries taken back from silent workers, a second.",
            [
                (f"sum(rate(streamfleet_lease_renewals_late_total{{{ONE}}}[{RATE}]))", "renewed late"),
                (f"sum(rate(streamfleet_leases_lost_total{{{ONE}}}[{RATE}]))", "lost"),
                rate("streamfleet_reclaimed_total", "outcome", ONE),
            ],
        ),
        Panel(
            "Prompt tokens from the prefix cache",
            "Share of the prompt tokens of finished requests that the engine did not have to read.",
            [(f"{CACHED}[{RATE}])) / {PROMPT}[{RATE}]))", "{{instance}}")],
            "percentunit",
        ),
        Panel(
            "Tokens for nothing",
            "Output tokens a second of answers that nobody got, and those of interrupted runs that were kept.",
            [
                rate("streamfleet_tokens_wasted_total", "reason", ONE),
                (f"sum(rate(streamfleet_tokens_resumed_total{{{ONE}}}[{RATE}]))", "kept"),
            ],
        ),
        Panel(
            "Time between chunks",
            "Time between two groups of chunks of a request: 50 ms up to 300 streams, up to 300 ms beyond.",
            [(f"streamfleet_stream_interval_seconds{{{ONE}}}", "{{instance}}")],
            "s",
        ),
        Panel(
            "Tokens not published",
            "Chunks a second for those who read along that Redis did not take.",
            [(f"sum(rate(streamfleet_stream_chunks_dropped_total{{{ONE}}}[{RATE}]))", "chunks dropped")],
        ),
        Panel(
            "vLLM: requests",
            "What runs in vLLM, and what waits there.",
            [
                (f"vllm:num_requests_running{{{ONE}}}", "{{instance}} running"),
                (f"vllm:num_requests_waiting{{{ONE}}}", "{{instance}} waiting"),
            ],
            outside=True,
        ),
        Panel(
            "vLLM: KV cache",
            "Share of its KV cache that is in use.",
            [(f"vllm:kv_cache_usage_perc{{{ONE}}}", "{{instance}}")],
            "percentunit",
            outside=True,
        ),
        Panel(
            "vLLM: time per output token",
            "Time between two tokens of a request in vLLM, and the mean of each request that ended.",
            [
                *quantiles("vllm:inter_token_latency_seconds", "instance", ONE),
                (f"histogram_quantile(0.95, {EACH_REQUEST}_bucket{{{ONE}}}[{RATE}])))", "{{instance}} p95 of requests"),
            ],
            "s",
            outside=True,
        ),
        Panel(
            "vLLM: tokens of an engine step",
            "Mean number of tokens, of prompts too, that one step of the engine processes.",
            [(f"{STEP}_sum{{{ONE}}}[{RATE}])) / {STEP}_count{{{ONE}}}[{RATE}]))", "{{instance}}")],
            outside=True,
        ),
        Panel(
            "GPUs: utilisation",
            "By NVIDIA's DCGM exporter, of all GPUs: share of the time in which a kernel ran.",
            [("DCGM_FI_DEV_GPU_UTIL / 100", "{{Hostname}} GPU {{gpu}}")],
            "percentunit",
            outside=True,
        ),
        Panel(
            "Versions",
            "One line for each combination that is running.",
            [
                (
                    "count by (version, vllm, python) (streamfleet_build_info)",
                    "{{version}}, vLLM {{vllm}}, Python {{python}}",
                )
            ],
        ),
    ),
)
