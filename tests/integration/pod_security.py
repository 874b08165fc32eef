"""The restricted Pod Security Standard of Kubernetes as one pure function over a pod's spec.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]

ALLOWED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
        "image",
    }
)
ALLOWED_SECCOMP = frozenset({"RuntimeDefault", "Localhost"})


def restricted_violations(pod: Spec) -> list[str]:
    """Returns the reasons why a namespace that enforces `restricted` refuses this pod; empty if it does not."""
    containers = [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]
    found = list(_pod_violations(pod))
    for container in containers:
        name = container["name"]
        found += [f"{name}: {violation}" for violation in _container_violations(container, pod)]
    return found


def _pod_violations(pod: Spec) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield f"{field} is set"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls are set"
    for volume in pod.get("volumes", []):
        for kind in set(volume) - {"name"} - ALLOWED_VOLUMES:
            yield f"volume {volume['name']} is a {kind}"


def _container_violations(container: Spec, pod: Spec) -> Iterator[str]:
    own = container.get("securityContext", {})
    effective = {**pod.get("securityContext", {}), **own}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if effective.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    if effective.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if effective.get("seccompProfile", {}).get("type") not in ALLOWED_SECCOMP:
        yield "no seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield "procMount is set"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities are not all dropped"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "hostPort is set"
