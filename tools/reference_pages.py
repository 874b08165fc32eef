"""Write docs/configuration.md from the settings and docs/metrics.md from the metrics, so that they cannot differ.

.venv/bin/python tools/reference_pages.py            write both pages
.venv/bin/python tools/reference_pages.py --check    exit 1 when a page is not what would be written
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo

from streamfleet.common import metrics as worker
from streamfleet.common.limits import SharedLimits
from streamfleet.common.protocol import LANES, Status
from streamfleet.common.queue_configuration import NAMES
from streamfleet.common.secret_files import file_variables
from streamfleet.common.settings import GROUPS, PREFIX, Group, variable
from streamfleet.gateway import metrics as gateway
from streamfleet.gateway.webhook_messages import Reason
from streamfleet.operator.exporter.families import FAMILIES
from streamfleet.operator.exporter.view import STATES

DOCS = Path(__file__).parent.parent / "docs"
COMMAND = "make docs"
TITLES = {
    "QueueSettings": "Queue",
    "EngineSettings": "Engine",
    "WorkerSettings": "Worker",
    "ExporterSettings": "Exporter",
    "GatewaySettings": "Gateway",
    "LogSettings": "Logging",
}
SHARED, SECRET, HISTOGRAM = "¹", "²", "¹"
CONFIGURATION = f"""\
<!-- Made from the settings and limits in common/streamfleet/common by `{COMMAND}`: change those. -->

# Configuration

Every setting is an environment variable; an empty one counts as not set, and options of the command line win. Of fixed
values, the first is the default. A wrong value stops the process at its start, with one line for each. A secret, marked
{SECRET}, may come from a file: `STREAMFLEET_REDIS_URL_FILE` names it.

