"""compose.yaml, as podman-compose reads it, held against the images, the settings and what it mounts."""

import copy
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from streamfleet.common.settings import GROUPS, load_all, load_for_exporter, load_for_gateway, variable
from streamfleet.worker.worker import LAST_WRITES_S
from tests.integration.k8s_gateway import GATEWAY_ENDS_S
from tests.integration.k8s_manifests import VERSION, manifests_of, only, pod_of
from tests.integration.k8s_manifests import environment_of as environment_in
from tests.integration.k8s_references import off_mounts
from tests.programs import program
from tests.unit.test_dockerfile import DOCKERFILE, ROOT, stages

Service = dict[str, Any]
PROFILES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3", "monitoring")
NOT_OURS = ("redis", "prometheus", "grafana")
LOCAL = re.compile(r"127\.0\.0\.1:\d+:\d+")
RESTRICTED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
NO_SETTINGS = {"REDIS_URL", "HF_TOKEN", "HOME"}


@cache
def services(*profiles: str, **variables: str) -> dict[str, Service]:
    """The services of compose.yaml with these profiles and variables; copy before changing one."""
    command = [sys.executable, "-m", "podman_compose", "--dry-run", f"--env-file={os.devnull}"]
    command += [*(f"--profile={each}" for each in profiles), "config"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STREAMFLEET_")} | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Service] = yaml.safe_load(done.stdout)["services"]
    return found


def environment_of(service: Service) -> dict[str, str]:
    """A container's environment: its image's, and its own."""
    target = service.get("build", {}).get("target")
    words = " ".join(stages(DOCKERFILE.read_text(encoding="utf-8"))[target].all("ENV")) if target else ""
    found: dict[str, str] = dict(re.findall(r"(\w+)=(\S+)", words)) | service.get("environment", {})
    return found


def mounts_of(service: Service) -> dict[str, str]:
    """What is mounted, by its path in the container; a tmpfs has no source."""
    volumes = (each.split(":") for each in service.get("volumes", []))
    return {target: source for source, target, *_ in volumes} | {
        each.partition(":")[0]: "" for each in service.get("tmpfs", [])
    }


def settings_of(name: str, service: Service) -> dict[str, Any]:
    """The settings as a service's own program loads them."""
    loading: Callable[[], tuple[Any, ...]] = {"gateway": load_for_gateway, "exporter": load_for_exporter}.get(
        name, load_all
    )
    with patch.dict(os.environ, environment_of(service), clear=True):
        return {field: value for group in loading() for field, value in group.model_dump().items()}


def wrong(found: dict[str, Service]) -> Iterator[str]:
    """Everything that does not start, is lost with its container, or is open to other machines."""
    published = [port for each in found.values() for port in each.get("ports", [])]
    counted = Counter(port.rpartition(":")[0] for port in published)
    yield from (f"{address} is published twice" for address, count in counted.items() if count > 1)
    yield from (f"{port} is open to other machines" for port in published if not LOCAL.fullmatch(port))
    for name, service in found.items():
        mounts = mounts_of(service)
        said = [*service.get("environment", {}).values(), *service.get("command", [])]
        yield from (f"{name}: {path} is on no mount" for path in off_mounts(said, mounts))
        yield from (
            f"{name}: {path} is not there" for path in mounts.values() if path[:1] == "." and not (ROOT / path).exists()
        )
        if name not in NOT_OURS:
            yield from (f"{name}: {line}" for line in _wrong_of_ours(name, service))


def _wrong_of_ours(name: str, service: Service) -> Iterator[str]:
    if service["image"] != f"streamfleet/{service['build']['target']}:{VERSION}":
        yield f"{service['image']} is not what is built"
    if not RESTRICTED.items() <= service.items():
        yield "may do more than it has to"
    if list(service["depends_on"]) != ["redis"]:
        yield "may outlive Redis"
    if "STREAMFLEET_MODEL" in service["environment"] and service.get("shm_size") != "4gb":
        yield "vLLM's processes have too little shared memory"
    known = {variable(field) for group in GROUPS for field in group.model_fields} | NO_SETTINGS
    named = (each for each in environment_of(service) if not each.startswith("PYTHON"))
    yield from (f"{each} is no setting" for each in named if each not in known)
    loaded, needed_s = settings_of(name, service), 0.0
    if "drain_ms" in loaded:
        needed_s = loaded["drain_ms"] / 1000 + LAST_WRITES_S
    if "gateway_drain_ms" in loaded:
        needed_s = loaded["gateway_drain_ms"] / 1000 + GATEWAY_ENDS_S
    if float(service.get("stop_grace_period", "10s").removesuffix("s")) < needed_s:
        yield f"is killed before its {needed_s:g} s are over"


def test_nothing_is_wrong() -> None:
    assert list(wrong(services(*PROFILES))) == []


MISTAKES: list[tuple[Callable[[dict[str, Service]], object], str]] = [
    (lambda all_: all_["gpu-1"].update(ports=["127.0.0.1:8080:9100"]), "published twice"),
    (lambda all_: all_["worker"].update(ports=["9100:9100"]), "open to other machines"),
    (lambda all_: all_["gateway"].update(volumes=[]), "gateway: /cache/files is on no mount"),
    (lambda all_: all_["redis"].update(volumes=["redis:/data"]), "redis: /etc/redis/redis.conf is on no mount"),
    (lambda all_: all_["grafana"]["volumes"].append("./monitoring/boards:/b:ro"), "./monitoring/boards is not there"),
    (lambda all_: all_["worker"]["build"].update(target="worker"), f"worker-cpu:{VERSION} is not what is built"),
    (lambda all_: all_["gpu-0"].update(read_only=False), "gpu-0: may do more"),
    (lambda all_: all_["exporter"].update(depends_on={}), "exporter: may outlive Redis"),
    (lambda all_: all_["gpu-3"]["environment"].update(STREAMFLEET_MODELL="a"), "STREAMFLEET_MODELL is no setting"),
    (lambda all_: all_["worker"].pop("shm_size"), "worker: vLLM's processes have too little shared memory"),
    (lambda all_: all_["worker"].update(stop_grace_period="20s"), "worker: is killed before"),
    (lambda all_: all_["gateway"].update(stop_grace_period="30s"), "gateway: is killed before"),
]


@pytest.mark.parametrize(("spoil", "finding"), MISTAKES)
def test_planted_mistake_is_found(spoil: Callable[[dict[str, Service]], object], finding: str) -> None:
    found = copy.deepcopy(services(*PROFILES))
    spoil(found)
    assert [line for line in wrong(found) if finding in line]


def test_without_a_profile_it_is_the_fleet_of_the_first_request() -> None:
    assert sorted(services()) == ["exporter", "gateway", "redis", "worker"]
    laptop, here = manifests_of("dev-cpu"), environment_of(services()["worker"])
    container = pod_of(only(laptop, "Deployment", "streamfleet-worker"))["containers"][0]
    for name in ("STREAMFLEET_MODEL", "STREAMFLEET_ENGINE_ARGS", "STREAMFLEET_HEALTH_PORT"):
        assert here[name] == environment_in(container, laptop)[name]
    redis = pod_of(only(laptop, "StatefulSet", "streamfleet-redis"))["containers"][0]
    assert services()["redis"]["image"] == f"docker.io/library/{redis['image']}"


def test_each_gpu_has_one_worker_with_the_variables_of_the_file_env() -> None:
    said = {"STREAMFLEET_MODEL": "Qwen/Qwen2.5-7B-Instruct", "STREAMFLEET_ENGINE_ARGS": "--max-num-seqs 64"}
    found = services(*PROFILES, CPU_WORKERS="0", HF_TOKEN="secret", REDIS_PASSWORD="word", **said)
    workers = {name: each for name, each in found.items() if name.startswith("gpu-")}
    devices = [each["deploy"]["resources"]["reservations"]["devices"] for each in workers.values()]
    assert [[each["device_ids"] for each in of] for of in devices] == [[[name[4:]]] for name in workers]
    for each in workers.values():
        assert said.items() <= each["environment"].items()
        assert each["environment"]["HF_TOKEN"] == "secret"
        assert each["networks"] == {"default": {"aliases": ["worker"]}}, "Prometheus finds it by that name"
    assert found["worker"]["scale"] == "0"
    assert {each["environment"]["REDIS_URL"] for name, each in found.items() if name not in NOT_OURS} == {
        "redis://:word@redis:6379/0"
    }
    assert "word" in found["redis"]["command"]


def test_prometheus_scrapes_every_part_where_it_listens(tmp_path: Path) -> None:
    file = ROOT / "monitoring/prometheus.yml"
    subprocess.run([program("promtool"), "check", "config", str(file)], check=True, capture_output=True)
    found, jobs = services(), yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    static = {target for job in jobs for row in job.get("static_configs", []) for target in row["targets"]}
    dns = {f"{name}:{row['port']}" for job in jobs for row in job.get("dns_sd_configs", []) for name in row["names"]}
    listening = {"exporter": "exporter", "gateway": "gateway_health", "worker": "health"}
    ports = {f"{name}:{settings_of(name, found[name])[f'{field}_port']}" for name, field in listening.items()}
    assert static | dns == ports
    hosts = {"exporter": "exporter_host", "gateway": "gateway_host", "worker": "health_host"}
    assert {settings_of(name, found[name])[field] for name, field in hosts.items()} == {"0.0.0.0"}  # noqa: S104
