"""The Helm chart: equal to the overlays, every value used, every wrong value refused with its name."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamfleet.common.secret_files import mounted_login
from streamfleet.common.settings import QueueSettings, load
from tests.integration.k8s_chart import (
    NAMESPACE,
    NEWEST,
    RELEASE,
    chart_of,
    charted,
    differences,
    examples,
    merged,
    templated,
)
from tests.integration.k8s_manifests import (
    K8S,
    Manifest,
    environment_of,
    gateways,
    kustomizations,
    labels_of,
    manifests_of,
    name_of,
    of_kind,
    only,
    pod_of,
    pools,
    with_component,
    workloads,
)
from tests.integration.k8s_network import End, allowed
from tests.integration.k8s_programs import HELM, find_helm
from tests.integration.k8s_rules import broken_rules
from tests.integration.k8s_scaling import behavior_of, queues_asked
from tests.sampled import sampled
from tests.unit.deploy_page import names_of, refusal

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl and Helm first

SCHEMA: dict[str, Any] = json.loads((K8S / "values.schema.json").read_text(encoding="utf-8"))
VALUES: dict[str, Any] = yaml.safe_load((K8S / "values.yaml").read_text(encoding="utf-8"))
Steps = tuple[str, ...]


# -- equal to the overlays ---------------------------------------------------------------------------------


def test_every_overlay_has_its_values() -> None:
    # That they give the same is what `make k8s-check` checks: test_k8s_overlays.py runs it.
    assert set(kustomizations()) - {"base"} <= set(examples())


def test_difference_from_an_overlay_is_found() -> None:
    chart = copy.deepcopy(chart_of("gpu"))
    assert differences(manifests_of("gpu"), chart) == []
    pod_of(pools(chart)[0])["containers"][0]["startupProbe"]["failureThreshold"] = 719
    (line,) = differences(manifests_of("gpu"), chart)
    assert "containers 0 startupProbe failureThreshold: 720 there, 719 in the chart" in line
    assert differences(manifests_of("gpu"), chart[1:])


# -- values ------------------------------------------------------------------------------------------------


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference leads to; itself without one."""
    reference = schema.get("$ref")
    return resolved(SCHEMA["definitions"][reference.rpartition("/")[2]]) if reference else schema


