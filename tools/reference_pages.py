"""Write `docs/configuration.md` from the settings themselves, so that the two cannot differ.

.venv/bin/python tools/configuration_page.py            write the page
.venv/bin/python tools/configuration_page.py --check    exit 1 when the page is not what would be written
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo

from streamfleet.common.limits import SharedLimits
from streamfleet.common.queue_configuration import NAMES
from streamfleet.common.secret_files import file_variables
from streamfleet.common.settings import GROUPS, PREFIX, Group, variable

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
COMMAND = "make docs"
TITLES = {
    "QueueSettings": "Queue",
    "EngineSettings": "Engine",
    "WorkerSettings": "Worker",
    "ExporterSettings": "Exporter",
    "GatewaySettings": "Gateway",
    "LogSettings": "Logging",
}
SHARED = ", ".join(f"`{variable(name)}`" for name in NAMES)
INTRODUCTION = f"""\
<!-- Made from the settings and limits in common/streamfleet/common by `make docs`: change those. -->

# Configuration

Every setting is an environment variable that begins with `{PREFIX}`. A few well-known names count as well; where
both are set, the longer name wins. An empty variable counts as not set. Options of the command line win over the
environment.

Names say their unit: `_MS` is milliseconds, `_S` seconds, `_BYTES` bytes.

A setting that cannot be used stops the process at its start, with one line for each:

```text
STREAMFLEET_LEASE_MS: Input should be greater than or equal to 1000, not "20"
```

What all workers and clients of a queue share stands in Redis: the first worker writes what its environment says, and
from then on `streamfleet queue set` changes it. Where the queue has a value, that holds, and the variable does not:
{SHARED}. [operate.md](operate.md#changing-the-queues-configuration) says what a change applies to. All other
settings may differ from process to process.
"""
OTHERS = """\
## Read by other programs

streamfleet does not act on these. They reach vLLM and what it is built on, in the worker's process, and
what the gateway stores files with.

| variable | meaning |
|---|---|
| `HF_TOKEN` | Token for gated models on the Hugging Face hub. |
| `HF_HOME` | Where downloaded models are kept. |
| `HF_HUB_OFFLINE` | 1: never ask the hub. Where it is not set, the worker sets 1 when the model is a folder. |
| `VLLM_WORKER_MULTIPROC_METHOD` | Where it is not set, the worker sets `spawn`. |
| `VLLM_ALLOW_RUNTIME_LORA_UPDATING` | 1: adapters may be loaded while vLLM runs, by plugins such as the next. |
| `VLLM_PLUGINS` | vLLM's plugins to load; `lora_filesystem_resolver` finds adapters. The worker adds its own. |
| `VLLM_LORA_RESOLVER_CACHE_DIR` | Folder in which that plugin looks for an adapter by the model's name. |
| `VLLM_CPU_KVCACHE_SPACE` | KV cache of vLLM's CPU build, in GiB. Where it is not set, the worker sets 1. |
| `VLLM_MAX_N_SEQUENCES` | Largest `n` for vLLM. Where it is not set, the worker sets `STREAMFLEET_MAX_SEQUENCES`. |
| `TORCHDYNAMO_DISABLE` | Where it is not set, the worker sets 1 on the CPU build: compiling needs g++. |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | Where spans go (`STREAMFLEET_TRACES`); OpenTelemetry's others count as well. |
| `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` | For vLLM's own spans: `http/protobuf`, or `grpc`, which is its default. |
| `AWS_ACCESS_KEY_ID` | Who the gateway is to a store at `s3://` (`STREAMFLEET_GATEWAY_FILES`); s3fs reads these four. |
| `AWS_SECRET_ACCESS_KEY` | The same, and the secret part of it. |
| `AWS_DEFAULT_REGION` | Where the bucket is. |
| `AWS_ENDPOINT_URL` | Address of a store that speaks S3 and is not Amazon's. |
"""


def render() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(_section(group) for group in GROUPS), OTHERS])


def _section(group: type[Group]) -> str:
    lines = [f"## {TITLES[group.__name__]}", "", (group.__doc__ or "").strip(), ""]
    lines += ["| variable | default | allowed | meaning |", "|---|---|---|---|"]
    limits_last = sorted(group.model_fields.items(), key=lambda item: hasattr(SharedLimits, item[0]))
    for name, field in limits_last:
        cells = (_variables(name, field), _default(field), _allowed(field), _meaning(name, field))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _variables(name: str, field: FieldInfo) -> str:
    own = variable(name)
    known = [other for other in _aliases(field) if other not in (own, name)]
    return "<br>or ".join(f"`{each}`" for each in (own, *known))


def _aliases(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    return [choice for choice in alias.choices if isinstance(choice, str)] if isinstance(alias, AliasChoices) else []


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) if all(isinstance(item, int | float) for item in value) else shlex.join(value)
    return f"`{value}`" if str(value) else "empty"


def _allowed(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    bounds = []
    for rule in field.metadata:
        for attribute, words in (("ge", "at least {}"), ("gt", "more than {}"), ("le", "at most {}")):
            if (bound := getattr(rule, attribute, None)) is not None:
                bounds.append(words.format(bound))
    return ", ".join(bounds)


def _meaning(name: str, field: FieldInfo) -> str:
    files = [f"`{each}`" for each in file_variables(name, field, PREFIX)]
    more = f" Or in a file, named by {' or '.join(files)}." if files else ""
    return (field.description or "").replace("|", "\\|") + more


def main() -> int:
    """Write the page, or with `--check` tell whether it is fresh."""
    parser = argparse.ArgumentParser(description="Write docs/configuration.md from the settings.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    check = parser.parse_args().check
    page = render()
    if not check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"docs/configuration.md is not what the settings say; run: {COMMAND}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
