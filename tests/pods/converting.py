"""Pure functions from a manifest of Kubernetes to the one that podman plays, and to what gets lost on the way."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.integration.k8s_manifests import Manifest, name_of, of_kind, pod_of
from tests.pods.podman import PREFIX

NOT_PLAYED = {
    "NetworkPolicy": "nothing enforces it",
    "PodDisruptionBudget": "no node is drained",
    "HorizontalPodAutoscaler": "nobody measures",
    "Ingress": "callers come to the pods themselves",
    "ServiceAccount": "no serviceAccountName either: there is no API of a cluster",
}
PLAYED_BY_THE_CHECK = {
    "StatefulSet": "StatefulSet: as a Pod, its claim as a PersistentVolumeClaim",
    "Service": "Service: a name in podman's DNS for the pods behind it, ready or not",
    "rollingUpdate": "replicas, rollingUpdate: a Deployment of one for each pod, new before old",
    "readinessProbe": "startupProbe, readinessProbe, livenessProbe, ports: asked from outside, as they say",
    "terminationGracePeriodSeconds": "terminationGracePeriodSeconds, lifecycle: waits, then stops in what is left",
    "topologySpreadConstraints": "topologySpreadConstraints: there is one machine",
    "emptyDir": "emptyDir: a folder for each pod, in memory where it says so (podman shares one among all pods)",
    "fsGroup": "fsGroup, fsGroupChangePolicy: volumes get that group and are writable for it, as from the kubelet",
    "secretKeyRef": "Secret: by `podman secret create` (podman 4.3 cannot read those that it has played)",
    "secretName": "Secret as files: a folder for each pod",
    "args": "$(VARIABLE) in arguments: put in",
}
"""A line for each part of manifests, by the word that shows that they have it."""
POD_LABEL = f"{PREFIX}/pod"


def ours(name: str) -> str:
    """The name that something of the manifests has in podman; names of the user's own things are others."""
    return f"{PREFIX}-{name.removeprefix('streamfleet-')}"


def played(
    workload: Manifest,
    pod: str,
    folders: Mapping[str, str],
    images: Mapping[str, str],
    secrets: Mapping[str, Mapping[str, str]],
) -> Manifest:
    """One pod of a workload, the way podman takes it: of a Deployment as that, of others as a Pod.

    Args:
        workload: Deployment, StatefulSet or Job.
        pod: its name.
        folders: the folder on this machine of each volume that is an emptyDir or a Secret.
        images: other images for those of the manifest.
        secrets: for variables in the arguments of a container.
    """
    spec = copy.deepcopy(pod_of(workload))
    # Ports would be published on this machine, where two pods have the same.
    for container in spec["containers"]:
        for field in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports"):
            container.pop(field, None)
        _expand_arguments(container, pod, secrets)
        container["image"] = images.get(container["image"], container["image"])
        _rename_references(container, pod)
    for field in ("serviceAccountName", "topologySpreadConstraints", "terminationGracePeriodSeconds"):
        spec.pop(field, None)
    for field in ("fsGroup", "fsGroupChangePolicy"):
        spec["securityContext"].pop(field, None)
    spec["volumes"] = [_volume(each, folders) for each in spec.get("volumes", [])]
    spec["volumes"] += [
        {"name": name_of(each), "persistentVolumeClaim": {"claimName": ours(claim_of(each, pod))}}
        for each in workload["spec"].get("volumeClaimTemplates", [])
    ]
    labels = {**workload["spec"]["template"]["metadata"].get("labels", {}), POD_LABEL: pod}
    if workload["kind"] != "Deployment":
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": ours(pod), "labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": ours(pod)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {POD_LABEL: pod}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def claim_of(template: Manifest, pod: str) -> str:
    """The claim that a StatefulSet makes for one of its pods."""
    return f"{name_of(template)}-{pod}"