def values_of(schema: dict[str, Any] = SCHEMA, steps: Steps = ()) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Every value that a schema names, and what it may be; groups of values as well."""
    for name, inner in schema.get("properties", {}).items():
        yield (*steps, name), resolved(inner)
        # One with an example is a value, whatever it is made of.
        yield from () if "examples" in resolved(inner) else values_of(resolved(inner), (*steps, name))


# Helm itself sets `global`, for charts in charts. A pool has the schema of `worker`.
KNOWN = {steps: schema for steps, schema in values_of() if steps[0] != "global"}
GROUPS = [steps for steps, schema in KNOWN.items() if "properties" in schema and "examples" not in schema]
LEAVES = {steps: schema for steps, schema in KNOWN.items() if steps not in (*GROUPS, ("pools",))}


def nested(steps: Steps, value: object) -> dict[str, Any]:
    """Values that say one thing."""
    for step in reversed(steps):
        value = {step: value}
    assert isinstance(value, dict)
    return value


def at(values: dict[str, Any], steps: Steps) -> Any:
    """The value at some steps."""
    for step in steps:
        values = values[step]
    return values


def another(schema: dict[str, Any], now: Any) -> Any:
    """A right value that is not the present one."""
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return next(each for each in reversed(schema["enum"]) if each != now)
    given = {
        bool: not now,
        int: now + 1 if isinstance(now, int) else 1,
        str: "mine",
        list: ["mine"],
        dict: {"mine": {}},
    }
    return given[type(now)]


FLEETS: list[dict[str, Any]] = [
    {
        "gateway": {
            "enabled": True,
            "ingress": {"host": "one.example.com"},
            "httpRoute": {"hosts": ["one.example.com"], "parents": [{"name": "public"}]},
        },
        "monitoring": {"podMonitors": True, "rules": True, "dashboards": True},
        "worker": {"gpu": {"memoryMiB": 1, "products": ["A"]}, "modelCache": {"size": "1Gi"}},
    },
    {"worker": {"server": {"start": True}, "autoscaling": {"by": "prometheus"}}},
    {
        "worker": {"autoscaling": {"by": "redis-streams"}},
        "gateway": {"enabled": True, "autoscaling": {"enabled": True}},
    },
    yaml.safe_load(examples()["keda-streams"].read_text(encoding="utf-8")),
]
"""Fleets that together use every value."""


@cache
def fleet(number: int) -> str:
    """The manifests of one of the fleets, as text."""
    return templated(FLEETS[number])


def test_values_and_schema_name_the_same() -> None:
    for steps in LEAVES:
        at(VALUES, steps)  # a KeyError: it has no default, and no comment

    def said(values: dict[str, Any], steps: Steps = ()) -> Iterator[Steps]:
        for name, value in values.items():
            yield (*steps, name)
            if isinstance(value, dict):
                yield from said(value, (*steps, name))

    assert set(said(VALUES)) <= {*KNOWN, ("pools",)}


TAKEN_WHOLE = {"sizes", "rollingUpdate"}
"""Groups whose values no template names one by one."""


def test_templates_name_every_value() -> None:
    """The next test tries some of them; `make test-long` all."""
    text = "\n".join(each.read_text(encoding="utf-8") for each in (K8S / "templates").rglob("*.*"))
    ours = [steps for steps in LEAVES if not TAKEN_WHOLE & {*steps}]
    assert [steps for steps in ours if not re.search(rf"\b{steps[-1]}\b", text)] == []


@pytest.mark.parametrize("steps", sampled(LEAVES, 5), ids="/".join)
def test_value_changes_what_is_rendered(steps: Steps) -> None:
    for number, values in enumerate(FLEETS):
        now = at(merged(VALUES, values), steps)
        if templated(merged(values, nested(steps, another(LEAVES[steps], now)))) != fleet(number):
            return
    pytest.fail("no template uses it")


# A map of a pool is merged with that of all.
OF_A_POOL = [steps for steps in LEAVES if steps[0] == "worker" and not isinstance(at(VALUES, steps), dict)]


@pytest.mark.parametrize("steps", sampled(OF_A_POOL, 5), ids="/".join)
def test_pool_has_a_value_of_its_own(steps: Steps) -> None:
    now, other = at(VALUES, steps), another(LEAVES[steps], at(VALUES, steps))
    expected = templated({"pools": {"a": {}, "b": nested(steps[1:], other)}})
    # What is empty, false or 0 goes over another value, too.
    shared = {"pools": {"a": nested(steps[1:], now), "b": {}}}
    assert templated(merged(nested(steps, other), shared)) == expected


def refused(values: dict[str, Any], helm: str = NEWEST) -> str:
    """Returns Helm's reason for refusing some values."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        templated(values, helm=helm)
    return str(caught.value.stderr)


@pytest.mark.parametrize("helm", HELM)
def test_value_of_a_wrong_type_is_refused_with_its_name(helm: str) -> None:
    wrong: dict[str, Any] = {}
    for steps, schema in LEAVES.items():
        wrong = merged(wrong, nested(steps, "wrong" if schema.get("type") in ("object", "array") else {"wrong": 1}))
    said = refused(wrong, helm)
    for steps in LEAVES:
        assert f"'/{'/'.join(steps)}'" in said or f"{'.'.join(steps)}:" in said


