"""The pods of k8s/base: what a worker expects of its own, the restricted Pod Security Standard, and no secrets."""

import copy
import re
from collections.abc import Callable

import pytest

from streamfleet.common.settings import GROUPS, WorkerSettings, load
from tests.integration.k8s_manifests import (
    DOCKERFILE,
    Manifest,
    base,
    only,
    redis_secret,
    worker,
    worker_pod,
    worker_settings,
)
from tests.integration.pod_security import restricted_violations

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

SECRET = "streamfleet-redis"
EXTRA_VOLUME = {"name": "host", "hostPath": {"path": "/"}}


def _pod_context(pod: Manifest) -> Manifest:
    context: Manifest = pod["securityContext"]
    return context


def _context(pod: Manifest) -> Manifest:
    context: Manifest = pod["containers"][0]["securityContext"]
    return context


@pytest.mark.parametrize(
    ("weaken", "violation"),
    [
        (lambda pod: _pod_context(pod).update(runAsUser=0), "worker: runAsUser is 0"),
        (lambda pod: _pod_context(pod).update(sysctls=[{"name": "a", "value": "b"}]), "sysctls are set"),
        (
            lambda pod: _context(pod).pop("allowPrivilegeEscalation"),
            "worker: allowPrivilegeEscalation is not false",
        ),
        (
            lambda pod: _context(pod)["capabilities"].update(add=["SYS_PTRACE"]),
            "worker: capabilities are added",
        ),
        (lambda pod: _context(pod).update(privileged=True), "worker: privileged"),
        (lambda pod: _context(pod).update(procMount="Unmasked"), "worker: procMount is set"),
        (lambda pod: pod["containers"][0]["ports"][0].update(hostPort=9100), "worker: hostPort is set"),
        (lambda pod: pod.update(hostIPC=True), "hostIPC is set"),
        (lambda pod: pod["volumes"].append(EXTRA_VOLUME), "volume host is a hostPath"),
    ],
)
def test_weakened_pod_fails_the_restricted_standard(weaken: Callable[[Manifest], object], violation: str) -> None:
    pod = copy.deepcopy(worker_pod())
    weaken(pod)
    assert restricted_violations(pod) == [violation]


def test_worker_may_write_where_its_image_writes() -> None:
    homes = set(re.findall(r"HOME=(\S+)", DOCKERFILE.read_text(encoding="utf-8")))
    mounts = {each["mountPath"]: each["name"] for each in worker()["volumeMounts"]}
    volumes = {each["name"]: each for each in worker_pod()["volumes"]}
    assert len(homes) == 1
    for path in {"/tmp", "/dev/shm", *homes}:
        assert "emptyDir" in volumes[mounts[path]]
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def test_worker_runs_as_the_user_of_its_image() -> None:
    context = worker_pod()["securityContext"]
    users = set(re.findall(r"^USER (\S+)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE))
    assert users == {f"{context['runAsUser']}:{context['runAsGroup']}"}


def test_no_pod_gets_a_token_of_the_cluster() -> None:
    """Its own spec is held by the rule `restricted`."""
    account = only(base(), "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert worker_pod()["serviceAccountName"] == account["metadata"]["name"]


def test_secrets_come_by_reference_only() -> None:
    assert not [each for each in base() if each["kind"] == "Secret"]
    by_name = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in worker()["env"] if "valueFrom" in each}
    assert redis_secret(worker_pod()) == SECRET
    assert by_name["HF_TOKEN"]["optional"] is True


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
