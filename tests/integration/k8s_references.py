"""References between the manifests of one kustomization: by name, and by labels."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from streamfleet.common.settings import EngineSettings, variable
from streamfleet.operator.access_rules import Role
from tests.integration.k8s_manifests import (
    Manifest,
    environment_of,
    labels_of,
    name_of,
    of_kind,
    pod_of,
    workloads,
)

ENGINE = {variable(name) for name in EngineSettings.model_fields}
PATH = re.compile(r"(?:(?<![^\s=,\"'])|(?<=file:/)/)(/[\w.-]+(?:/[\w.-]+)*)")
"""A path in a setting or a command; no part of another URL, and no name of a model."""


def dangling(manifests: list[Manifest], pages: str) -> Iterator[str]:
    """References to what exists neither among the manifests nor, for Secrets, in a command of the pages."""
    for each in workloads(manifests):
        pod = pod_of(each)
        for kind, name in _names_used(pod):
            if name not in {name_of(found) for found in of_kind(manifests, kind)}:
                yield f"{name_of(each)}: no {kind} {name}"
        for name, key in _secrets_used(pod):
            made = {key for text in _commands(pages, name) for key in re.findall(r"--from-literal=([\w.-]+)=", text)}
            if key not in made:
                yield f"{name_of(each)}: no page creates the Secret {name} with the key {key}"
        claims = {name_of(claim) for claim in each["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in pod.get("volumes", [])} | claims
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{name_of(each)}: no volume {mount['name']}"
        service = each["spec"].get("serviceName")
        if service and service not in {name_of(found) for found in of_kind(manifests, "Service")}:
            yield f"{name_of(each)}: no Service {service}"


def unmounted(manifests: list[Manifest]) -> Iterator[str]:
    """Paths in a pod's settings and commands that are on no mount of it."""
    for each in workloads(manifests):
        # They pass over what the workers' ConfigMap says of engines.
        over = ENGINE if labels_of(each)["app.kubernetes.io/component"] in ("exporter", "gateway") else set()
        for container in pod_of(each)["containers"]:
            over = over | {"STREAMFLEET_GATEWAY_MODELS"}  # names, by which workers know their models
            # A variable of its own replaces one of a ConfigMap, also where its value is a Secret's.
            own = {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
            given = environment_of(container, manifests) | own
            said = [value for name, value in given.items() if name not in over]
            said += [*container.get("command", []), *container.get("args", [])]
            for path in off_mounts(said, [mount["mountPath"] for mount in container["volumeMounts"]]):
                yield f"{name_of(each)}: {path} is on no mount"


def off_mounts(texts: Iterable[str], mounts: Iterable[str]) -> list[str]:
    """Paths in settings and commands that lie on none of a container's mounts: nothing is there, or nothing stays."""
    found = {path for text in texts for path in PATH.findall(text)}
    return sorted(path for path in found if not any(f"{path}/".startswith(f"{mount}/") for mount in mounts))


def _commands(pages: str, secret: str) -> list[str]:
    """Every command of the pages that makes this Secret, its continued lines included; one makes that of each role."""
    role = re.fullmatch(rf"streamfleet-(?:{'|'.join(Role)})-redis", secret)
    name = rf"(?:{secret}|streamfleet-\$role-redis)" if role else secret
    return re.findall(rf"kubectl create secret generic {name} (?:[^\n]*\\\n)*[^\n]*", pages)


def _names_used(pod: Manifest) -> Iterator[tuple[str, str]]:
    """(kind, name) of everything but Secrets."""
    if "serviceAccountName" in pod:
        yield "ServiceAccount", pod["serviceAccountName"]
    for volume in pod.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        # A claim that is mounted read-only exists already: something else filled it.
        if "persistentVolumeClaim" in volume and not volume["persistentVolumeClaim"].get("readOnly"):
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for container in pod["containers"]:
        for source in container.get("envFrom", []):
            yield "ConfigMap", source["configMapRef"]["name"]


def _secrets_used(pod: Manifest) -> Iterator[tuple[str, str]]:
    """(name, key) of every Secret in the environment, and of those that are files."""
    for volume in pod.get("volumes", []):
        for item in volume.get("secret", {}).get("items", []):
            yield volume["secret"]["secretName"], item["key"]
    for container in pod["containers"]:
        for entry in container.get("env", []):
            secret = entry.get("valueFrom", {}).get("secretKeyRef")
            if secret:
                yield secret["name"], secret["key"]


def misdirected(manifests: list[Manifest]) -> Iterator[str]:
    """Selectors that pick other workloads than their own, or none."""
    found = workloads(manifests)
    for each in found:
        yield from _wrong(each, found, each["spec"]["selector"], name_of(each))
    for each in of_kind(manifests, "PodDisruptionBudget"):
        yield from _wrong(each, found, each["spec"]["selector"], name_of(each))
    for each in of_kind(manifests, "Service"):
        yield from _wrong(each, found, {"matchLabels": each["spec"]["selector"]}, name_of(each))
        ports = {port["name"] for owner in found for port in _ports(owner) if picks_owner(each, owner)}
        for port in each["spec"]["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {name_of(each)}: no port {port['targetPort']}"
    for each in of_kind(manifests, "NetworkPolicy"):
        # Named after the workload that it is for, what it adds, and the pool: streamfleet-worker-egress-large.
        name, pool = _of_pool(each)
        owners = [
            name_of(owner) for owner in found if _of_pool(owner)[1] == pool and name.startswith(_of_pool(owner)[0])
        ]
        meant = max(owners, key=len, default="a workload that its name begins with")
        yield from _wrong(each, found, each["spec"]["podSelector"], meant)


def _of_pool(manifest: Manifest) -> tuple[str, str]:
    """A name without the pool's, and the pool; empty for what is of none."""
    pool: str = manifest["metadata"].get("labels", {}).get("streamfleet.io/pool", "")
    return name_of(manifest).removesuffix(f"-{pool}"), pool


def _wrong(owner: Manifest, found: list[Manifest], selector: dict[str, Any], meant: str) -> Iterator[str]:
    picked = [name_of(each) for each in found if selects(selector, labels_of(each))]
    if picked != [meant]:
        yield f"{owner['kind']} {name_of(owner)} picks {picked or 'nothing'}, not {meant}"


def picks_owner(service: Manifest, workload: Manifest) -> bool:
    """True if a Service leads to a workload."""
    return selects({"matchLabels": service["spec"]["selector"]}, labels_of(workload))


def _ports(workload: Manifest) -> list[Manifest]:
    return [port for container in pod_of(workload)["containers"] for port in container.get("ports", [])]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """True if a label selector picks these labels; an empty one picks everything."""
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions", []))


def _holds(expression: dict[str, Any], labels: dict[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    outcomes = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return outcomes[expression["operator"]]