@pytest.mark.parametrize("helm", HELM)
def test_unknown_value_is_refused_with_its_name(helm: str) -> None:
    wrong = {"unknown": 1}
    for number, steps in enumerate(GROUPS):
        wrong = merged(wrong, nested(steps, {f"unknown{number}": 1}))
    said = refused(wrong, helm)
    for number in range(len(GROUPS)):
        assert re.search(rf"\bunknown{number}\b", said)
    assert re.search(r"\bunknown\b", said)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"images": {"pullPolicy": "Sometimes"}}, "images/pullPolicy"),
    ({"redis": {"kind": "two"}}, "redis/kind"),
    ({"redis": {"maxmemory": "2Gi"}}, "redis/maxmemory"),
    ({"redis": {"outside": {"networks": ["redis.example"]}}}, "redis/outside/networks/0"),
    ({"redis": {"outside": {"ports": [0]}}}, "redis/outside/ports/0"),
    ({"redis": {"urls": {"worker": ""}}}, "redis/urls/worker"),
    ({"worker": {"model": ""}}, "worker/model"),
    ({"worker": {"queue": "{a}"}}, "worker/queue"),
    ({"worker": {"settings": {"STREAMFLEET_LEASE_MS": 20000}}}, "worker/settings/STREAMFLEET_LEASE_MS"),
    ({"worker": {"settings": {"LEASE_MS": "20000"}}}, "LEASE_MS"),
    # It stands where the grace period follows from it.
    ({"worker": {"settings": {"STREAMFLEET_DRAIN_MS": "1"}}}, "write worker.drainSeconds"),
    (
        {"pools": {"a": {"settings": {"STREAMFLEET_QUEUE": "b"}}}},
        "pools.a.settings.STREAMFLEET_QUEUE: write pools.a.queue",
    ),
    ({"gateway": {"enabled": True, "settings": {"STREAMFLEET_QUEUE": "b"}}}, "gateway.settings.STREAMFLEET_QUEUE"),
    ({"images": {"registry": "https://registry.example"}}, "images/registry"),
    (
        {"worker": {"autoscaling": {"by": "prometheus", "min": 5, "max": 3}}},
        "worker.autoscaling.min: 5 is more than max",
    ),
    ({"worker": {"replicas": 2, "autoscaling": {"by": "prometheus"}}}, "worker.replicas"),
    ({"pools": {"a": {"replicas": 1, "autoscaling": {"by": "prometheus"}}}}, "pools.a.replicas"),
    (
        {"worker": {"engineArgs": "--tensor-parallel-size 2", "gpu": {"count": 4}}},
        "worker.engineArgs: its parallel sizes",
    ),
    ({"pools": {"a": {"engineArgs": "-tp=2 --pipeline-parallel-size=2"}}}, "need 4 GPUs, and gpu.count is 1"),
    (
        {"worker": {"modelCache": {"size": "1Gi"}, "volumes": [{"name": "models", "emptyDir": {}}]}},
        "a volume models, too",
    ),
    (merged(FLEETS[3], {"redis": {"outside": {"url": ""}}, "keda": {"addresses": "a:1"}}), "keda.tls: redis.ca says"),
    (merged(FLEETS[3], {"keda": {"sentinelMaster": "mine"}}), "keda.addresses"),
    # It would be in the manifests, and in `helm get values`.
    ({"redis": {"outside": {"url": "redis://fleet:secret@a:1"}}}, "redis/outside/url"),
    ({"redis": {"outside": {"url": "redis://a:1/0?password=secret"}}}, "redis/outside/url"),
    (merged(FLEETS[3], {"redis": {"outside": {"url": "redis://a:1"}}}), "redis.outside.url: redis.ca says"),
    ({"redis": {"outside": {"userKey": "a b"}}}, "redis/outside/userKey"),
    ({"redis": {"outside": {"passwordKey": ""}}}, "redis/outside/passwordKey"),
    ({"worker": {"modelCache": {"claim": "Mine"}}}, "worker/modelCache/claim"),
    ({"worker": {"resources": {"limits": {"memory": "6 GB"}}}}, "worker/resources/limits/memory"),
    ({"worker": {"resources": {"limit": {}}}}, "limit"),
    ({"worker": {"modelCache": {"accessModes": ["ReadWriteOncePod"]}}}, "worker/modelCache/accessModes/0"),
    ({"worker": {"autoscaling": {"by": "cpu"}}}, "worker/autoscaling/by"),
    # Workers that have just loaded would go.
    ({"worker": {"autoscaling": {"downAfterSeconds": 60}}}, "worker/autoscaling/downAfterSeconds"),
    ({"pools": {"small": {"gpus": 2}}}, "gpus"),
    ({"pools": {"small": {"gpu": {"count": -1}}}}, "pools/small/gpu/count"),
    ({"pools": {"Small": {}}}, "Small"),
    ({"pools": {"default": {}, "small": {}}}, "pools"),
    ({"gateway": {"autoscaling": {"min": 1}}}, "gateway/autoscaling/min"),
    (
        {"gateway": {"enabled": True, "autoscaling": {"enabled": True, "min": 4, "max": 3}}},
        "gateway.autoscaling.min: 4",
    ),
    ({"gateway": {"ingress": {"host": "https://llm.example.com"}}}, "gateway/ingress/host"),
    ({"gateway": {"enabled": True, "models": {"qwen": "small"}}}, "gateway.models.qwen"),
    ({"redis": {"kind": "outside"}, "worker": {"autoscaling": {"by": "redis-streams"}}}, "keda.addresses"),
    ({"keda": {"addresses": "redis.example"}}, "keda/addresses"),
    ({"network": {"proxyNamespace": "a b"}}, "network/proxyNamespace"),
]


