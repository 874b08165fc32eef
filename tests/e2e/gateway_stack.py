"""Servers for tests with real vLLM: Redis, a gateway, and one worker."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psutil import Process

from streamfleet.common.protocol import Lane
from streamfleet.worker.engine.engine_thread import alive, command_line, descendants
from tests.e2e.sdk_findings import Findings, Json
from tests.integration.gateway_process import GatewayProcess, gateway_on, make_key
from tests.integration.worker_process import WorkerProcess
from tests.programs import program, skip_without
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

CLIENTS = pytest.mark.parametrize("language", ["python", pytest.param("node", marks=pytest.mark.long)])
"""`make clients` asks a gateway by OpenAI's client for Node as well."""
NODE = Path(__file__).parent / "node"
START_S = 240.0
STOP_S = 20.0
QUEUES = {"generating": "default", "embedding": "embeddings"}
MODELS = {"generating": "smollm2", "embedding": "smollm2-embeddings"}
# CPUs without bfloat16 compute float32 several times faster.
ENGINE_ARGS = {
    "generating": "--dtype float32 --max-num-seqs 32 --max-model-len 2048",
    "embedding": "--dtype float32 --max-num-seqs 8 --max-model-len 512 --runner pooling --convert embed",
}


class Stack:
    """The parts, and what each client found at them: each client runs once.

    Args:
        kind: "generating" or "embedding".

    Attributes:
        url: the Redis.
        gateway: has a model for each kind of engine, of a queue of its own.
        key: an API key.
        worker: has vLLM; ready.
    """

    def __init__(self, kind: str, url: str, gateway: GatewayProcess, key: str, worker: WorkerProcess) -> None:
        self.url, self.gateway, self.key, self.worker = url, gateway, key, worker
        self._kind = kind
        self._found: dict[str, Json | Exception] = {}

    def engine_processes(self) -> dict[str, Process]:
        """Processes of the engine by vLLM's titles: "EngineCore" and "Worker"."""
        return engine_processes(self.worker.pid)

    def running_in_engine(self) -> float:
        """vLLM's own count of what it runs."""
        lines = self.worker.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))

    def found(self, language: str, setup: Json) -> Json:
        """Findings of this language's client; the client runs once, even if it fails."""
        if language == "node":
            need_node()
        if language not in self._found:
            known = {"base_url": f"{self.gateway.url}/v1", "key": self.key, "model": MODELS[self._kind]}
            try:
                self._found[language] = ask(self._kind, language, known | setup)
            except Exception as error:  # noqa: BLE001 - whatever it is, each test that needs the findings raises it
                self._found[language] = error
        found = self._found[language]
        if isinstance(found, Exception):
            raise found
        return found


def engine_processes(pid: int) -> dict[str, Process]:
    """The engine's processes below one, by vLLM's titles: "EngineCore" and "Worker"."""
    titles = {process: command_line(process) for process in descendants(pid)}
    return {title.split("::")[1].split()[0]: process for process, title in titles.items() if "VLLM::" in title}


def end(worker: WorkerProcess) -> None:
    """End a worker, and see that its engine is gone: two would share memory that each takes for its own."""
    family = descendants(worker.pid)
    with contextlib.suppress(AssertionError):  # then the hard way
        worker.send(signal.SIGTERM)
        eventually_blocking(lambda: not worker.alive, STOP_S)
    worker.destroy()
    eventually_blocking(lambda: not [each for each in family if alive(each)], STOP_S, "its engine is gone")


def ask(kind: str, language: str, setup: Json) -> Json:
    """Let a client find out."""
    if language == "python":
        findings = Findings(setup)
        return findings.generating() if kind == "generating" else findings.embedding()
    done = subprocess.run(
        ["node", "findings.mjs", kind],
        cwd=NODE,
        input=json.dumps(setup),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Any = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def need_node() -> None:
    """Skip where OpenAI's client for Node cannot run."""
    program("node")
    if installed() != pinned():
        skip_without(f"OpenAI's client for Node {pinned()}", "make test installs it")


def pinned() -> str:
    """The release of OpenAI's client for Node that is to be tried."""
    return str(json.loads((NODE / "package.json").read_text())["dependencies"]["openai"])


def installed() -> str:
    """The release that is there."""
    package = NODE / "node_modules/openai/package.json"
    return str(json.loads(package.read_text())["version"]) if package.exists() else "missing"


@contextmanager
def stack_in(
    folder: Path, model: Path, kind: str, before: Callable[[str], None] = lambda _: None, **settings: Any
) -> Iterator[Stack]:
    """A stack whose worker is ready.

    Args:
        folder: where logs and files go.
        model: the model's folder.
        kind: "generating" or "embedding".
        before: called with the URL of the Redis before the worker starts.
        settings: more settings of the worker, as `WorkerProcess` has them; ``engine_args`` are added to the usual ones.
    """
    routes = ",".join(f"{MODELS[kind]}={queue}" for kind, queue in QUEUES.items())
    arguments = f"--served-model-name {MODELS[kind]} {ENGINE_ARGS[kind]} {settings.pop('engine_args', '')}"
    with RedisServer(newest(find_servers())) as server:
        before(server.url)
        worker = WorkerProcess(
            server.url,
            folder,
            kind,
            engine="vllm",
            model=model,
            engine_args=arguments,
            queue=QUEUES[kind],
            lease_ms=2_000,
            log_level="info",  # it is read again and again until the worker is ready
            **settings,
        )
        try:
            files = f"file://{folder}/files"
            with gateway_on(server.url, folder, gateway_models=routes, gateway_files=files) as gateway:
                key, _ = make_key(server.url, "everything", lanes=tuple(Lane))
                eventually_blocking(
                    lambda: worker.events("worker_ready") or not worker.alive, START_S, f"{kind} is ready"
                )
                assert worker.alive, worker.printed()[-3_000:]
                yield Stack(kind, server.url, gateway, key, worker)
        finally:
            end(worker)