def claims_of(workload: Manifest, pod: str, manifests: list[Manifest], sizes: Mapping[str, str]) -> list[Manifest]:
    """The PersistentVolumeClaims that a pod needs, under their names in podman, and for the group that fsGroup says.

    The kubelet gives a volume to the group and nobody else; podman would give it to the container's user.

    Args:
        workload: Deployment, StatefulSet or Job.
        pod: its name.
        manifests: those with its claims.
        sizes: those that are to be in memory, and no larger, by the claim's name.
    """
    wanted = {
        each["persistentVolumeClaim"]["claimName"]
        for each in pod_of(workload).get("volumes", [])
        if "persistentVolumeClaim" in each
    }
    found = [copy.deepcopy(each) for each in of_kind(manifests, "PersistentVolumeClaim") if name_of(each) in wanted]
    for template in workload["spec"].get("volumeClaimTemplates", []):
        claim = {**copy.deepcopy(template), "metadata": {"name": claim_of(template, pod)}}
        found.append(claim)
    for claim in found:
        group = pod_of(workload)["securityContext"].get("fsGroup", 0)
        annotations = {"uid": "0", "gid": str(group)}
        if size := sizes.get(name_of(claim)):
            options = f"size={size},mode=2775,uid=0,gid={group}"
            annotations |= {"type": "tmpfs", "device": "tmpfs", "mount-options": options}
        claim["metadata"] = {
            "name": ours(name_of(claim)),
            "annotations": {f"volume.podman.io/{name}": value for name, value in annotations.items()},
        }
    return found


def config_maps_of(workload: Manifest, manifests: list[Manifest]) -> list[Manifest]:
    """The ConfigMaps that a pod reads, under their names in podman."""
    spec = pod_of(workload)
    read = {each["configMap"]["name"] for each in spec.get("volumes", []) if "configMap" in each}
    for container in spec["containers"]:
        read |= {each["configMapRef"]["name"] for each in container.get("envFrom", []) if "configMapRef" in each}
    found = [each for each in of_kind(manifests, "ConfigMap") if name_of(each) in read]
    return [{**each, "metadata": {"name": ours(name_of(each))}} for each in found]


def empty_dirs(workload: Manifest) -> dict[str, int]:
    """The sizes in bytes of a pod's volumes in memory, and 0 for those on disk, by name."""
    found = {each["name"]: each["emptyDir"] for each in pod_of(workload).get("volumes", []) if "emptyDir" in each}
    return {
        name: bytes_of(given["sizeLimit"]) if given.get("medium") == "Memory" else 0 for name, given in found.items()
    }


def secret_files(workload: Manifest, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The names and contents of the files in a pod's volumes that are Secrets, by the volume's name."""
    found = {each["name"]: each["secret"] for each in pod_of(workload).get("volumes", []) if "secret" in each}
    return {
        name: {item["path"]: secrets[given["secretName"]][item["key"]] for item in given["items"]}
        for name, given in found.items()
    }


def bytes_of(quantity: str) -> int:
    """A quantity of memory in bytes."""
    factors = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    return int(quantity[:-2]) * factors[quantity[-2:]]


def lost(manifests: list[Manifest]) -> Iterator[str]:
    """Everything of these manifests that podman 4.3 does not play, and what this check does about it; a line each."""
    kinds = [each["kind"] for each in manifests]
    for kind, why in NOT_PLAYED.items():
        if count := kinds.count(kind):
            yield f"{kind} ({count}): not played, {why}"
    text = json.dumps(manifests)
    yield from (line for sign, line in PLAYED_BY_THE_CHECK.items() if f'"{sign}"' in text)


def _expand_arguments(container: Manifest, pod: str, secrets: Mapping[str, Mapping[str, str]]) -> None:
    values = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {}).get("secretKeyRef", {})
        if "fieldRef" in variable.get("valueFrom", {}):
            values[variable["name"]] = pod
            continue
        values[variable["name"]] = variable.get("value", secrets.get(source.get("name"), {}).get(source.get("key"), ""))
    for field in ("command", "args"):
        if field in container:
            container[field] = [
                re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), word) for word in container[field]
            ]


def _rename_references(container: Manifest, pod: str) -> None:
    for source in container.get("envFrom", []):
        source["configMapRef"]["name"] = ours(source["configMapRef"]["name"])
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            source["secretKeyRef"]["name"] = ours(source["secretKeyRef"]["name"])
        if "fieldRef" in source:
            del variable["valueFrom"]
            variable["value"] = pod


def _volume(volume: Manifest, folders: Mapping[str, str]) -> dict[str, Any]:
    name = volume["name"]
    if "emptyDir" in volume or "secret" in volume:
        return {"name": name, "hostPath": {"path": folders[name], "type": "Directory"}}
    if "configMap" in volume:
        return {"name": name, "configMap": {"name": ours(volume["configMap"]["name"])}}
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        return {"name": name, "persistentVolumeClaim": {"claimName": ours(claim)}}
    return volume
