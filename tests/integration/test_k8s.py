"""k8s/base as Kubernetes gets it, held against what the worker expects.

What holds of the overlays too is in test_k8s_overlays.py.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from streamfleet.common.settings import GROUPS, WorkerSettings, load
from tests.integration.k8s_manifests import (
    BASE,
    only,
    render,
    worker,
    worker_settings,
)
from tests.integration.k8s_rules import schema

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first


PLANTED = {
    "worker/worker-deployment.yaml": ("readinessProbe:", "readynessProbe:"),
    "worker/worker-poddisruptionbudget.yaml": ("maxUnavailable: 1", "maxUnavailible: 1"),
    "redis/redis-statefulset.yaml": ("replicas: 1", "replicas: one"),
    "redis/redis-service.yaml": ("clusterIP: None", "clusterIp: None"),
    "redis/redis-networkpolicy.yaml": ("podSelector:", "podSelektor:"),
}


def test_planted_mistakes_are_found(tmp_path: Path) -> None:
    folder = shutil.copytree(BASE, tmp_path / "base")
    for file, (right, wrong) in PLANTED.items():
        text = (folder / file).read_text(encoding="utf-8")
        assert right in text
        (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
    wrong_kinds = {each["kind"] for each in render(folder) if list(schema([each]))}
    assert wrong_kinds == {"Deployment", "PodDisruptionBudget", "StatefulSet", "Service", "NetworkPolicy"}


def test_broken_kustomization_does_not_render(tmp_path: Path) -> None:
    folder = shutil.copytree(BASE, tmp_path / "base")
    (folder / "redis" / "redis.conf").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        render(folder)


def test_overlay_sets_the_image(tmp_path: Path) -> None:
    assert worker()["image"].startswith("streamfleet/worker-gpu:")
    shutil.copytree(BASE, tmp_path / "base")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        "resources: [../base]\n"
        "images: [{name: streamfleet/worker-gpu, newName: registry.example/fleet, newTag: '9'}]\n",
        encoding="utf-8",
    )
    pod = only(render(overlay), "Deployment", "streamfleet-worker")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/fleet:9"


def test_startup_probe_covers_a_download() -> None:
    probe = worker()["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600


def test_probes_ask_the_port_that_the_worker_serves() -> None:
    ports = {each["name"]: each["containerPort"] for each in worker()["ports"]}
    asked = {name: worker()[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: each["path"] for name, each in asked.items()} == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",
    }
    for each in asked.values():
        assert ports[each["port"]] == int(worker_settings()["STREAMFLEET_HEALTH_PORT"])


def test_settings_of_the_config_map_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in worker_settings().items():
        monkeypatch.setenv(name, value)
    loaded = {field: value for group in GROUPS for field, value in load(group).model_dump().items()}
    names = {re.sub(r"^STREAMFLEET_", "", name).lower() for name in worker_settings()}
    assert {name: str(loaded[name]) for name in names} == {
        name: worker_settings()[f"STREAMFLEET_{name.upper()}"] for name in names
    }
    # The probes come from outside the pod.
    assert loaded["health_host"] == "0.0.0.0"  # noqa: S104


def test_defaults_of_the_code_and_of_the_manifests_agree() -> None:
    defaults = {name: field.default for name, field in WorkerSettings.model_fields.items()}
    assert worker_settings()["STREAMFLEET_DRAIN_MS"] == str(defaults["drain_ms"])
    assert worker_settings()["STREAMFLEET_HEALTH_PORT"] == str(defaults["health_port"])