@pytest.mark.parametrize(("values", "name"), WRONG, ids=lambda each: each if isinstance(each, str) else "")
@pytest.mark.parametrize("helm", sampled(reversed(HELM), len(HELM)))
def test_wrong_value_is_refused_with_its_name(values: dict[str, Any], name: str, helm: str) -> None:
    said = refused(values, helm)
    assert name in said or name.replace("/", ".") in said


# -- what the values are for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"worker": {"drainSeconds": 90, "startMinutes": 10}, "gateway": {"enabled": True, "drainSeconds": 90}},
        {"worker": {"server": {"start": True}}, "pools": {"a": {}, "b": {}}, "gateway": {"enabled": True}},
        {"redis": {"kind": "sentinel", "acl": "streamfleet-redis-acl"}, "worker": {"gpu": {"count": 4}}},
        {"gateway": {"enabled": True, "files": {"s3": "streamfleet-gateway-s3"}, "webhooks": True}},
        FLEETS[0],
    ],
    ids=["times", "servers", "sentinels", "files", "all"],
)
def test_rules_hold_for_other_fleets(values: dict[str, Any]) -> None:
    assert broken_rules(charted(values=values)) == []


def test_server_has_the_gpus_and_the_time_of_its_pool() -> None:
    values = {"gpu": {"count": 2, "memoryMiB": 70000}, "startMinutes": 50, "server": {"start": True}}
    manifests = charted(values={"worker": values})
    server = next(each for each in workloads(manifests) if name_of(each) == "streamfleet-vllm")
    (worker,) = pools(manifests)
    for each, gpus in ((server, "2"), (worker, None)):
        assert pod_of(each)["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") == gpus
    assert "70000" in json.dumps(pod_of(server)["affinity"])
    assert "affinity" not in pod_of(worker)
    probe = pod_of(server)["containers"][0]["startupProbe"]
    assert server["spec"]["progressDeadlineSeconds"] == probe["periodSeconds"] * probe["failureThreshold"] == 3000


def test_several_pools_have_a_gateway_that_knows_their_models() -> None:
    shared = {"settings": {"STREAMFLEET_RESULT_TTL_MS": "60000"}}
    served: dict[str, Any] = {"small": {"model": "a/8b"}, "large": {"model": "a/70b", "queue": "big"}}
    manifests = charted(values={"worker": shared, "pools": served, "gateway": {"enabled": True}})
    assert broken_rules(manifests) == []
    given = environment_of(pod_of(gateways(manifests)[0])["containers"][0], manifests)
    assert given["STREAMFLEET_GATEWAY_MODELS"] == "large=big=a/70b,small=small=a/8b"
    # Callers' names become those that the workers serve.
    for arguments in ("--served-model-name tiny more --seed 1", "--seed 1 --served-model-name='tiny'"):
        served["small"]["engineArgs"] = arguments
        renamed = charted(values={"worker": shared, "pools": served, "gateway": {"enabled": True}})
        routes = environment_of(pod_of(gateways(renamed)[0])["containers"][0], renamed)["STREAMFLEET_GATEWAY_MODELS"]
        assert routes == "large=big=a/70b,small=small=tiny"
    # What holds for every queue reaches the gateway, too.
    assert given["STREAMFLEET_RESULT_TTL_MS"] == "60000"


def test_without_keda_each_pool_has_the_component_by_its_own_values() -> None:
    alone = charted(values={"worker": {"autoscaling": {"by": "prometheus-adapter"}}})
    assert differences(with_component("autoscaling-hpa"), alone) == []
    manifests = chart_of("hpa")
    assert of_kind(manifests, "ScaledObject", "TriggerAuthentication") == []
    scalers = {name_of(each).rpartition("-")[2]: each for each in of_kind(manifests, "HorizontalPodAutoscaler")}
    bounds = {
        name: (
            each["spec"]["minReplicas"],
            each["spec"]["maxReplicas"],
            behavior_of(each)["scaleDown"]["stabilizationWindowSeconds"],
        )
        for name, each in scalers.items()
    }
    assert bounds == {"small": (1, 8, 300), "large": (2, 4, 900)}
    assert {name: queues_asked(each) for name, each in scalers.items()} == {"small": {"small"}, "large": {"large"}}


