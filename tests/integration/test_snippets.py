"""Snippets of README.md and docs/*.md run as they stand, but for ports, beside a fleet with the simulated engine.

A new snippet is run, in any order and process; one that cannot run has its reason in `NOT_RUN`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from streamfleet.common.connection import Connection
from streamfleet.common.keys import GROUP, Keys
from streamfleet.common.protocol import LANES
from streamfleet.gateway.api_keys import GatewayNames, make_record
from streamfleet.gateway.broker.api_keys import GatewayBroker
from streamfleet.gateway.webhook_messages import Message, WebhookNames
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.producer import SyncClient
from streamfleet.worker.engine.simulated_profile import GENERIC_FAST
from tests.conftest import REPOSITORY
from tests.integration import command_server
from tests.integration.cli_processes import environment
from tests.integration.exporter_process import exporter
from tests.integration.gateway_process import GatewayProcess, gateway_on, make_key
from tests.integration.worker_process import WorkerProcess
from tests.programs import program, skip_without
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers, free_port
from tests.unit.deploy_page import of_overlay, overlays
from tests.unit.test_docs import FENCE
from tests.waiting import eventually_blocking

RUN = {"sh", "bash", "console", "python", "js", "yaml"}
NOT_RUN = {
    ("README.md", "docker run"): "needs docker",
    ("README.md", "make demo"): "tests/e2e/test_demo.py runs it",
    ("README.md", "--model ~/.cache"): "starts vLLM, as tests/e2e/test_demo.py does",
    ("", "kubectl "): "needs a cluster; tests/unit/test_deploy_docs.py reads those of deploy.md",
    ("deploy.md", "kind "): "needs docker",
    ("deploy.md", "docker "): "needs docker",
    ("", "helm "): "needs a cluster; tests/integration/test_k8s_chart.py renders the chart",
    ("deploy.md", "kind: Kustomization"): "tests/unit/test_deploy_docs.py renders it",
    ("gateway.md", "pip install"): "changes the environment of the tests",
    ("gpu.md", "python3"): "needs a GPU, or a build of vLLM for one",
    ("gpu.md", "install.sh"): "needs a build of vLLM for a GPU",
    ("operate.md", '$lane" workers'): "tests/integration/test_redis_cli.py runs it",
    ("operate.md", ":ready:$lane"): "tests/integration/test_redis_cli.py runs it",
    ("operate.md", '-A 4 "$id"'): "tests/integration/test_redis_cli.py runs it",
    ("operate.md", "SENTINEL"): "needs Sentinel; python -m tests.ha does it",
    ("operate.md", "--enable-lora"): "starts vLLM, as tests/e2e/test_vllm_adapters.py does",
    ("operate.md", "pip install"): "changes the environment of the tests",
    ("performance.md", "--model Qwen"): "needs a GPU and a large model",
    ("performance.md", "plan measure"): "takes minutes; tests/integration/test_plan.py measures",
    ("performance.md", "CLUSTER KEYSLOT"): "needs a cluster; tests/integration/test_many_queues.py runs the example",
    ("performance.md", "make bench"): "takes minutes",
    ("performance.md", "bench --queue"): "takes minutes; tests/integration/test_bench.py has the options",
    ("security.md", "# entra.py"): "needs an account of Azure",
    ("security.md", "openssl req"): "tests/security/test_security_page.py runs it",
    ("start.md", "--model Qwen"): "needs a GPU and a large model",
    ("start.md", "VLLM_URL="): "waits for a server",
    ("upgrade.md", "--model ./model"): "starts vLLM",
}
"""Page, if it is one, and a text of a snippet that is not run, with the reason."""
COMMENTED = ("deploy.md", "gpu.md", "operate.md", "security.md", "upgrade.md")
"""Pages of operators, whose shells take comments."""
SERVES = re.compile(r"(?:^|\s)streamfleet (?:worker|gateway|exporter)(?: -[^\n|&]*)?$")
"""The last line of one that goes on until it is stopped."""
READY = re.compile(r"(?:worker|gateway|exporter)_ready")
ADDRESS = re.compile(r"((?:localhost|127\.0\.0\.1):|--port |\"127\.0\.0\.1\", )(\d{4,5})\b")
NODE = REPOSITORY / "tests/e2e/node"
WITHIN_S = 40.0
KEY_ID, WEBHOOK_ID = "1f0a9c3b5d7e2468", "1790000000000-0"


@dataclass(frozen=True)
class Snippet:
    """A piece of code of a page: its first line there, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def why_not(self) -> list[tuple[str, str]]:
        """The entries of `NOT_RUN` that name it."""
        return [entry for entry in NOT_RUN if self.page.startswith(entry[0]) and entry[1] in self.text]


