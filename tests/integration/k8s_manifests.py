"""The manifests of k8s/base as kubectl renders them, and ways to find one's way around in them."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.integration.kubectl import find_renderer

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "k8s" / "base"
DOCKERFILE = ROOT / "Dockerfile"


def render(folder: Path) -> list[Manifest]:
    """All manifests of a kustomization.

    Raises:
        subprocess.CalledProcessError: it does not render.
        RendererMissingError: there is nothing to render it with.
    """
    command = [*find_renderer(), str(folder)]
    return list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


@cache
def base() -> list[Manifest]:
    """The manifests of k8s/base; copy before changing one."""
    return render(BASE)


def only(manifests: list[Manifest], kind: str, prefix: str = "streamfleet-") -> Manifest:
    """The one manifest of this kind whose name starts with `prefix`."""
    of_kind = [each for each in manifests if each["kind"] == kind]
    found = [each for each in of_kind if each["metadata"]["name"].startswith(prefix)]
    assert len(found) == 1, f"{len(found)} manifests of kind {kind} named {prefix}*"
    return found[0]


def pod_templates() -> dict[str, Manifest]:
    """The pod template of every workload, by the workload's name."""
    workloads = [each for each in base() if "template" in each.get("spec", {})]
    return {each["metadata"]["name"]: each["spec"]["template"] for each in workloads}


def worker_pod() -> Manifest:
    """The spec of the worker's pod."""
    spec: Manifest = pod_templates()["streamfleet-worker"]["spec"]
    return spec


def worker() -> Manifest:
    """The worker's container."""
    container: Manifest = worker_pod()["containers"][0]
    return container


def redis_pod() -> Manifest:
    """The spec of Redis's pod."""
    spec: Manifest = pod_templates()["streamfleet-redis"]["spec"]
    return spec


def worker_settings() -> dict[str, str]:
    """What the ConfigMap puts into the worker's environment."""
    data: dict[str, str] = only(base(), "ConfigMap", "streamfleet-worker")["data"]
    return data