@pytest.mark.parametrize("kind", ["one", "sentinel"])
def test_keda_reads_every_lane_of_a_redis_of_the_chart(kind: str) -> None:
    scaling = {"by": "redis-streams", "requestsPerWorker": 16}
    elsewhere = {"kedaNamespace": "scalers"}
    manifests = charted(values={"redis": {"kind": kind}, "worker": {"autoscaling": scaling}, "network": elsewhere})
    assert broken_rules(manifests) == []
    spec = only(manifests, "ScaledObject")["spec"]
    lanes = ["critical", "high", "normal", "low"]
    assert [each["name"] for each in spec["triggers"]] == lanes
    assert [each["metadata"]["stream"] for each in spec["triggers"]] == [f"{{default}}:lane:{lane}" for lane in lanes]
    # With a group, KEDA would count what is pending: it never falls to what is left.
    assert not [each for each in spec["triggers"] if "consumerGroup" in each["metadata"]]
    assert spec["advanced"]["scalingModifiers"]["formula"] == " + ".join(lanes)
    assert spec["advanced"]["scalingModifiers"]["target"] == "16"
    (where,) = {json.dumps({**each["metadata"], "stream": ""}, sort_keys=True) for each in spec["triggers"]}
    hosts = re.findall(r"([\w-]+)\.([\w-]+)\.fleet\.svc:\d+", where)
    sentinels = [(f"streamfleet-sentinel-{number}", "streamfleet-sentinel") for number in range(3)]
    assert hosts == (sentinels if kind == "sentinel" else [])
    assert ('"address": "streamfleet-redis.fleet.svc:6379"' in where) is (kind == "one")
    login = only(manifests, "TriggerAuthentication")["spec"]["secretTargetRef"]
    logins = {"one": ["password"], "sentinel": ["password", "sentinelPassword"]}[kind]
    assert [each["parameter"] for each in login] == logins
    operator = {"app.kubernetes.io/name": "keda-operator"}
    asked = {"one": ("redis", 6379), "sentinel": ("sentinel", 26379)}[kind]
    for component, port in {("redis", 6379), asked}:
        (target,) = (
            each for each in workloads(manifests) if labels_of(each)["app.kubernetes.io/component"] == component
        )
        assert allowed(manifests, End(operator, "scalers"), End(labels_of(target)), port)
        for other in (End({"app": "other"}, "scalers"), End(operator, "keda")):
            assert not allowed(manifests, other, End(labels_of(target)), port)


@pytest.mark.parametrize(
    ("arguments", "gpus", "expected"),
    [
        ("", 4, "--tensor-parallel-size 4"),
        ("--decode-context-parallel-size 2", 4, "--decode-context-parallel-size 2 --tensor-parallel-size 4"),
        ("-pp 2 --tensor-parallel-size=2", 4, "-pp 2 --tensor-parallel-size=2"),
        ("--data-parallel-size 4", 4, "--data-parallel-size 4"),
        # On CPU, each part is a process.
        ("--tensor-parallel-size 2", 0, "--tensor-parallel-size 2"),
    ],
)
def test_model_is_spread_over_the_gpus_of_its_worker(arguments: str, gpus: int, expected: str) -> None:
    manifests = charted(values={"worker": {"engineArgs": arguments, "gpu": {"count": gpus}}})
    given = environment_of(pod_of(pools(manifests)[0])["containers"][0], manifests)
    assert given["STREAMFLEET_ENGINE_ARGS"] == expected


def test_gateway_without_models_takes_the_names_of_pools() -> None:
    values = {"pools": {"a": {}, "b": {}}, "gateway": {"enabled": True}}
    assert templated(merged(values, {"gateway": {"models": None}})) == templated(values)


def test_first_request_asks_each_pool_as_a_producer_may() -> None:
    manifests = chart_of("gpu-multi-pool")
    (redis,) = (each for each in workloads(manifests) if each["kind"] == "StatefulSet")
    asked = set()
    for pod in of_kind(manifests, "Pod"):
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert allowed(manifests, End(pod["metadata"]["labels"]), End(labels_of(redis)), 6379)
        (container,) = pod["spec"]["containers"]
        assert refusal(container["args"]) == []
        asked.add(next(each["value"] for each in container["env"] if each["name"] == "STREAMFLEET_QUEUE"))
    assert asked == {"small", "large"}