def snippets() -> list[Snippet]:
    """All of README.md and docs, in their order."""
    found = []
    docs = REPOSITORY / "docs"
    for path in [REPOSITORY / "README.md", *sorted(docs.glob("*.md"))]:
        page = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(page):
            line = page.count("\n", 0, match.start()) + 2
            found += [Snippet(path.name, line, match[1], match[2])] if match[1] in RUN else []
    return found


SNIPPETS = snippets()
LATER = ("gateway.md", "start.md")
"""Pages whose snippets are run by `make test-long`: the SDKs that they start are asked by other tests, too."""
SHELL = [each for each in SNIPPETS if each.language in ("sh", "bash", "console")]


@dataclass(frozen=True)
class Stage:
    """Surroundings of snippets: a folder of a user, the environment of the user's shell, and ports."""

    folder: Path
    environment: dict[str, str]
    ports: dict[str, int]

    def here(self, text: str) -> str:
        """A text with the ports of this stage; what would listen at a port of its own picks a free one."""

        def port(found: re.Match[str]) -> str:
            return found[1] + str(0 if found[1] == "--port " else self.ports[found[2]])

        return ADDRESS.sub(port, text)

    def command(self, snippet: Snippet) -> list[str]:
        """The command that runs a snippet."""
        text = self.here(snippet.text)
        if snippet.language == "python":
            return [sys.executable, "-c", text]
        if snippet.language == "js":
            return [program("node"), "--input-type=module", "--eval", text]
        return ["bash", "-e", "-c", text]


def run(stage: Stage, snippet: Snippet) -> str:
    """Run a snippet to its end, or until what it starts is ready. Returns what it printed."""
    serves = snippet in SHELL and SERVES.search(snippet.text.strip().replace("\\\n ", "")) is not None
    log = stage.folder / "printed"
    with log.open("wb") as printed:
        process = subprocess.Popen(
            stage.command(snippet),
            cwd=NODE if snippet.language == "js" else stage.folder,
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if serves:
            eventually_blocking(
                lambda: process.poll() is not None or READY.search(log.read_text()), WITHIN_S, f"{snippet} is ready"
            )
            assert process.poll() is None, log.read_text()
            os.killpg(process.pid, signal.SIGTERM)
        code = process.wait(WITHIN_S)
    finally:
        for each in (signal.SIGTERM, signal.SIGKILL):
            with_group(process.pid, each)
        process.wait()
    assert code in ((0, -signal.SIGTERM, 128 + signal.SIGTERM) if serves else (0,)), log.read_text()
    return log.read_text()


def with_group(group: int, signum: signal.Signals) -> None:
    """Send a signal to what is left of a process group."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One fleet for all snippets, with what their pages name: request r-42, a key, a dead webhook, files."""
    folder = tmp_path_factory.mktemp("snippets")
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(newest(find_servers())))
        worker = WorkerProcess(server.url, folder, "w1", lease_ms=10_000)
        stack.callback(worker.destroy)
        settings = {"models": "my-model=default=simulated", "files": f"file://{folder}/files"}
        settings |= {"webhooks_allow_private": "true", "webhooks_allow_http": "true", "webhooks_ports": "0"}
        named = {f"gateway_{name}": value for name, value in (settings | {"health_port": "0"}).items()}
        kept = {"gateway.webhook_messages.DEAD_TTL_MS": 99_999_999_999_999}  # the pages show one of a fixed day
        gateway = stack.enter_context(gateway_on(server.url, folder, GatewayProcess, kept, **named))
        watching = stack.enter_context(exporter(server.url))
        key, _ = make_key(server.url, "my-service")
        asyncio.run(name_a_key(server.url))
        serving = [sys.executable, "-m", "tests.integration.command_server", str(folder / "commands")]
        stack.enter_context(stopped(subprocess.Popen(serving, cwd=REPOSITORY)))
        worker.ready_blocking()
        with redis.Redis.from_url(server.url) as rows:
            fail_a_request(rows)
            for lane in LANES:  # whose worker, which starts vLLM, is not run: without one, `doctor` fails
                rows.xgroup_create(Keys("queries").lane(lane), GROUP, "0", mkstream=True)
        with SyncClient(server.url) as fleet:  # lengths that plans are made by
            asks = [{"body": {"prompt": "hi", "max_tokens": 20}, "tenant": "acme"} for _ in range(4)]
            assert len(list(fleet.as_completed(fleet.enqueue_many(asks), timeout=WITHIN_S))) == len(asks)
        EngineProfile(GENERIC_FAST, 2.0, {}).save(folder / "engine.json")
        (traffic,) = re.findall(
            r"```json\n(.*?)```", (REPOSITORY / "docs/performance.md").read_text("utf-8"), re.DOTALL
        )
        (folder / "traffic.jsonl").write_text(traffic)
        for each in (each for each in SHELL if "cat > requests.jsonl" in each.text):
            subprocess.run(["bash", "-c", each.text], cwd=folder, check=True)
        ports = {"6379": server.port, "8080": gateway.port, "9101": watching.port, "8000": free_port()}
        ports["9100"] = int(worker.events("worker_starting")[0]["health_port"])
        ports["8081"] = int(gateway.events("gateway_ready")[0]["health_port"])
        usual = {f"STREAMFLEET_{name.upper()}": value for name, value in (named | {"exporter_port": "0"}).items()}
        usual |= {"OPENAI_API_KEY": key, "PATH": commands(folder, server.port)}
        eventually_blocking((folder / "commands").exists, WITHIN_S, "commands are served")
        yield Stage(folder, environment(server.url, **usual), ports)


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process at the end."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def commands(folder: Path, port: int) -> str:
    """PATH of a user who has installed streamfleet and redis-cli, in a clone."""
    path = os.pathsep.join((str(Path(sys.prefix) / "bin"), os.environ["PATH"]))
    client = shutil.which("redis-cli", path=path) or skip_without("redis-cli", "sudo apt-get install redis-tools")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "redis-cli").write_text(f'#!/bin/sh\nexec {client} -e -p {port} "$@"\n')
    (programs / "streamfleet").write_text(command_server.shim(folder / "commands"))
    for each in programs.iterdir():
        each.chmod(0o755)
    for name in ("examples", "monitoring", "k8s"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return os.pathsep.join((str(programs), path))


async def name_a_key(url: str) -> None:
    """Add a key with the id that the pages show."""
    digest = KEY_ID + "0" * 48
    broker = GatewayBroker(Connection(url), GatewayNames())
    await broker.add(digest, make_record(digest, "acme", "acme"))
    await broker.close()


def fail_a_request(rows: redis.Redis) -> None:
    """Let r-42 end with a dead letter."""
    rows.xadd("{default}:lane:high", {"id": "r-42", "body": "no JSON"})
    eventually_blocking(lambda: rows.hget("{default}:result:r-42", "status"), WITHIN_S, "r-42 has failed")


def lose_a_webhook(rows: redis.Redis) -> None:
    """Add a dead webhook with the id that the page shows."""
    message = Message("msg_1", "http://127.0.0.1:1/hook", "job.completed", "my-service", "{}", 1)
    fields: dict[Any, Any] = {
        "id": "msg_1",
        "message": message.encoded(),
        "attempts": 10,
        "reason": "attempts",
        "status": 503,
    }
    fields["error"] = "it answered 503"
    rows.delete(WebhookNames().dead)
    rows.xadd(WebhookNames().dead, fields, id=WEBHOOK_ID)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "snippet",
    [
        pytest.param(each, marks=[pytest.mark.long] if each.page in LATER else [])
        for each in SNIPPETS
        if each.language != "yaml" and not each.why_not
    ],
    ids=str,
)
def test_snippet_runs_as_it_stands(stage: Stage, snippet: Snippet) -> None:
    with redis.Redis.from_url(stage.environment["REDIS_URL"]) as rows:
        lose_a_webhook(rows)  # those before it may have sent it again
    run(stage, snippet)


