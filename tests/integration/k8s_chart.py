"""The Helm chart of k8s/ as manifests, and its faults: refused values, broken rules, differences from the overlays."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.integration.k8s_manifests import K8S, Manifest, name_of, of_kind, pod_of, workloads
from tests.integration.k8s_programs import HELM, find_helm
from tests.integration.k8s_rules import broken_rules
from tests.integration.pod_security import restricted_violations

NEWEST = max(HELM, key=lambda release: tuple(map(int, release.split("."))))
RELEASE, NAMESPACE = "streamfleet", "fleet"
HOOK = "helm.sh/hook"


def examples(folder: Path = K8S) -> dict[str, Path]:
    """Returns the files of values by name; that of an overlay has the overlay's."""
    return {each.stem: each for each in sorted((folder / "examples").glob("*.yaml"))}


def templated(values: Mapping[str, Any], *files: Path, chart: Path = K8S, helm: str = NEWEST) -> str:
    """The chart's manifests as text, by files of values and values that go over them.

    Raises:
        subprocess.CalledProcessError: the chart refuses them; its stderr says why.
        RendererMissingError: there is no Helm.
    """
    options = [option for file in files for option in ("--values", str(file))]
    command = [find_helm(helm), "template", RELEASE, str(chart), "--namespace", NAMESPACE, *options, "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True)
    return done.stdout


def refusal_of(values: Mapping[str, Any]) -> str:
    """Helm's reason for refusing some values; empty if it takes them."""
    try:
        templated(values)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return ""


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Values over others, as Helm merges them."""
    both = dict(one)
    for key, value in other.items():
        known = both.get(key)
        both[key] = merged(known, value) if isinstance(value, dict) and isinstance(known, dict) else value
    return both


def charted(*files: Path, values: Mapping[str, Any] | None = None, chart: Path = K8S) -> list[Manifest]:
    """The chart's manifests."""
    return list(filter(None, yaml.load_all(templated(values or {}, *files, chart=chart), Loader=yaml.CSafeLoader)))


@cache
def chart_of(name: str) -> list[Manifest]:
    """The chart's manifests with the values of an example, without any for `base`; copy before changing one."""
    return charted(*([] if name == "base" else [examples()[name]]))


def without_hooks(manifests: list[Manifest]) -> list[Manifest]:
    """The manifests that an installation leaves in the cluster."""
    return [each for each in manifests if HOOK not in each["metadata"].get("annotations", {})]


def faults(name: str, overlay: list[Manifest] | None, folder: Path = K8S) -> list[str]:
    """What is wrong with the chart by one file of values, without any for `base`; one line each.

    Args:
        name: of the file.
        overlay: manifests that it has to give; None where any will do.
        folder: the chart.
    """
    files = () if name == "base" else (examples(folder)[name],)
    try:
        texts = {helm: templated({}, *files, chart=folder, helm=helm) for helm in HELM}
    except subprocess.CalledProcessError as error:
        return [f"does not render: {error.stderr.strip()}"]
    found = [line for helm in HELM for line in _linted(helm, folder, *files)]
    if len(set(texts.values())) > 1:
        found.append(f"Helm {' and '.join(HELM)} give different manifests")
    manifests = list(filter(None, yaml.load_all(texts[NEWEST], Loader=yaml.CSafeLoader)))
    found += broken_rules(manifests)
    for each in of_kind(manifests, "Pod"):
        found += [f"restricted: {name_of(each)}: {line}" for line in restricted_violations(each["spec"])]
    return found + (differences(overlay, manifests) if overlay else [])


def _linted(helm: str, chart: Path, *files: Path) -> list[str]:
    options = [option for file in files for option in ("--values", str(file))]
    command = [find_helm(helm), "lint", "--strict", "--quiet", str(chart), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [f"lint of Helm {helm}: {done.stdout.strip()}"] if done.returncode else []


def differences(overlay: list[Manifest], chart: list[Manifest]) -> list[str]:
    """Where the chart's objects are not those of an overlay, one line each.

    A ConfigMap of kustomize has a hash in its name, and pods of the chart have one in an annotation. Volumes and mounts
    are compared without their order, and annotations for Helm not at all.
    """
    one, other = ({(each["kind"], name_of(each)): each for each in _plain(side)} for side in (overlay, chart))
    return [f"overlay: {line}" for line in _unequal(one, other, "")]


def _plain(manifests: list[Manifest]) -> list[Manifest]:
    text = json.dumps(without_hooks(manifests))
    for each in of_kind(manifests, "ConfigMap"):
        text = text.replace(json.dumps(name_of(each)), json.dumps(re.sub(r"-[0-9a-z]{10}$", "", name_of(each))))
    plain: list[Manifest] = json.loads(text)
    described = [each["metadata"] for each in plain]
    for each in workloads(plain):
        pod_of(each).get("volumes", []).sort(key=lambda volume: str(volume["name"]))
        for container in pod_of(each)["containers"]:
            container.get("volumeMounts", []).sort(key=lambda mount: str(mount["mountPath"]))
        described.append(each["spec"]["template"]["metadata"])
    for metadata in described:
        annotations = metadata.pop("annotations", {})
        ours = {name: text for name, text in annotations.items() if not re.match(r"helm\.sh/|checksum/", name)}
        if ours:
            metadata["annotations"] = ours
    return plain


def _unequal(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, list) and isinstance(other, list):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _unequal(one.get(key), other.get(key), f"{path} {key}")
    elif one != other:
        yield f"{path}: {one!r} there, {other!r} in the chart"
