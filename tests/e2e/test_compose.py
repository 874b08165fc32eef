"""The services of compose.yaml as processes of this machine: commands, settings and files are their own.

What the containers would give them is put in its place: addresses and ports of loopback for names, folders for volumes,
and the folder of `make demo` for the model, which a container downloads. `make test` has the simulated engine in place
of vLLM.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path

import httpx
import pytest

from tests.conftest import REPOSITORY
from tests.servers import newest
from tests.support.redis_server import find_servers, free_port
from tests.unit.test_compose import environment_of, mounts_of, services
from tests.unit.test_dockerfile import DOCKERFILE, stages
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.timeout(400)

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FIRST_REQUEST = re.compile(r"^```sh\n(streamfleet enqueue --wait .*?)^```", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\w+_PORT")


class Host:
    """A machine on which the services run.

    Args:
        folder: gets volumes and logs.
        model: the worker's.
        engine: the worker's.
    """

    def __init__(self, folder: Path, model: Path, engine: str) -> None:
        self._folder, self._model = folder, model
        self._services = deepcopy(services())
        self._services["worker"]["environment"]["STREAMFLEET_ENGINE"] = engine
        self.redis_port = free_port()
        self.ports: dict[str, str] = {}

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A service's process; at the end it gets SIGTERM, and has to end well within its grace period."""
        service = self._services[name]
        environment = {key: self._here(name, value) for key, value in environment_of(service).items()}
        for key in filter(PORT.fullmatch, environment):
            environment[key] = self.ports[f"{name} {key}"] = str(free_port())
        command = [self._here(name, word) for word in service.get("command", [])]
        if name == "redis":
            command = [str(newest(find_servers())), *command[1:], "--port", str(self.redis_port)]
        else:
            text = DOCKERFILE.read_text(encoding="utf-8")
            program, *words = stages(text)[service["build"]["target"]].last("ENTRYPOINT").json_array()
            command = [sys.executable, "-m", f"{program}.cli", *words, *command]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)} | environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
            process.terminate()
            assert process.wait(float(service.get("stop_grace_period", "10s").removesuffix("s"))) == 0
        finally:
            process.kill()
            process.wait()

    def wait_ready(self, name: str, port: str) -> None:
        """Wait until a service says that it is ready."""
        url = f"http://127.0.0.1:{self.ports[f'{name} {port}']}/readyz"

        def ready() -> bool:
            try:
                return httpx.get(url, trust_env=False).status_code == 200
            except httpx.TransportError:
                return False

        eventually_blocking(ready, 240, f"{name} is ready")

    def says(self, name: str) -> str:
        """Everything that a service has printed."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _here(self, name: str, text: str) -> str:
        """A text of the file with names, paths and ports of this machine."""
        mounts = mounts_of(self._services[name])

        def folder(found: re.Match[str]) -> str:
            source = mounts[found[0]]
            if source.startswith("."):
                return str(REPOSITORY / source)
            volume = self._folder / (source or "tmp")
            volume.mkdir(exist_ok=True)
            return str(volume)

        text = re.sub(rf"(?<![\w.])({'|'.join(mounts)})\b", folder, text) if mounts else text
        text = text.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(self._model))
        return text.replace("redis:6379", f"127.0.0.1:{self.redis_port}").replace("0.0.0.0", "127.0.0.1")  # noqa: S104


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        ("simulated", "[simulated]"),
        pytest.param("vllm", "Paris", marks=[pytest.mark.needs_vllm, pytest.mark.long]),
    ],
)
def test_the_first_request_of_the_readme_is_answered(tmp_path: Path, smollm2: Path, engine: str, answer: str) -> None:
    """By the command line from outside, and by HTTP with a key made inside."""
    host = Host(tmp_path, smollm2, engine)
    (first,) = FIRST_REQUEST.findall(README)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    outside = os.environ | {"PATH": path, "REDIS_URL": f"redis://127.0.0.1:{host.redis_port}"}

    def shell(command: str) -> str:
        done = subprocess.run(["bash", "-ec", command], env=outside, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + host.says("worker")
        return done.stdout

    with ExitStack() as stack:
        # In this order they start, and from the last to the first they end: Redis outlives who hands work back to it.
        for name in ("redis", "exporter", "worker", "gateway"):
            stack.enter_context(host.running(name))
        host.wait_ready("worker", "STREAMFLEET_HEALTH_PORT")
        assert answer in shell(first)
        host.wait_ready("gateway", "STREAMFLEET_GATEWAY_HEALTH_PORT")
        key = shell("streamfleet gateway keys create me").split()[-1]
        url = f"http://127.0.0.1:{host.ports['gateway STREAMFLEET_GATEWAY_PORT']}/v1"
        with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False) as client:
            (model,) = client.get(f"{url}/models").json()["data"]
            body = {"model": model["id"], "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 8}
            assert client.post(f"{url}/chat/completions", json=body).json()["usage"]["completion_tokens"] > 0
            files = {"file": ("lines.jsonl", b"{}")}
            client.post(f"{url}/files", data={"purpose": "batch"}, files=files).raise_for_status()
        assert list((tmp_path / "files").rglob("*")), "on the gateway's volume"
        shell("streamfleet audit")
    assert list((tmp_path / "redis").rglob("*.aof*")), "on Redis's volume"