def test_fleet_beside_an_outside_redis_reaches_that_and_trusts_its_authority() -> None:
    manifests = chart_of("keda-streams")
    for each in workloads(manifests):
        source = End(labels_of(each))
        assert allowed(manifests, source, End(address="10.20.0.5"), 6380)
        assert not allowed(manifests, source, End(address="10.20.0.5"), 6379)
        assert not allowed(manifests, source, End(address="10.20.1.5"), 6380)
    for pod in [*map(pod_of, workloads(manifests)), *(each["spec"] for each in of_kind(manifests, "Pod"))]:
        (volume,) = (each["name"] for each in pod["volumes"] if each.get("secret", {}).get("secretName") == "redis-ca")
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        given = environment_of(pod["containers"][0], manifests)
        assert given["REDIS_URL"] == f"rediss://redis.example:6380/0?ssl_ca_certs={mounts[volume]}/ca.pem"
    for trigger in (trigger for each in of_kind(manifests, "ScaledObject") for trigger in each["spec"]["triggers"]):
        where = trigger["metadata"]
        assert (where["address"], where["enableTLS"]) == ("redis.example:6380", "true")


def test_url_of_an_outside_redis_counts_for_that_only() -> None:
    scaled = {"worker": {"autoscaling": {"by": "redis-streams"}}}
    assert templated(merged(scaled, {"redis": {"outside": {"url": "rediss://a:1"}}})) == templated(scaled)


def logins(values: dict[str, Any]) -> dict[str, dict[str, tuple[str, str]]]:
    """Returns Secret and key of each part of a login, by who logs in to the outside Redis of an example."""
    manifests = charted(examples()["keda-streams"], values=values)
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for each in [*workloads(manifests), *of_kind(manifests, "Pod")]:
        pod = each["spec"] if each["kind"] == "Pod" else pod_of(each)
        (container,) = pod["containers"]
        given = environment_of(container, manifests)
        provider = given["STREAMFLEET_REDIS_CREDENTIALS"]
        assert load(QueueSettings, redis_credentials=provider).redis_credentials is mounted_login
        assert "REDIS_URL_FILE" not in {entry["name"] for entry in container["env"]}, "only one may be set"
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "redis")
        folders = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "redis"]
        assert folders == [str(mounted_login.folder)]
        secret = volume["secret"]
        found[name_of(each)] = {item["path"]: (secret["secretName"], item["key"]) for item in secret["items"]}
    for each in of_kind(manifests, "TriggerAuthentication"):
        parts = {part["parameter"]: (part["name"], part["key"]) for part in each["spec"]["secretTargetRef"]}
        assert parts.pop("ca") == ("redis-ca", "ca.pem")
        found[f"keda-{name_of(each)}"] = parts
    return found


def test_a_secret_of_the_users_own_stays_as_it_is() -> None:
    token = {"name": "token", "secret": {"secretName": "mine", "items": [{"key": "a", "path": "b"}]}}
    mount = {"name": "token", "mountPath": "/token"}
    manifests = charted(examples()["keda-streams"], values={"worker": {"volumes": [token], "volumeMounts": [mount]}})
    volumes = [volume for each in pools(manifests) for volume in pod_of(each)["volumes"]]
    assert [volume for volume in volumes if volume["name"] == "token"] == [token]


def test_secrets_of_an_outside_redis_have_user_and_password_under_keys_of_choice() -> None:
    first = {
        "worker": "worker",
        "exporter": "operator",
        "first": "producer",
        "gateway": "gateway",
        "keda": "autoscaler",
    }
    by_default = logins({})
    assert {name.removeprefix("streamfleet-").partition("-")[0] for name in by_default} == set(first)
    for name, login in by_default.items():
        secret = f"streamfleet-{first[name.removeprefix('streamfleet-').partition('-')[0]]}-redis"
        assert login == {"username": (secret, "username"), "password": (secret, "password")}
    keys = {"userKey": "login", "passwordKey": "token"}
    for login in logins({"redis": {"outside": keys}}).values():
        assert {path: key for path, (_, key) in login.items()} == {"username": "login", "password": "token"}
    for login in logins({"redis": {"outside": {"userKey": ""}}}).values():
        assert login.keys() == {"password"}
    with_user = logins({"keda": {"username": "fixed"}})
    assert with_user["keda-streamfleet-worker-small"].keys() == {"password"}


