"""The rules of k8s_rules over the base and every overlay, planted mistakes, and what each overlay is for."""

import re
import shutil
from pathlib import Path

import pytest

from tests.integration.k8s_chart import examples
from tests.integration.k8s_check import main
from tests.integration.k8s_manifests import (
    DOCKERFILE,
    K8S,
    VERSION,
    Manifest,
    environment_of,
    kustomizations,
    manifests_of,
    name_of,
    of_kind,
    only,
    pod_of,
    pools,
    redis_secret,
    render,
)
from tests.integration.k8s_network import End, allowed
from tests.integration.k8s_rules import RULES, broken_rules

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

PAIR = ("worker", "vllm")


def worker_of(manifests: list[Manifest], name: str = "streamfleet-worker") -> Manifest:
    """The container of the pool of this name."""
    deployment = next(each for each in of_kind(manifests, "Deployment") if name_of(each) == name)
    container: Manifest = pod_of(deployment)["containers"][0]
    return container


def settings_of(name: str, pool: str = "streamfleet-worker") -> dict[str, str]:
    """The environment of a pool's workers."""
    return environment_of(worker_of(manifests_of(name), pool), manifests_of(name))


def test_all_rules_hold_for_each_overlay_and_example(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = main(), capsys.readouterr().out
    assert status == 0, said
    assert [line.split()[0] for line in said.splitlines()] == [*kustomizations(), "base", *examples()]


def test_check_says_what_is_wrong_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(K8S, tmp_path / "k8s")
    for name in ("dev-cpu", "gateway", "gpu", "gpu-adapters", "gpu-autoscaled", "gpu-multi-pool", "vllm-server"):
        shutil.rmtree(folder / "overlays" / name)
    shutil.rmtree(folder / "examples")
    (folder / "overlays/redis-ha/ready.sh").unlink()
    policy = folder / "overlays/external-redis/worker-egress-networkpolicy.yaml"
    policy.write_text(policy.read_text(encoding="utf-8").replace("policyTypes", "policyType"), encoding="utf-8")
    assert main(folder) == 1
    said = capsys.readouterr().out
    assert re.search(r"^base .* all \d+ rules hold$", said, re.MULTILINE)
    assert re.search(r"^external-redis .* \d found wrong\n  schema: .*policyType", said, re.MULTILINE)
    assert re.search(r"^redis-ha +does not render: .*ready\.sh", said, re.MULTILINE)


# -- planted mistakes --------------------------------------------------------------------------------------

IN_FILES = [
    ("gpu", "components/gpu/worker.yaml", "tolerations:", "tolerates:", "schema: "),
    ("gpu", "components/tensor-parallel/kustomization.yaml", "-size 2", "-size 4", "resources: "),
    (
        "gpu",
        "components/tensor-parallel/worker.yaml",
        'nvidia.com/gpu: "2"\n            limits',
        "limits",
        "resources: ",
    ),
    ("gpu", "components/tensor-parallel/worker.yaml", "progressDeadlineSeconds: 3600", "paused: false", "rolling: "),
    (
        "gpu-autoscaled",
        "components/pod-monitors/worker-podmonitor.yaml",
        "replacement: default",
        "replacement: small",
        "monitors: ",
    ),
    ("dev-cpu", "overlays/dev-cpu/worker.yaml", "memory: 6Gi", "memory: 6G B", "resources: "),
    ("gpu-adapters", "overlays/gpu-adapters/kustomization.yaml", "sql=/cache/", "sql=/models/", "references: "),
    ("gpu-multi-pool", "overlays/gpu-multi-pool/large/kustomization.yaml", "pool: large", "pool: small", "selectors: "),
    ("redis-ha", "overlays/redis-ha/redis-statefulset.yaml", '"timeout", "30"', '"timeout", "50"', "stopping: "),
    ("redis-ha", "overlays/redis-ha/redis-statefulset.yaml", '"timeout", "30", ', "", "stopping: "),
    (
        "external-redis",
        "overlays/external-redis/worker-egress-networkpolicy.yaml",
        "metadata:\n",
        "metadata:\n  namespace: a\n",
        "names: ",
    ),
    (
        "external-redis",
        "overlays/external-redis/exporter-egress-networkpolicy.yaml",
        "port: 6379 }\n        - { protocol: TCP, port: 6380 }",
        "port: 16379 }",
        "connections: ",
    ),
]


@pytest.mark.parametrize(("name", "file", "right", "wrong", "finding"), IN_FILES)
def test_planted_mistake_is_found(tmp_path: Path, name: str, file: str, right: str, wrong: str, finding: str) -> None:
    folder = shutil.copytree(K8S, tmp_path / "k8s")
    text = (folder / file).read_text(encoding="utf-8")
    assert right in text
    (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
    (rule,) = (each for each in RULES if each.__name__ == finding.partition(":")[0])
    found = [f"{rule.__name__}: {line}" for line in rule(render(kustomizations(folder)[name]))]
    assert [line for line in found if line.startswith(finding)]


# -- what each overlay is for ------------------------------------------------------------------------------


def test_dev_cpu_needs_no_gpu_and_takes_the_image_of_the_cpu_target() -> None:
    container = worker_of(manifests_of("dev-cpu"))
    assert container["image"] == f"streamfleet/worker-cpu:{VERSION}"
    assert not [name for part in container["resources"].values() for name in part if "gpu" in name]
    assert "SmolLM2-135M" in settings_of("dev-cpu")["STREAMFLEET_MODEL"]


@pytest.mark.parametrize("name", [name for name in kustomizations() if name != "external-redis"])
def test_redis_has_room_for_the_rewrite(name: str) -> None:
    redis = pod_of(only(manifests_of(name), "StatefulSet", "streamfleet-redis"))["containers"][0]
    conf = only(manifests_of(name), "ConfigMap", "streamfleet-redis")["data"]["redis.conf"].split()
    words = conf + [word.removeprefix("--") for word in redis["args"]]
    last = len(words) - 1 - words[::-1].index("maxmemory")
    assert bytes_of(words[last + 1]) <= 0.6 * bytes_of(redis["resources"]["limits"]["memory"])


def bytes_of(text: str) -> int:
    """A size as Redis or Kubernetes writes it."""
    units = {"mb": 1024**2, "gb": 1024**3, "Mi": 1024**2, "Gi": 1024**3}
    return int(text[:-2]) * units[text[-2:]]


@pytest.mark.parametrize(
    ("name", "pool", "gpus", "memory"),
    [
        ("gpu", "streamfleet-worker", "2", 40_000),
        ("gpu-multi-pool", "streamfleet-worker-large", "2", 40_000),
        ("gpu-multi-pool", "streamfleet-worker-small", "1", 20_000),
    ],
)
def test_gpu_pods_go_to_gpu_nodes_and_keep_their_models(name: str, pool: str, gpus: str, memory: int) -> None:
    manifests = manifests_of(name)
    pod = pod_of(next(each for each in of_kind(manifests, "Deployment") if name_of(each) == pool))
    container = worker_of(manifests, pool)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [each["key"] for term in required["nodeSelectorTerms"] for each in term["matchExpressions"]]
    assert keys == ["nvidia.com/gpu.present", "nvidia.com/gpu.memory"]
    # Of one GPU, in MiB. Two bytes a parameter, in the nine tenths that vLLM takes.
    assert required["nodeSelectorTerms"][0]["matchExpressions"][1]["values"] == [str(memory)]
    parameters = re.search(r"-(\d+)B", settings_of(name, pool)["STREAMFLEET_MODEL"])
    assert parameters is not None
    assert int(parameters[1]) * 2e9 < 0.9 * int(gpus) * memory * 2**20
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    claim = mounts[settings_of(name, pool)["HF_HOME"]]["persistentVolumeClaim"]["claimName"]
    # Workers of several nodes, and two during every update.
    assert [name_of(each) for each in of_kind(manifests, "PersistentVolumeClaim") if shared(each)].count(claim) == 1
    # Counts towards the memory limit.
    shm = bytes_of(mounts["/dev/shm"]["emptyDir"]["sizeLimit"])
    assert shm < 0.5 * bytes_of(container["resources"]["limits"]["memory"])


def shared(claim: Manifest) -> bool:
    """True if pods of several nodes may mount it."""
    return bool(claim["spec"]["accessModes"] == ["ReadWriteMany"])


def test_pools_have_queues_and_models_of_their_own_and_share_one_redis() -> None:
    name = "gpu-multi-pool"
    found = [name_of(each) for each in pools(manifests_of(name))]
    settings = [settings_of(name, pool) for pool in found]
    assert sorted(found) == ["streamfleet-worker-large", "streamfleet-worker-small"]
    for variable in ("STREAMFLEET_QUEUE", "STREAMFLEET_MODEL"):
        assert len({each[variable] for each in settings}) == 2
    assert len(of_kind(manifests_of(name), "StatefulSet")) == 1
    for pool in found:
        (worker,) = [each for each in pools(manifests_of(name)) if name_of(each) == pool]
        assert redis_secret(pod_of(worker)) == "streamfleet-redis"


def test_external_redis_has_workers_and_their_exporter_only() -> None:
    kinds = {each["kind"] for each in manifests_of("external-redis")}
    assert kinds == {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}
    names = [name_of(each) for each in of_kind(manifests_of("external-redis"), "Deployment")]
    assert sorted(names) == ["streamfleet-exporter", "streamfleet-worker"]


def test_redis_ha_has_a_majority_on_three_nodes() -> None:
    for name in ("streamfleet-redis", "streamfleet-sentinel"):
        workload = only(manifests_of("redis-ha"), "StatefulSet", name)
        terms = pod_of(workload)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert [(each["topologyKey"], each["labelSelector"]) for each in terms] == [
            ("kubernetes.io/hostname", workload["spec"]["selector"])
        ]
        # One by one, a replica would wait for a master that is not started before it is ready.
        assert (workload["spec"]["replicas"], workload["spec"]["podManagementPolicy"]) == (3, "Parallel")
        service = only(manifests_of("redis-ha"), "Service", name)
        assert service["spec"]["publishNotReadyAddresses"] is True
    assert settings_of("redis-ha")["STREAMFLEET_ENQUEUE_REPLICAS"] == "1"


# -- vllm-server -------------------------------------------------------------------------------------------


def test_workers_ask_the_server_and_nobody_else_may() -> None:
    manifests = manifests_of("vllm-server")
    url, service = settings_of("vllm-server")["VLLM_URL"], only(manifests, "Service", "streamfleet-vllm")
    assert url == f"http://{name_of(service)}:{service['spec']['ports'][0]['port']}"
    worker, server = ({"app.kubernetes.io/name": "streamfleet", "app.kubernetes.io/component": each} for each in PAIR)
    assert allowed(manifests, End(worker), End(server), 8000)
    assert allowed(manifests, End({"app": "prometheus"}, "monitoring"), End(server), 8000)
    assert not allowed(manifests, End({"app": "other"}), End(server), 8000)


def test_prometheus_finds_the_server(tmp_path: Path) -> None:
    folder = shutil.copytree(K8S, tmp_path / "k8s") / "overlays/watched"
    folder.mkdir()
    text = "resources: [../vllm-server]\ncomponents: [../../components/pod-monitors, ../../components/vllm-monitor]\n"
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
    manifests = render(folder)
    assert broken_rules(manifests) == []
    assert sorted(map(name_of, of_kind(manifests, "PodMonitor"))) == [
        f"streamfleet-{part}" for part in ("exporter", "vllm", "worker")
    ]


def test_the_server_has_the_gpu_and_what_the_workers_believe_of_it() -> None:
    manifests = manifests_of("vllm-server")
    server = worker_of(manifests, "streamfleet-vllm")
    assert "nvidia.com/gpu" not in worker_of(manifests)["resources"]["limits"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    limits = ["--max-num-seqs", "$(STREAMFLEET_REMOTE_SLOTS)"]
    assert server["args"] == ["$(STREAMFLEET_MODEL)", *limits, "--enable-prompt-tokens-details"]
    given = environment_of(server, manifests)
    assert {"STREAMFLEET_MODEL", "STREAMFLEET_REMOTE_SLOTS"} <= given.keys()
    # Each worker counts tokens by itself.
    alone = [each["spec"]["replicas"] for each in pools(manifests)] == [1]
    assert alone == (int(settings_of("vllm-server")["STREAMFLEET_REMOTE_KV_TOKENS"]) > 0)
    assert not [name for name in given if name.startswith("VLLM_")], "vLLM warns of those that it does not know"
    version = re.search(r"^ARG VLLM_VERSION=(\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    assert server["image"] == f"vllm/vllm-openai:v{version[1]}"
    assert worker_of(manifests)["image"] == f"streamfleet/worker:{VERSION}"
