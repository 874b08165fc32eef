"""Allowed connections under the NetworkPolicies of the base and of each overlay."""

import pytest

from tests.integration.k8s_manifests import kustomizations, labels_of, manifests_of, workloads
from tests.integration.k8s_network import End, allowed

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first

CLIENT = {"streamfleet.io/redis-client": "true"}
STRANGER = {"app": "shop"}
WITH_REDIS = [name for name in kustomizations() if name != "external-redis"]


def ends(name: str, component: str) -> list[End]:
    """The pods of a kustomization that are of this component: worker, exporter, redis or sentinel."""
    found = [labels_of(each) for each in workloads(manifests_of(name))]
    return [End(labels) for labels in found if labels["app.kubernetes.io/component"] == component]


PRODUCERS = {
    "beside it": (End(CLIENT), True),
    "elsewhere": (End(CLIENT, "shop", CLIENT), True),
    "elsewhere, namespace not let in": (End(CLIENT, "shop"), False),
    "elsewhere, pod without the label": (End(STRANGER, "shop", CLIENT), False),
    "a pod without the label": (End(STRANGER), False),
    "worker of another namespace": (
        End({"app.kubernetes.io/name": "streamfleet", "app.kubernetes.io/component": "worker"}, "shop"),
        False,
    ),
    "from outside": (End(address="203.0.113.7"), False),
}


@pytest.mark.parametrize("name", WITH_REDIS)
def test_redis_takes_producers_by_their_labels(name: str) -> None:
    (redis,) = ends(name, "redis")
    for who, (source, expected) in PRODUCERS.items():
        assert allowed(manifests_of(name), source, redis, 6379) is expected, who


@pytest.mark.parametrize("name", WITH_REDIS)
def test_redis_takes_every_pool_of_workers_on_its_port_only(name: str) -> None:
    (redis,) = ends(name, "redis")
    assert ends(name, "worker")
    for worker in ends(name, "worker"):
        assert allowed(manifests_of(name), worker, redis, 6379)
        assert not allowed(manifests_of(name), worker, redis, 22)


@pytest.mark.parametrize("name", kustomizations())
def test_worker_takes_health_and_metrics_and_nothing_else(name: str) -> None:
    prometheus = End({"app": "prometheus"}, "monitoring")
    for worker in ends(name, "worker"):
        assert allowed(manifests_of(name), prometheus, worker, 9100)
        assert not allowed(manifests_of(name), prometheus, worker, 8000)
        assert not allowed(manifests_of(name), prometheus, worker, 9100, "UDP")


@pytest.mark.parametrize("name", WITH_REDIS)
def test_exporter_reaches_redis_and_prometheus_reaches_it(name: str) -> None:
    prometheus, (redis,) = End({"app": "prometheus"}, "monitoring"), ends(name, "redis")
    assert ends(name, "exporter")
    for exporter in ends(name, "exporter"):
        assert allowed(manifests_of(name), exporter, redis, 6379)
        assert all(allowed(manifests_of(name), exporter, each, 26379) for each in ends(name, "sentinel"))
        assert allowed(manifests_of(name), prometheus, exporter, 9101)
        assert not allowed(manifests_of(name), prometheus, exporter, 8000)
        assert not allowed(manifests_of(name), redis, exporter, 9101)


@pytest.mark.parametrize(
    ("target", "port", "expected"),
    [
        (End(address="10.1.2.3"), 6379, True),
        (End(address="192.168.1.2"), 6380, True),
        (End(address="203.0.113.7"), 443, False),
        (End({"k8s-app": "kube-dns"}, "kube-system"), 53, True),
    ],
)
def test_exporter_beside_an_external_redis_reaches_that_only(target: End, port: int, expected: bool) -> None:
    (exporter,) = ends("external-redis", "exporter")
    assert allowed(manifests_of("external-redis"), exporter, target, port) is expected
    assert allowed(manifests_of("external-redis"), End({"app": "prometheus"}, "monitoring"), exporter, 9101)


@pytest.mark.parametrize("name", WITH_REDIS)
def test_worker_may_download_its_model_and_redis_reaches_nobody_outside(name: str) -> None:
    hub, (redis,) = End(address="203.0.113.7"), ends(name, "redis")
    for worker in ends(name, "worker"):
        assert allowed(manifests_of(name), worker, hub, 443)
        assert not allowed(manifests_of(name), redis, worker, 9100)
    assert not allowed(manifests_of(name), redis, hub, 443)


@pytest.mark.parametrize(
    ("target", "port", "expected"),
    [
        (End(address="10.1.2.3"), 6379, True),
        (End(address="192.168.1.2"), 6380, True),
        (End(address="203.0.113.7"), 6379, False),
        (End(address="203.0.113.7"), 443, True),
        (End(address="203.0.113.7"), 80, False),
        (End(address="169.254.169.254"), 443, False),
        (End(address="169.254.169.254"), 80, False),
        (End(address="10.1.2.3"), 443, False),
        (End({"k8s-app": "kube-dns"}, "kube-system"), 53, True),
        (End(address="169.254.20.10"), 53, True),
        (End(STRANGER, "shop"), 53, False),
        (End(STRANGER), 6379, False),
    ],
)
def test_worker_beside_an_external_redis_reaches_that_and_models(target: End, port: int, expected: bool) -> None:
    (worker,) = ends("external-redis", "worker")
    assert allowed(manifests_of("external-redis"), worker, target, port) is expected


@pytest.mark.parametrize(
    ("source", "target", "port", "expected"),
    [
        ("redis", "redis", 6379, True),
        ("sentinel", "redis", 6379, True),
        ("redis", "sentinel", 26379, True),
        ("sentinel", "sentinel", 26379, True),
        ("worker", "sentinel", 26379, True),
        ("worker", "sentinel", 6379, False),
        ("sentinel", "worker", 9100, False),
    ],
)
def test_sentinels_servers_and_workers_reach_each_other(source: str, target: str, port: int, expected: bool) -> None:
    (one,), (other,) = ends("redis-ha", source), ends("redis-ha", target)
    assert allowed(manifests_of("redis-ha"), one, other, port) is expected


def test_sentinels_take_whom_redis_takes() -> None:
    (sentinel,) = ends("redis-ha", "sentinel")
    for who, (source, expected) in PRODUCERS.items():
        assert allowed(manifests_of("redis-ha"), source, sentinel, 26379) is expected, who


@pytest.mark.parametrize("component", ["redis", "sentinel"])
@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_servers_look_names_up(component: str, protocol: str) -> None:
    (pod,) = ends("redis-ha", component)
    assert allowed(manifests_of("redis-ha"), pod, End({"k8s-app": "kube-dns"}, "kube-system"), 53, protocol)