def test_claim_that_is_there_has_the_weights() -> None:
    cache = {"size": "9Gi", "claim": "weights"}
    manifests = charted(
        values={"worker": {"modelCache": {"size": "9Gi"}}, "pools": {"a": {"modelCache": cache}, "b": {}}}
    )
    assert [name_of(each) for each in of_kind(manifests, "PersistentVolumeClaim")] == ["streamfleet-model-cache-b"]
    volumes = [volume for each in pools(manifests) for volume in pod_of(each)["volumes"] if volume["name"] == "models"]
    assert [each["persistentVolumeClaim"]["claimName"] for each in volumes] == ["weights", "streamfleet-model-cache-b"]
    alone = charted(values={"worker": {"modelCache": {"claim": "weights"}}})
    assert of_kind(alone, "PersistentVolumeClaim") == []
    (container,) = pod_of(pools(alone)[0])["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert environment_of(container, alone)["HF_HOME"] == mounts["models"]


def test_workers_beside_an_outside_redis_reach_their_server_and_what_is_named() -> None:
    port, mirror, hub = {"protocol": "TCP", "port": 8080}, End(address="10.9.0.5"), End(address="203.0.113.7")
    more = [{"to": [{"ipBlock": {"cidr": "10.9.0.0/24"}}], "ports": [port]}]
    weights = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    folder = {"model": "/models/a", "volumes": [weights], "volumeMounts": [{"name": "weights", "mountPath": "/models"}]}
    served = {"hub": {"server": {"start": True}}, "folder": folder}
    values = {"redis": {"kind": "outside"}, "pools": served, "network": {"workerEgress": more}}
    manifests = charted(values=values)
    assert broken_rules(manifests) == []
    (server,) = (each for each in workloads(manifests) if name_of(each) == "streamfleet-vllm-hub")
    workers = {labels_of(each)["streamfleet.io/pool"]: End(labels_of(each)) for each in pools(manifests)}
    assert allowed(manifests, workers["hub"], End(labels_of(server)), 8000)
    assert [allowed(manifests, workers[name], hub, 443) for name in served] == [True, False]
    for name in served:
        assert allowed(manifests, workers[name], mirror, 8080)
        assert not allowed(manifests, workers[name], mirror, 443)


@pytest.mark.parametrize(
    ("values", "rolled"),
    [
        ({"worker": {"settings": {"STREAMFLEET_LEASE_MS": "20001"}}}, {"worker", "exporter", "gateway"}),
        ({"gateway": {"settings": {"STREAMFLEET_GATEWAY_MAX_WAIT_MS": "1000"}}}, {"gateway"}),
    ],
)
def test_changed_setting_rolls_who_reads_it(values: dict[str, Any], rolled: set[str]) -> None:
    gateway = {"gateway": {"enabled": True}}
    before, after = (workloads(charted(values=merged(gateway, more))) for more in ({}, values))
    changed = [one for one, other in zip(before, after, strict=True) if one != other]
    assert {labels_of(each)["app.kubernetes.io/component"] for each in changed} == rolled


def test_files_of_callers_outlive_the_release() -> None:
    claim = only(chart_of("gateway"), "PersistentVolumeClaim", "streamfleet-gateway-files")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_package_renders_what_the_folder_does(tmp_path: Path) -> None:
    command = [find_helm(NEWEST), "package", str(K8S), "--destination", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    (package,) = tmp_path.iterdir()
    # What lies behind the links to monitoring/ is in it.
    assert templated(FLEETS[0], chart=package) == fleet(0)


def test_cluster_may_choose_the_users() -> None:
    values = {"fixedUser": False, "gateway": {"enabled": True}, "redis": {"kind": "sentinel"}}
    manifests = charted(values=values)
    for each in workloads(manifests):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod_of(each)["securityContext"].keys()
    assert [line for line in broken_rules(manifests) if not line.startswith("restricted")] == []


def test_route_takes_the_paths_of_the_ingress() -> None:
    manifests = charted(values=FLEETS[0])
    (rule,) = only(manifests, "Ingress")["spec"]["rules"]
    (route,) = only(manifests, "HTTPRoute")["spec"]["rules"]
    assert [each["path"]["value"] for each in route["matches"]] == [each["path"] for each in rule["http"]["paths"]]
    # An answer that is waited for sends no byte before.
    assert route["timeouts"]["request"] == "0s"


WAITS = {"NoWorker": "5m", "NoReadyWorker": "10m"}


def waits_of(rules: dict[str, Any]) -> dict[str, str]:
    """Returns the waits of the alerts on workers, by name."""
    found = {rule.get("alert", ""): rule.get("for", "") for group in rules["groups"] for rule in group["rules"]}
    return {name: found[f"Streamfleet{name}"] for name in WAITS}


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({"startMinutes": 8}, WAITS),
        ({"startMinutes": 60}, {**WAITS, "NoReadyWorker": "30m"}),
        ({"startMinutes": 60, "autoscaling": {"by": "prometheus", "min": 1}}, {**WAITS, "NoReadyWorker": "30m"}),
        ({"startMinutes": 40, "autoscaling": {"by": "prometheus"}}, {"NoWorker": "20m", "NoReadyWorker": "20m"}),
        ({"startMinutes": 40, "autoscaling": {"by": "prometheus-adapter"}}, {**WAITS, "NoReadyWorker": "20m"}),
    ],
)
def test_alerts_on_workers_wait_for_a_start(worker: dict[str, Any], expected: dict[str, str]) -> None:
    manifests = charted(values={"worker": worker, "monitoring": {"rules": True}})
    assert waits_of(only(manifests, "PrometheusRule", "streamfleet")["spec"]) == expected


