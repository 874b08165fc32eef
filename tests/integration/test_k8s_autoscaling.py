"""Autoscaling by KEDA and by a HorizontalPodAutoscaler: that they agree, fit the fleet, and that mistakes are found."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.integration import k8s_formula
from tests.integration.k8s_manifests import K8S, Manifest, manifests_of, name_of, of_kind, only, with_component
from tests.integration.k8s_rules import broken_rules
from tests.integration.k8s_scaling import COMPONENTS, behavior_of, misscaled, queries
from tests.integration.k8s_schemas import refusals

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

NAME = "gpu-autoscaled"


def adapter_rules() -> dict[str, str]:
    """prometheus-adapter's queries, by the metric's name."""
    file = K8S / "components/autoscaling-hpa/prometheus-adapter-values.yaml"
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {each["name"]["as"]: each["metricsQuery"] for each in values["rules"]["external"]}


def test_both_say_the_same_numbers() -> None:
    keda, hpa = (only(with_component(component), kind)["spec"] for component, kind in COMPONENTS.items())
    prefix, asked = "streamfleet_workers_", adapter_rules()
    translated = {
        name.removeprefix(prefix): query.replace("<<.LabelMatchers>>", 'queue="default"')
        for name, query in asked.items()
    }
    assert translated == queries()
    metrics = [each["external"] for each in hpa["metrics"]]
    assert [each["metric"]["name"] for each in metrics] == list(asked)
    assert [each["target"] for each in metrics] == [{"type": "AverageValue", "averageValue": "1"}] * len(asked)
    triggers = [(each["metricType"], each["metadata"]["threshold"]) for each in keda["triggers"]]
    assert triggers == [("AverageValue", "1")] * len(asked)
    assert hpa["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert (hpa["maxReplicas"], hpa["minReplicas"]) == (keda["maxReplicaCount"], k8s_formula.LEAST)
    assert hpa["maxReplicas"] == k8s_formula.MOST
    assert hpa["scaleTargetRef"] == keda["scaleTargetRef"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_rules_hold_with_the_component(component: str) -> None:
    assert broken_rules(with_component(component)) == []


def test_address_of_prometheus_is_said_once(tmp_path: Path) -> None:
    folder = shutil.copytree(K8S, tmp_path / "k8s")
    file = folder / "components/autoscaling-keda/prometheus.yaml"
    usual = "http://prometheus-operated.monitoring.svc:9090"
    text = file.read_text(encoding="utf-8")
    assert usual in text
    file.write_text(text.replace(usual, "https://prometheus.example/here"), encoding="utf-8")
    manifests = with_component("autoscaling-keda", folder)
    triggers = only(manifests, "ScaledObject")["spec"]["triggers"]
    assert {each["metadata"]["serverAddress"] for each in triggers} == {"https://prometheus.example/here"}
    # Only kustomize reads it.
    assert "streamfleet-autoscaling" not in map(name_of, manifests)


def spec_of(manifests: list[Manifest], kind: str, name: str = "streamfleet-worker") -> Manifest:
    """The spec of one manifest."""
    spec: Manifest = next(each["spec"] for each in of_kind(manifests, kind) if name_of(each) == name)
    return spec


SCHEMA_MISTAKES: list[tuple[Callable[[Manifest], object], str]] = [
    (lambda spec: spec.update(minReplicas=0), "minReplicas"),
    (lambda spec: spec.update(pollingInterval="15s"), "'15s' is not of type 'integer'"),
    (lambda spec: spec["fallback"].pop("replicas"), "'replicas' is a required property"),
    (lambda spec: spec["fallback"].update(behavior="current"), "'current' is not one of"),
    (lambda spec: spec["advanced"].update(behavior={}), "behavior"),
    (lambda spec: spec["triggers"][0].update(metricType="Average"), "'Average' is not one of"),
    (lambda spec: spec["triggers"][0].update(type="redis-streams"), "'stream' is a required property"),
    (lambda spec: spec["triggers"][0].update(type="cron"), "'cron' is not one of"),
    (lambda spec: spec["triggers"][0]["metadata"].update(threshold=1), "1 is not of type 'string'"),
    (lambda spec: spec["triggers"][0]["metadata"].update(treshold="1"), "treshold"),
    (lambda spec: spec["triggers"][0]["metadata"].update(ignoreNullValues=False), "False is not one of"),
    (lambda spec: spec["triggers"][0]["metadata"].update(serverAddress="by-replacement"), "does not match"),
    (lambda spec: spec["triggers"].clear(), "[]"),
]


@pytest.mark.parametrize(("spoil", "finding"), SCHEMA_MISTAKES)
def test_mistake_in_a_scaled_object_is_found(spoil: Callable[[Manifest], object], finding: str) -> None:
    manifests = copy.deepcopy(manifests_of(NAME))
    scaler = only(manifests, "ScaledObject")
    assert list(refusals(scaler)) == []
    spoil(scaler["spec"])
    assert [line for line in refusals(scaler) if finding in line]
    assert [line for line in broken_rules([scaler]) if line.startswith("schema: ")]


def scale_down(manifests: list[Manifest]) -> Manifest:
    """Returns the rules by which the ScaledObject goes down."""
    found: Manifest = behavior_of(only(manifests, "ScaledObject"))["scaleDown"]
    return found


RULE_MISTAKES: list[tuple[Callable[[list[Manifest]], object], str]] = [
    (lambda all_: scale_down(all_).update(stabilizationWindowSeconds=60), "goes down after 60 s"),
    (lambda all_: spec_of(all_, "ScaledObject").update(cooldownPeriod=300), "the last worker goes sooner"),
    (lambda all_: only(all_, "ConfigMap", "streamfleet-worker")["data"].update(STREAMFLEET_QUEUE="b"), "queue default"),
    (
        lambda all_: all_.append(only(with_component("autoscaling-hpa"), "HorizontalPodAutoscaler")),
        "another autoscaler",
    ),
]


@pytest.mark.parametrize(("spoil", "finding"), RULE_MISTAKES)
def test_autoscaler_that_does_not_fit_is_found(spoil: Callable[[list[Manifest]], object], finding: str) -> None:
    manifests = copy.deepcopy(manifests_of(NAME))
    assert list(misscaled(manifests)) == []
    spoil(manifests)
    assert [line for line in misscaled(manifests) if finding in line]


def test_autoscaled_overlay_is_gpu_and_what_scales_it() -> None:
    def bare(name: str) -> list[Manifest]:
        added = ("PodMonitor", "ScaledObject")
        manifests = [each for each in copy.deepcopy(manifests_of(name)) if each["kind"] not in added]
        spec_of(manifests, "Deployment").pop("replicas", None)
        return manifests

    assert bare(NAME) == bare("gpu")
    assert "replicas" not in spec_of(manifests_of(NAME), "Deployment")
    assert of_kind(manifests_of(NAME), "PodMonitor")
    assert of_kind(manifests_of(NAME), "ScaledObject")
