"""Manifests as `make pods` converts them for podman: it says whatever it leaves out."""

from __future__ import annotations

import pytest

from tests.integration.k8s_manifests import Manifest, manifests_of, of_kind, pod_of, workloads
from tests.pods.converting import claims_of, config_maps_of, empty_dirs, lost, played, secret_files

# A bare machine fetches kubectl first.
pytestmark = pytest.mark.timeout(240)
PLAYED = ("Deployment", "ConfigMap", "Secret", "PersistentVolumeClaim")
SECRETS = {
    "streamfleet-redis": {"password": "secret", "url": "redis://redis"},
    "streamfleet-gateway-redis": {"url": "redis://redis"},
}


@pytest.fixture(params=["dev-cpu", "gateway"])
def overlay(request: pytest.FixtureRequest) -> list[Manifest]:
    return manifests_of(request.param)


def as_played(workload: Manifest) -> Manifest:
    folders = {name: f"/folders/{name}" for name in (*empty_dirs(workload), *secret_files(workload, SECRETS))}
    return played(workload, "pod-1", folders, {}, SECRETS)


def spec_of(manifest: Manifest) -> Manifest:
    return manifest["spec"] if manifest["kind"] == "Pod" else pod_of(manifest)


def fields(spec: Manifest) -> set[str]:
    """The fields of a pod, of its containers, and of its security context."""
    return set().union(spec, spec["securityContext"], *spec["containers"])


def test_each_part_is_played_or_named(overlay: list[Manifest]) -> None:
    said = "\n".join(lost(overlay))
    kinds = {each["kind"] for each in overlay if each["kind"] not in PLAYED}
    dropped = {
        field for each in workloads(overlay) for field in fields(pod_of(each)) - fields(spec_of(as_played(each)))
    }
    assert len(dropped) > 5
    assert {word for word in kinds | dropped if word not in said} == set()


def test_names_are_those_of_a_run_and_no_others(overlay: list[Manifest]) -> None:
    for workload in workloads(overlay):
        needed = [*config_maps_of(workload, overlay), *claims_of(workload, "pod-1", overlay, {})]
        made = {each["metadata"]["name"] for each in [*needed, as_played(workload)]}
        assert {name for name in made if not name.startswith("streamfleet-check-")} == set()


def test_a_password_is_put_into_arguments() -> None:
    (redis,) = of_kind(manifests_of("dev-cpu"), "StatefulSet")
    words = spec_of(as_played(redis))["containers"][0]
    text = " ".join([*words.get("command", []), *words.get("args", [])])
    assert "secret" in text
    assert "$(" not in text