def test_rules_and_dashboards_are_those_of_monitoring(repository: Path) -> None:
    manifests = chart_of("keda-streams")
    made = copy.deepcopy(only(manifests, "PrometheusRule", "streamfleet")["spec"])
    kept = yaml.safe_load((repository / "monitoring/rules/streamfleet.yaml").read_text(encoding="utf-8"))
    links = [
        [rule["annotations"]["runbook_url"] for group in each["groups"] for rule in group["rules"]]
        for each in (made, kept)
    ]
    assert links[0] == [f"{VALUES['monitoring']['runbooks']}/{link}" for link in links[1]]
    # The pool `small` may have no worker, with 30 minutes for a start; `large` has 60.
    assert [waits_of(each) for each in (made, kept)] == [{"NoWorker": "15m", "NoReadyWorker": "30m"}, WAITS]
    for group in (*made["groups"], *kept["groups"]):
        for rule in group["rules"]:
            if rule.get("alert", "").removeprefix("Streamfleet") in WAITS:
                rule.pop("for")
            rule["annotations"].pop("runbook_url", None)  # several rules share their annotations
    assert made == kept
    boards = only(manifests, "ConfigMap", "streamfleet-dashboards")["data"]
    files = {each.name: json.loads(each.read_bytes()) for each in (repository / "monitoring/dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in boards.items()} == files


@pytest.mark.parametrize("name", ["base", "gateway", "gpu-multi-pool"])
def test_notes_name_what_there_is(name: str) -> None:
    files = [] if name == "base" else ["--values", str(examples()[name])]
    command = [find_helm(NEWEST), "install", RELEASE, str(K8S), "--namespace", NAMESPACE, "--dry-run=client", *files]
    notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\nNOTES:\n")[2]
    # As long as the slowest pool may take.
    assert f"--logs --timeout {60 if name == 'gpu-multi-pool' else 30}m" in notes
    known = names_of(chart_of(name))
    named = re.findall(r"\b(?:deployment|service)/[\w-]+", notes)
    assert named
    assert set(named) <= known
    for words in re.findall(r" streamfleet (.+?)\)?$", notes.replace(f"helm test {RELEASE}", ""), re.MULTILINE):
        assert refusal(words.split()) == []


def test_version_is_that_of_the_images() -> None:
    chart = yaml.safe_load((K8S / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["apiVersion"] == "v2"
    assert {container_image(each) for each in pools(chart_of("base"))} == {
        f"streamfleet/worker-gpu:{chart['appVersion']}"
    }


def container_image(workload: Manifest) -> str:
    """The image of a workload."""
    return str(pod_of(workload)["containers"][0]["image"])
