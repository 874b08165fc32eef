"""k8s/base as Kubernetes gets it: rendered, validated strictly, held against what the worker expects."""

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from streamfleet.common.settings import GROUPS, WorkerSettings, load, variable
from streamfleet.worker.worker import LAST_WRITES_S
from tests.integration.k8s_manifests import (
    BASE,
    ROOT,
    Manifest,
    base,
    only,
    pod_templates,
    redis_pod,
    render,
    worker,
    worker_pod,
    worker_settings,
)

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

# The oldest release that knows everything used (preStop's sleep), and the newest that there are schemas for.
RELEASES = ("1.30", kubernetes_validate.latest_version())
# Read by Redis's own tools and by the Hugging Face client.
THIRD_PARTY = {"REDIS_PASSWORD", "REDISCLI_AUTH", "HF_TOKEN"}
WELL_KNOWN = {"REDIS_URL"}


def validate(manifests: list[Manifest], release: str = RELEASES[-1]) -> None:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_every_manifest_validates_strictly(release: str) -> None:
    validate(base(), release)


def test_base_holds_what_a_fleet_needs() -> None:
    assert sorted(each["kind"] for each in base()) == [
        "ConfigMap",
        "ConfigMap",
        "Deployment",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
        "StatefulSet",
    ]


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("worker-deployment.yaml", "readinessProbe:", "readynessProbe:"),
        ("worker-deployment.yaml", "periodSeconds: 5", "periodSeconds: 5s"),
        ("worker-deployment.yaml", "path: /readyz", "route: /readyz"),
        ("worker-poddisruptionbudget.yaml", "maxUnavailable: 1", "maxUnavailible: 1"),
        ("redis-statefulset.yaml", "replicas: 1", "replicas: one"),
        ("redis-service.yaml", "clusterIP: None", "clusterIp: None"),
    ],
)
def test_planted_mistake_is_found(tmp_path: Path, file: str, right: str, wrong: str) -> None:
    folder = shutil.copytree(BASE, tmp_path / "base")
    text = (folder / file).read_text(encoding="utf-8")
    assert right in text
    (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
    manifests = render(folder)
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(manifests)


def test_broken_kustomization_does_not_render(tmp_path: Path) -> None:
    folder = shutil.copytree(BASE, tmp_path / "base")
    (folder / "redis.conf").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        render(folder)


def test_base_takes_the_namespace_of_its_overlay() -> None:
    assert not [each for each in base() if "namespace" in each["metadata"]]


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
    pod = only(render(overlay), "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/fleet:9"


def test_grace_period_outlasts_the_drain() -> None:
    drain_s = int(worker_settings()["STREAMFLEET_DRAIN_MS"]) / 1000
    pre_stop_s = worker()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert worker_pod()["terminationGracePeriodSeconds"] >= pre_stop_s + drain_s + LAST_WRITES_S


def test_rolling_update_never_drops_below_capacity() -> None:
    rolling = only(base(), "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}


def test_rollout_waits_as_long_as_the_startup_probe() -> None:
    probe = worker()["startupProbe"]
    allowed_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert allowed_s >= 600
    assert only(base(), "Deployment")["spec"]["progressDeadlineSeconds"] >= allowed_s


def test_selectors_pick_their_own_pods_only() -> None:
    labels = {name: each["metadata"]["labels"] for name, each in pod_templates().items()}
    selectors = {
        "streamfleet-worker": [
            only(base(), "Deployment")["spec"]["selector"]["matchLabels"],
            only(base(), "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ],
        "streamfleet-redis": [
            only(base(), "StatefulSet")["spec"]["selector"]["matchLabels"],
            only(base(), "Service")["spec"]["selector"],
        ],
    }
    for owner, own in selectors.items():
        for selector in own:
            assert [name for name in labels if selector.items() <= labels[name].items()] == [owner]


def test_config_maps_exist_under_the_names_used() -> None:
    existing = {each["metadata"]["name"] for each in base() if each["kind"] == "ConfigMap"}
    used = {worker()["envFrom"][0]["configMapRef"]["name"]}
    used |= {each["configMap"]["name"] for each in redis_pod()["volumes"] if "configMap" in each}
    assert used == existing


def test_every_mount_has_its_volume() -> None:
    templates = only(base(), "StatefulSet")["spec"]["volumeClaimTemplates"]
    claims = {each["metadata"]["name"] for each in templates}
    for template in pod_templates().values():
        volumes = {each["name"] for each in template["spec"]["volumes"]} | claims
        mounted = {mount["name"] for each in template["spec"]["containers"] for mount in each["volumeMounts"]}
        assert mounted <= volumes


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


def test_gpu_request_equals_its_limit() -> None:
    resources = worker()["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "1"
    # Throttling would hold up lease renewals.
    assert "cpu" not in resources["limits"]


def test_service_links_stay_out_of_the_settings() -> None:
    assert [each["spec"]["enableServiceLinks"] for each in pod_templates().values()] == [False, False]


def test_every_variable_is_a_setting_or_known_elsewhere() -> None:
    settings = {variable(name) for group in GROUPS for name in group.model_fields} | WELL_KNOWN
    containers = [each for template in pod_templates().values() for each in template["spec"]["containers"]]
    named = {each["name"] for container in containers for each in container.get("env", [])}
    assert named | set(worker_settings()) <= settings | THIRD_PARTY
    readme = (ROOT / "k8s" / "README.md").read_text(encoding="utf-8")
    assert not [name for name in THIRD_PARTY if name not in readme]


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
