"""The manifests of k8s/base and of the overlays as kubectl renders them, and ways to find one's way around in them."""

import shutil
import subprocess
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.integration.k8s_programs import find_renderer

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
BASE = K8S / "base"
DOCKERFILE = ROOT / "Dockerfile"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def render(folder: Path) -> list[Manifest]:
    """All manifests of a kustomization.

    Raises:
        subprocess.CalledProcessError: it does not render.
        RendererMissingError: there is nothing to render it with.
    """
    command = [*find_renderer(), str(folder)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # The parser in C is the same, ten times as fast.
    return list(yaml.load_all(rendered, Loader=yaml.CSafeLoader))


def kustomizations(folder: Path = K8S) -> dict[str, Path]:
    """Returns every kustomization: the base, and every overlay by its name."""
    overlays = sorted(each.parent for each in (folder / "overlays").glob("*/kustomization.yaml"))
    return {"base": folder / "base", **{each.name: each for each in overlays}}


@cache
def manifests_of(name: str) -> list[Manifest]:
    """The manifests of the base or of an overlay; copy before changing one."""
    return render(kustomizations()[name])


@cache
def with_component(component: str, k8s: Path = K8S) -> list[Manifest]:
    """The base with one of the components; copy before changing one."""
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(k8s, Path(folder) / "k8s")
        overlay = copied / "overlays" / "tried"
        overlay.mkdir()
        text = f"resources: [../../base]\ncomponents: [../../components/{component}]\n"
        (overlay / "kustomization.yaml").write_text(text, encoding="utf-8")
        return render(overlay)


def base() -> list[Manifest]:
    """The manifests of k8s/base; copy before changing one."""
    return manifests_of("base")


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """All manifests of these kinds, in their order."""
    return [each for each in manifests if each["kind"] in kinds]


def name_of(manifest: Manifest) -> str:
    """The name that it gets in the cluster."""
    name: str = manifest["metadata"]["name"]
    return name


def pod_of(workload: Manifest) -> Manifest:
    """The spec of a workload's pods."""
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def labels_of(workload: Manifest) -> dict[str, str]:
    """The labels of a workload's pods."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def workloads(manifests: list[Manifest]) -> list[Manifest]:
    """Everything that starts pods."""
    return of_kind(manifests, "Deployment", "StatefulSet")


def pools(manifests: list[Manifest]) -> list[Manifest]:
    """The Deployments of workers."""
    return [
        each
        for each in of_kind(manifests, "Deployment")
        if labels_of(each).get("app.kubernetes.io/component") == "worker"
    ]


def gateways(manifests: list[Manifest]) -> list[Manifest]:
    """The Deployments of HTTP gateways."""
    return [
        each
        for each in of_kind(manifests, "Deployment")
        if labels_of(each).get("app.kubernetes.io/component") == "gateway"
    ]


def environment_of(container: Manifest, manifests: list[Manifest]) -> dict[str, str]:
    """Returns a container's environment as text: its ConfigMaps, then its own variables, but nothing of Secrets."""
    maps = {name_of(each): each["data"] for each in of_kind(manifests, "ConfigMap")}
    sources = [each["configMapRef"]["name"] for each in container.get("envFrom", [])]
    given = {name: value for source in sources for name, value in maps.get(source, {}).items()}
    own = {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
    return given | {name: value for name, value in own.items() if not name.endswith("_FILE")}


def redis_secret(pod: Manifest) -> str:
    """The Secret with Redis's URL. It is a file, which changes with the Secret while the pod runs."""
    (container,) = pod["containers"]
    (entry,) = [each for each in container["env"] if each["name"] == "REDIS_URL_FILE"]
    (secret,) = [each for each in pod["volumes"] if "secret" in each]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == secret["name"]]
    assert "subPath" not in mount  # such a file keeps its first content
    assert secret["secret"]["items"] == [{"key": "url", "path": "url"}]
    assert entry["value"] == f"{mount['mountPath']}/url"
    return str(secret["secret"]["secretName"])


def only(manifests: list[Manifest], kind: str, prefix: str = "streamfleet-") -> Manifest:
    """The one manifest of this kind whose name starts with `prefix`."""
    of_kind = [each for each in manifests if each["kind"] == kind]
    found = [each for each in of_kind if each["metadata"]["name"].startswith(prefix)]
    assert len(found) == 1, f"{len(found)} manifests of kind {kind} named {prefix}*"
    return found[0]


def pod_templates() -> dict[str, Manifest]:
    """The pod template of every workload, by the workload's name."""
    return {name_of(each): each["spec"]["template"] for each in workloads(base())}


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
    """Returns the worker's settings from its ConfigMap."""
    data: dict[str, str] = only(base(), "ConfigMap", "streamfleet-worker")["data"]
    return data