Settings marked {SHARED} are the queue's: the first worker writes them to Redis, and then `streamfleet queue set`
changes them ([what a change applies to](operate.md#changing-the-queues-configuration)).
"""
OTHERS = """\
## Read by other programs

| variable | read by vLLM and its parts in the worker, or by the gateway's store of files |
|---|---|
| `HF_TOKEN` | Token for gated models on the Hugging Face hub. |
| `HF_HOME` | Where downloaded models are kept. |
| `HF_HUB_OFFLINE` | 1, the default for a model in a folder: never ask the hub. |
| `VLLM_WORKER_MULTIPROC_METHOD` | `spawn` by default. |
| `VLLM_ALLOW_RUNTIME_LORA_UPDATING` | 1: plugins may load adapters while vLLM runs. |
| `VLLM_PLUGINS` | Plugins to load beside the worker's; `lora_filesystem_resolver` finds adapters. |
| `VLLM_LORA_RESOLVER_CACHE_DIR` | Folder in which it does. |
| `VLLM_CPU_KVCACHE_SPACE` | KV cache of the CPU build, in GiB; 1 by default. |
| `VLLM_MAX_N_SEQUENCES` | Largest `n`; `STREAMFLEET_MAX_SEQUENCES` by default. |
| `TORCHDYNAMO_DISABLE` | 1 by default on the CPU build: compiling needs g++. |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | Where spans go (`STREAMFLEET_TRACES`). |
| `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` | Of vLLM's spans: `grpc` by default, or `http/protobuf`. |
| `AWS_ACCESS_KEY_ID` | Of a store at `s3://` (`STREAMFLEET_GATEWAY_FILES`), as the next three. |
| `AWS_SECRET_ACCESS_KEY` | |
| `AWS_DEFAULT_REGION` | |
| `AWS_ENDPOINT_URL` | Address of a store that is not Amazon's. |
"""
METRICS = f"""\
<!-- Made from the metrics in the code by `{COMMAND}`: change those, or tools/reference_pages.py. -->

# Metrics

Workers serve `/metrics` on port 9100, with vLLM's own `vllm:…`; the exporter, one for each queue, on 9101, also while
no worker lives; gateways on 8081. Names that end in `_total` are counters, those marked {HISTOGRAM} histograms, the
others gauges. All of the exporter's also have the label `queue`.
"""
MORE = """\
## Queries

The [dashboards](../monitoring/dashboards) have them. One that they do not show: the share of the engines' time that was
for nothing.

```text
sum(rate(streamfleet_run_seconds_sum{status=~"postponed|released|lost"}[5m])) / sum(rate(streamfleet_run_seconds_sum[5m]))
```

Two of vLLM's metrics have new names in its releases 0.24 to 0.32:

| old name | name now |
|---|---|
| `vllm:gpu_cache_usage_perc` | `vllm:kv_cache_usage_perc` |
| `vllm:time_per_output_token_seconds` | `vllm:inter_token_latency_seconds`, of each token; `vllm:request_time_per_output_token_seconds`, the mean of each request |

## Deadline pressure

`streamfleet_queue_deadline_pressure_seconds` is the largest estimated lateness of the requests that wait in a lane with
a deadline: (requests in more urgent lanes + its place in its lane) / throughput - time until its deadline. It is
measured at 17 places of each lane. Requests without a deadline count as work; shares and pauses do not count. There is
no series before the first throughput, which takes a second with a backlog, nor without a worker: scale from zero by
`streamfleet_queue_outstanding`.

## The exporter

One look at the queue, of about 110 commands however long it is (two more a tenant with a limit), serves all who ask
within 5 s. Without an answer of Redis within 5 s, `streamfleet_exporter_up` is 0, there is no series of the queue, and `/readyz` has the reason.
"""  # noqa: E501 - a query or a row of a table is one line
VALUES: tuple[tuple[str, Iterable[str]], ...] = (
    ("`lane`", LANES),
    ("`status`", (*Status, "postponed", "released", "lost")),
    ("`status` of open batches", gateway.BATCH_STATUSES),
    ("`kind`", worker.TOKEN_KINDS),
    ("`state`", STATES),
    ("`reason` of a dead letter", worker.Reason),
    ("`reason` of wasted tokens", worker.WASTED_REASONS),
    ("`reason` of asking vLLM's application", worker.ByApplication),
    ("`reason` of a refusal", gateway.REASONS),
    ("`reason` of a store error", gateway.STORE_ERRORS),
    ("`reason` of a webhook", Reason),
    ("`outcome` of what was taken back", worker.RECLAIM_OUTCOMES),
    ("`outcome` of a stream", gateway.STREAM_ENDS),
    ("`outcome` of a line", gateway.BATCH_LINES),
    ("`outcome` of a webhook", gateway.WEBHOOK_OUTCOMES),
)


class Metric(NamedTuple):
    """One row of the page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def defined_in(*modules: ModuleType) -> Iterator[Metric]:
    """The metrics that modules define, by the names that Prometheus stores."""
    for value in (each for module in modules for each in vars(module).values() if hasattr(each, "_labelnames")):
        family: Any = value.describe()[0]
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ("version", "python", "vllm") if family.type == "info" else tuple(value._labelnames)  # noqa: SLF001
        yield Metric(name, family.type, labels, family.documentation)


def all_metrics() -> dict[str, list[Metric]]:
    """All metrics, by the title of their table."""
    return {
        "Workers": list(defined_in(worker)),
        "Exporter": [Metric(each.name, each.type, each.labels, each.help) for each in FAMILIES],
        "Gateways": list(defined_in(gateway)),
    }


def configuration() -> str:
    """The page of settings."""
    return "\n".join([CONFIGURATION, *map(_section, GROUPS), OTHERS])


def metrics() -> str:
    """The page of metrics."""
    sections = [METRICS]
    for title, found in all_metrics().items():
        rows = [
            f"| `{each.name}`{HISTOGRAM if each.kind == 'histogram' else ''} | "
            f"{', '.join(f'`{label}`' for label in each.labels)} | {each.text} |"
            for each in found
        ]
        sections.append("\n".join([f"## {title}", "", "| metric | labels | meaning |", "|---|---|---|", *rows, ""]))
    values = [f"| {label} | {', '.join(f'`{value}`' for value in known)} |" for label, known in VALUES]
    sections.append("\n".join(["## Labels", "", "| label | values |", "|---|---|", *values, ""]))
    return "\n".join([*sections, MORE])


def _section(group: type[Group]) -> str:
    lines = [f"## {TITLES[group.__name__]}", "", "| variable | default | meaning |", "|---|---|---|"]
    limits_last = sorted(group.model_fields.items(), key=lambda item: hasattr(SharedLimits, item[0]))
    for name, field in limits_last:
        mark = SHARED if group is GROUPS[0] and name in NAMES else SECRET if file_variables(name, field, PREFIX) else ""
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| {_variables(name, field)}{mark} | {_default(field)} | {meaning} |")
    return "\n".join([*lines, ""])


def _variables(name: str, field: FieldInfo) -> str:
    own = variable(name)
    known = [other for other in _aliases(field) if other not in (own, name)]
    return " or ".join(f"`{each}`" for each in (own, *known))


def _aliases(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    return [choice for choice in alias.choices if isinstance(choice, str)] if isinstance(alias, AliasChoices) else []


def _default(field: FieldInfo) -> str:
    value: Any = "" if field.default is None else field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) if all(isinstance(item, int | float) for item in value) else shlex.join(value)
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    shown = [each for each in (value, *(choice for choice in choices if choice != value)) if str(each)]
    return ", ".join(f"`{each}`" for each in shown)


PAGES = {"configuration.md": configuration, "metrics.md": metrics}


def main() -> int:
    """Write the pages, or with `--check` tell whether they are fresh."""
    parser = argparse.ArgumentParser(description="Write docs/configuration.md and docs/metrics.md from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, render in PAGES.items():
        page = DOCS / name
        if not check:
            page.write_text(render(), encoding="utf-8")
        elif not page.is_file() or page.read_text(encoding="utf-8") != render():
            stale.append(name)
    if stale:
        print(f"not what the code says: docs/{', docs/'.join(stale)}; run: {COMMAND}", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