@pytest.mark.timeout(120)
def test_the_receiver_of_webhooks_prints_what_comes(stage: Stage) -> None:
    (receiver,) = (each for each in SHELL if "class Receiver" in each.text)
    (asking,) = (each for each in SHELL if "callback_url" in each.text)
    with redis.Redis.from_url(stage.environment["REDIS_URL"]) as rows:
        rows.delete(WebhookNames().secrets)  # it makes one, once
    wait = 'until grep -q \'"object":"job"\' printed; do sleep 0.1; done\n'
    both = Snippet(receiver.page, receiver.line, "sh", receiver.text + asking.text + wait)
    printed = run(stage, both)
    assert printed.count('"type":"job.completed"') == 1
    assert '"outputs":["[simulated]' in printed


@pytest.mark.parametrize("snippet", [each for each in SNIPPETS if each.language == "yaml"], ids=str)
def test_yaml_is_read_and_overlays_are_rendered(snippet: Snippet) -> None:
    assert list(yaml.safe_load_all(snippet.text))
    for overlay in [] if snippet.why_not else overlays(f"```yaml\n{snippet.text}```\n"):
        assert of_overlay(overlay)


@pytest.mark.parametrize("snippet", SHELL, ids=str)
def test_whatever_is_for_a_shell_can_be_pasted(snippet: Snippet) -> None:
    """Snippets that are not run, too."""
    for shell in ("bash", "sh"):
        subprocess.run([shell, "-n", "-c", snippet.text], check=True, capture_output=True)
    assert not re.search(r"…|\.\.\.|<[a-z_-]+>", snippet.text), "a placeholder"
    assert not re.search(r"^\s*[$%>] ", snippet.text, re.MULTILINE), "a prompt"
    assert snippet.page.startswith(COMMENTED) or not re.search(r"(?:^|\s)#", snippet.text), "zsh takes no comments"


def test_every_snippet_that_is_not_run_is_there() -> None:
    assert set(NOT_RUN) == {entry for each in SNIPPETS for entry in each.why_not}
