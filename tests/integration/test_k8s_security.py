"""The pods of k8s/base under the restricted Pod Security Standard, and what keeps secrets out of it."""

import copy
import re
from collections.abc import Callable

import pytest

from tests.integration.k8s_manifests import (
    DOCKERFILE,
    ROOT,
    Manifest,
    base,
    only,
    redis_secret,
    worker,
    worker_pod,
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
        (lambda pod: _pod_context(pod).pop("runAsNonRoot"), "worker: runAsNonRoot is not true"),
        (lambda pod: _pod_context(pod).pop("seccompProfile"), "worker: no seccompProfile"),
        (lambda pod: _pod_context(pod).update(runAsUser=0), "worker: runAsUser is 0"),
        (lambda pod: _pod_context(pod).update(sysctls=[{"name": "a", "value": "b"}]), "sysctls are set"),
        (
            lambda pod: _context(pod).pop("allowPrivilegeEscalation"),
            "worker: allowPrivilegeEscalation is not false",
        ),
        (lambda pod: _context(pod).pop("capabilities"), "worker: capabilities are not all dropped"),
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


def test_the_page_creates_the_secret_that_is_referred_to() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    service = only(base(), "Service", "streamfleet-redis")
    assert f"kubectl create secret generic {SECRET}" in page
    assert "--from-literal=password=" in page
    address = f"@{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/0"
    assert re.search(rf"--from-literal=url=\S*{re.escape(address)}", page)
