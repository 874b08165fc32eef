"""Servers for tests of OpenAI's clients: Redis, a gateway, and one worker with real vLLM at a time."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamfleet.cli.demo.server import RedisServer, find_servers
from streamfleet.common.protocol import Lane
from streamfleet.worker.engine.processes import Process, alive, command_line, descendants
from tests.e2e.sdk_findings import Findings, Json
from tests.integration.gateway_process import GatewayProcess, gateway_on, make_key
from tests.integration.worker_process import WorkerProcess
from tests.programs import program, skip_without
from tests.servers import newest
from tests.waiting import eventually_blocking

NODE = Path(__file__).parent / "node"
START_S = 240.0
STOP_S = 20.0
WATCHDOG_S = 8.0
QUEUES = {"generating": "default", "embedding": "embeddings"}
MODELS = {"generating": "smollm2", "embedding": "smollm2-embeddings"}
ENGINE_ARGS = {
    "generating": "--max-num-seqs 8 --max-model-len 2048",
    "embedding": "--max-num-seqs 8 --max-model-len 512 --runner pooling --convert embed",
}


class Stack:
    """The parts, and what each client found at them: asked once for each kind of engine.

    Attributes:
        url: the Redis.
        gateway: has a model for each kind of engine, of a queue of its own.
        key: an API key.
    """

    def __init__(self, url: str, gateway: GatewayProcess, key: str, model: Path, folder: Path) -> None:
        self.url, self.gateway, self.key = url, gateway, key
        self._model, self._folder = model, folder
        self._worker: WorkerProcess | None = None
        self._kind = ""
        self._found: dict[tuple[str, str], Json | Exception] = {}

    def worker(self, kind: str) -> WorkerProcess:
        """A worker with this kind of engine, ready; one of the other kind is ended first."""
        if self._worker is not None and self._worker.alive and self._kind == kind:
            return self._worker
        self.close()
        self._kind = kind
        self._worker = worker = WorkerProcess(
            self.url,
            self._folder,
            kind,
            engine="vllm",
            model=self._model,
            engine_args=f"--served-model-name {MODELS[kind]} {ENGINE_ARGS[kind]}",
            queue=QUEUES[kind],
            lease_ms=2_000,
            watchdog_s=WATCHDOG_S,
            log_level="info",  # it is read again and again until the worker is ready
        )
        eventually_blocking(lambda: worker.events("worker_ready") or not worker.alive, START_S, f"{kind} is ready")
        assert worker.alive, worker.printed()[-3_000:]
        return worker

    def close(self) -> None:
        """End the worker, and see that its engine is gone: two would share memory that each takes for its own."""
        if self._worker is None:
            return
        family = descendants(self._worker.pid)
        worker, self._worker = self._worker, None
        with contextlib.suppress(AssertionError):  # then the hard way
            worker.send(signal.SIGTERM)
            eventually_blocking(lambda: not worker.alive, STOP_S)
        worker.destroy()
        eventually_blocking(lambda: not [each for each in family if alive(each)], STOP_S, "its engine is gone")

    def engine_process(self, title: str) -> Process:
        """A process of the engine, by vLLM's title for it: "EngineCore" or "Worker"."""
        assert self._worker is not None
        found = descendants(self._worker.pid)
        return next(process for process in found if f"VLLM::{title}" in command_line(process))

    def running_in_engine(self) -> float:
        """vLLM's own count of what it runs."""
        assert self._worker is not None
        lines = self._worker.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))

    def found(self, kind: str, language: str, setup: Json) -> Json:
        """Findings of this language's client at this kind of engine; the client runs once, even if it fails."""
        if language == "node":
            need_node()
        if (kind, language) not in self._found:
            self.worker(kind)
            known = {"base_url": f"{self.gateway.url}/v1", "key": self.key, "model": MODELS[kind]}
            try:
                self._found[kind, language] = ask(kind, language, known | setup)
            except Exception as error:  # noqa: BLE001 - whatever it is, each test that needs the findings raises it
                self._found[kind, language] = error
        found = self._found[kind, language]
        if isinstance(found, Exception):
            raise found
        return found


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
def stack_in(folder: Path, model: Path) -> Iterator[Stack]:
    """A stack of one's own, without a worker as yet."""
    routes = ",".join(f"{MODELS[kind]}={queue}" for kind, queue in QUEUES.items())
    with RedisServer(newest(find_servers())) as server:
        settings = {"gateway_models": routes, "gateway_files": f"file://{folder}/files"}
        with gateway_on(server.url, folder, **settings) as gateway:
            key, _ = make_key(server.url, "everything", lanes=tuple(Lane))
            stack = Stack(server.url, gateway, key, model, folder)
            try:
                yield stack
            finally:
                stack.close()
