"""Manifests as `make pods` converts them for podman: it says whatever it leaves out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.k8s_chart import chart_of
from tests.integration.k8s_manifests import Manifest, of_kind, pod_of, workloads
from tests.pods.__main__ import told
from tests.pods.converting import claims_of, config_maps_of, empty_dirs, lost, played, secret_files
from tests.pods.stage import Act, Load, WrongOutcome

# A bare machine fetches Helm first.
pytestmark = pytest.mark.timeout(240)
PLAYED = ("Deployment", "ConfigMap", "Secret", "PersistentVolumeClaim", "Pod")
SECRETS = {
    "streamfleet-redis": {"password": "secret", "url": "redis://redis"},
    "streamfleet-gateway-redis": {"url": "redis://redis"},
}


@pytest.fixture(params=["dev-cpu", "gateway"])
def chart(request: pytest.FixtureRequest) -> list[Manifest]:
    return chart_of(request.param)


def as_played(workload: Manifest) -> Manifest:
    folders = {name: f"/folders/{name}" for name in (*empty_dirs(workload), *secret_files(workload, SECRETS))}
    return played(workload, "pod-1", folders, {}, SECRETS)


def spec_of(manifest: Manifest) -> Manifest:
    return manifest["spec"] if manifest["kind"] == "Pod" else pod_of(manifest)


def fields(spec: Manifest) -> set[str]:
    """The fields of a pod, of its containers, and of its security context."""
    return set().union(spec, spec["securityContext"], *spec["containers"])


def test_each_part_is_played_or_named(chart: list[Manifest]) -> None:
    said = "\n".join(lost(chart))
    kinds = {each["kind"] for each in chart if each["kind"] not in PLAYED}
    dropped = {field for each in workloads(chart) for field in fields(pod_of(each)) - fields(spec_of(as_played(each)))}
    assert len(dropped) > 5
    assert {word for word in kinds | dropped if word not in said} == set()


def test_names_are_those_of_a_run_and_no_others(chart: list[Manifest]) -> None:
    for workload in workloads(chart):
        needed = [*config_maps_of(workload, chart), *claims_of(workload, "pod-1", chart, {})]
        made = {each["metadata"]["name"] for each in [*needed, as_played(workload)]}
        assert {name for name in made if not name.startswith("streamfleet-check-")} == set()


def test_a_password_is_put_into_arguments() -> None:
    (redis,) = of_kind(chart_of("dev-cpu"), "StatefulSet")
    words = spec_of(as_played(redis))["containers"][0]
    text = " ".join([*words.get("command", []), *words.get("args", [])])
    assert "secret" in text
    assert "$(" not in text


def test_a_lost_request_is_told_and_fails_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"id": "kill-0", "status": "succeeded", "attempt": 2, "worker": "a"}
    command = [sys.executable, "-c", "import sys; print('begun', sys.argv[1], sep='\\n')", json.dumps([2, [result]])]
    pipe, acts = subprocess.PIPE, list[Act]()
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    with pytest.raises(WrongOutcome, match="2 requests, 1 results"), told(acts):
        Load(process, "chart", "kill", acts).results()
    assert capsys.readouterr().out.splitlines()[-1].split() == ["chart", "kill", "2", "1", "1", "1"]
