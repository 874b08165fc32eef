"""docs/deploy.md names what there is: files, objects, images, commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.k8s_manifests import K8S, kustomizations, labels_of, name_of, of_kind, pod_of, workloads
from tests.integration.k8s_network import End, allowed
from tests.integration.k8s_schemas import refusals
from tests.integration.pod_security import restricted_violations
from tests.unit import deploy_page
from tests.unit.deploy_page import CHECKS, everything, of_folder, refusal

# A bare machine fetches kubectl first; in one process, what is rendered is rendered once.
pytestmark = pytest.mark.timeout(240)

FIRST_REQUEST = "k8s/first-request"
PODS = {"worker": "streamfleet-worker", "exporter": "streamfleet-exporter", "Redis": "streamfleet-redis"}
PODS |= {"Sentinel": "streamfleet-sentinel", "gateway": "streamfleet-gateway"}


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/deploy.md").read_text(encoding="utf-8")


def container_of(folder: str, name: str) -> dict[str, Any]:
    """The container of one workload of a folder of k8s/."""
    workload = next(each for each in workloads(of_folder(folder)) if name_of(each) == name)
    container: dict[str, Any] = pod_of(workload)["containers"][0]
    return container


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nothing_on_the_page_is_unknown(page: str, check: deploy_page.Check) -> None:
    assert check(page) == []


PLANTED = [
    ("lost_paths", "`k8s/components/model-cache`", "`k8s/components/model-caches`"),
    ("lost_paths", "streamfleet//k8s/overlays/gpu", "streamfleet//k8s/overlays/gpus"),
    ("broken_overlays", "--kustomize k8s/first-request\n", "--kustomize k8s/first\n"),
    ("broken_overlays", "STREAMFLEET_MODEL=Qwen", "STREAMFLEET_MODELL=Qwen"),
    ("broken_values", "engineArgs: --max", "engineArguments: --max"),
    ("broken_values", "kind: outside", "kind: external"),
    ("broken_values", "memory: 48Gi}", "memory: 48 GB}"),
    ("unknown_names", "deployment/streamfleet-worker --timeout 30m", "deployment/streamfleet-workers --timeout 30m"),
    ("unknown_names", "service/streamfleet-gateway 8080", "service/streamfleet-gateways 8080"),
    ("unknown_images", "--target worker-cpu", "--target cpu"),
    ("unknown_images", "--image redis:8.2-bookworm", "--image redis:8.3-bookworm"),
    ("refused_commands", "fleet gateway keys create my-service", "fleet gateway key create my-service"),
    ("refused_commands", "--lane low ", "--lanes low "),
    ("refused_commands", "streamfleet gateway keys create me", "streamfleet gateway keys make me"),
]


@pytest.mark.parametrize(("check", "right", "wrong"), PLANTED)
def test_planted_mistake_is_found(page: str, check: str, right: str, wrong: str) -> None:
    assert right in page
    assert getattr(deploy_page, check)(page.replace(right, wrong))


def test_every_overlay_and_component_is_on_the_page(page: str) -> None:
    for folder in (*kustomizations().values(), *(K8S / "components").iterdir()):
        assert f"`k8s/{folder.relative_to(K8S)}`" in page


def test_job_asks_as_a_producer_may() -> None:
    (job,) = of_folder(FIRST_REQUEST)
    (redis,) = of_kind(of_folder("k8s/base"), "StatefulSet")
    assert list(refusals(job)) == []
    assert restricted_violations(pod_of(job)) == []
    source, target = (End(labels_of(each)) for each in (job, redis))
    assert allowed(of_folder("k8s/base"), source, target, 6379)
    assert not allowed(of_folder("k8s/base"), End({"app": "other"}), target, 6379)
    # Nothing of a fleet takes its pod for one of its own.
    assert labels_of(job)["app.kubernetes.io/component"] not in {
        labels_of(each)["app.kubernetes.io/component"] for each in workloads(everything())
    }


def test_job_has_a_command_that_is_taken_and_the_image_that_has_it() -> None:
    (job,) = of_folder(FIRST_REQUEST)
    (container,) = pod_of(job)["containers"]
    assert refusal(container["args"]) == []
    assert refusal([*container["args"], "--lanes=high"])
    assert container["image"] == container_of("k8s/base", PODS["exporter"])["image"]
    given = {each["name"]: each for each in container["env"]}
    assert "$(JOB)" in " ".join(container["args"])
    assert given["JOB"]["valueFrom"]["fieldRef"]["fieldPath"].startswith("metadata.labels[")
    assert container["resources"] == container_of("k8s/base", PODS["exporter"])["resources"]
