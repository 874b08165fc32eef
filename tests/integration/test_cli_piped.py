"""Commands that print tables, with a pipe as stdout: a line for each record, whole names, no boxes; and JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer

from streamfleet.cli.main import app
from streamfleet.common.broker.types import TenantRule
from streamfleet.common.connection import Connection
from streamfleet.gateway.broker.webhooks import WebhookBroker
from streamfleet.gateway.webhook_messages import Ending, Message, Reason, Settlement, WebhookNames
from streamfleet.operator.broker import OperatorBroker
from streamfleet.operator.commands.common import queue_settings
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from tests.integration.cli_processes import Ended, piped, streamfleet, worker

WORKER = "streamfleet-worker-qwen-7b-6f9c8d7b5d-x2x7k-1a2b3c4d-of-the-second-rack-on-the-left"
TENANT = "the summaries of the night, for all departments but those that have a contract of their own"
REQUEST = "5f0c9a7e41b8d2630f9e7c1a2b3d4e5f60718293-of-the-nightly-summaries-" + "0123456789" * 6
WEBHOOK = f"msg_{REQUEST}"
PLAN = ["--output-tokens", "15", "--deadline", "30s", "--runs", "1"]
MEASURE = ["--prompt-tokens", "8", "--output-tokens", "16"]
TABLES: dict[str, tuple[list[str], dict[str, int]]] = {
    "audit": ([], {"critical": 1, "low": 1}),
    "backlog": ([], {"critical": 1, WORKER: 1}),
    "bench": (["-c", "1,2", "--requests", "2", "--output-tokens", "8"], {r"^\s*2\s": 1}),
    "dead list": ([], {REQUEST: 1}),
    "doctor": ([], {"eviction": 1, "clock": 1}),
    "gateway keys list": ([], {TENANT: 1}),
    "gateway webhooks list": ([], {WEBHOOK: 1}),
    "gateway webhooks secret list": ([], {TENANT: 1}),
    "plan": (
        [*["--profile", "{}/engine.json", "--rate", "2", "--prompt-tokens", "30"], *PLAN],
        {"enough": 1, "30 prompt and 15 output tokens .* requests": 1},
    ),
    "plan measure": (
        [*["--queue", "measure", "--out", "{}/m.json", "--rounds", "1", "--up-to", "2"], *MEASURE],
        {"requests at once +step ms": 1},
    ),
    "queue show": ([], {"lease_ms": 1}),
    "tenants show": ([], {TENANT: 1}),
    "workers": ([], {WORKER: 1}),
}
"""Each command that prints a table: its arguments, and what is to stand on so many lines of what it prints."""


def commands(under: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All commands that can be run, by what is written to run them."""
    inner = getattr(under, "commands", {})
    if not inner or (path and under.invoke_without_command):
        yield path, under
    for name, each in inner.items():
        yield from commands(each, f"{path} {name}".strip())


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plan")
    EngineProfile(GENERIC_FAST).save(made / "engine.json")
    return made


@pytest.fixture
def fleet(redis_url: str) -> str:
    """A Redis with a record of each kind, whose names are long."""
    asyncio.run(fill(redis_url))
    assert streamfleet(redis_url, "gateway", "webhooks", "secret", "create", "--tenant", TENANT).returncode == 0
    assert streamfleet(redis_url, "gateway", "keys", "create", "a laptop", "--tenant", TENANT).returncode == 0
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("{default}:lane:low", {"id": REQUEST, "body": "{"})
    return redis_url


async def fill(url: str) -> None:
    broker = OperatorBroker.open(queue_settings(url, None))
    await broker.set_tenant(TENANT, TenantRule(2.0, 3))
    await broker.close()
    hooks = WebhookBroker(Connection(url), WebhookNames())
    await hooks.announce(Message(WEBHOOK, "https://example.com/hook", "a.b", "t1", "{}", 1_000))
    (delivery,) = (await hooks.take("d1", 1)).deliveries
    await hooks.settle(delivery, Settlement(Ending.DEAD, reason=Reason.GONE, status=410, error="gone: " + "x" * 300))
    await hooks.close()


def of_width(url: str, arguments: list[str], columns: str, **settings: str) -> Ended:
    """Run a command that has no terminal, only one of so many columns in its environment, and is asked for colours."""
    terminal = {"COLUMNS": columns, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    return piped(url, *arguments, settings=terminal | settings)


@pytest.mark.parametrize("name", TABLES)
def test_a_piped_table_has_a_line_for_each_record(fleet: str, folder: Path, name: str) -> None:
    given, expected = TABLES[name]
    arguments = [*name.split(), *(each.format(folder) for each in given)]
    queue = {"STREAMFLEET_QUEUE": "measure"} if name == "plan measure" else {}
    key = "{measure}:workers" if queue else "{default}:workers"
    with worker(fleet, WORKER, queue, key):
        if not queue:
            streamfleet(fleet, "result", REQUEST, "--wait", "--timeout", "20")
        narrow, wide, as_json = (
            of_width(fleet, [*arguments, *more], columns)
            for columns, more in (("20", []), ("1000", []), ("20", ["--json"]))
        )
    assert (narrow.returncode, wide.returncode, as_json.returncode) == (0, 0, 0), narrow.stderr + as_json.stderr
    lines = narrow.stdout.splitlines()
    assert not re.search(r"[\u2500-\u257f\x1b]", narrow.stdout), "a box, or a colour"
    assert len(lines) == len(wide.stdout.splitlines()), "the width changes it"
    assert all(line.strip() for line in lines)
    for text, count in expected.items():
        assert sum(bool(re.search(text, line)) for line in lines) == count, (text, narrow.stdout)
    assert decoded(as_json.stdout)


def decoded(text: str) -> list[Any]:
    """JSON: a value, or one on each line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]
