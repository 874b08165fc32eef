"""Connections that the NetworkPolicies of a kustomization allow, by the rules of Kubernetes.

A pod that no policy picks takes (or starts) any connection. One that is picked takes those that at least one of its
policies allows. A connection needs both ends to agree.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.integration.k8s_manifests import Manifest, labels_of, name_of, of_kind, workloads
from tests.integration.k8s_references import selects

Labels = dict[str, str]
FLEET = "fleet"
SERVERS = {"redis": 6379, "sentinel": 26379}
CLIENTS = ("worker", "exporter", "gateway")
NOT_REDIS = {53, 80, 443}


@dataclass(frozen=True)
class End:
    """One end of a connection.

    Attributes:
        labels: of the pod; None for what is outside the cluster.
        namespace: name of its namespace, and its labels beside the one that every namespace has.
        address: of what is outside the cluster.
    """

    labels: Labels | None = None
    namespace: str = FLEET
    namespace_labels: Labels = field(default_factory=dict)
    address: str = ""


def allowed(manifests: list[Manifest], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """True if a connection gets through. The policies belong to the namespace `FLEET`, and apply to its pods only."""
    policies = of_kind(manifests, "NetworkPolicy")
    return all(
        _passes([each["spec"] for each in policies if _picks(each["spec"], own)], direction, peer, port, protocol)
        for direction, own, peer in (("Egress", source, target), ("Ingress", target, source))
    )


def cut_off(manifests: list[Manifest]) -> Iterator[str]:
    """Parts of the fleet that do not reach Redis: those here, or the one outside that most of them are let out to."""
    found = [(labels_of(each)["app.kubernetes.io/component"], each) for each in workloads(manifests)]
    clients = {name_of(each): End(labels_of(each)) for component, each in found if component in CLIENTS}

    def reached(server: tuple[End, int]) -> set[str]:
        return {name for name, client in clients.items() if allowed(manifests, client, *server)}

    servers = [(End(labels_of(each)), SERVERS[component]) for component, each in found if component in SERVERS]
    servers = servers or [max(_outside(manifests), key=lambda server: len(reached(server)))]
    for name in sorted(clients.keys() - set.intersection(*map(reached, servers))):
        yield f"{name}: its NetworkPolicies do not let it reach Redis"


def _outside(manifests: list[Manifest]) -> list[tuple[End, int]]:
    """An address of each network that policies let somebody out to, but for names, models and webhooks."""
    rules = [rule for each in of_kind(manifests, "NetworkPolicy") for rule in each["spec"].get("egress", [])]
    networks = [
        (End(address=str(ipaddress.ip_network(peer["ipBlock"]["cidr"])[0])), port["port"])
        for rule in rules
        for peer in rule.get("to", [])
        for port in rule["ports"]
        if "ipBlock" in peer and port["port"] not in NOT_REDIS
    ]
    return networks or [(End(address="10.0.0.1"), SERVERS["redis"])]


def _picks(policy: dict[str, Any], end: End) -> bool:
    return end.labels is not None and end.namespace == FLEET and selects(policy["podSelector"], end.labels)


def _passes(policies: list[dict[str, Any]], direction: str, peer: End, port: int, protocol: str) -> bool:
    closing = [each for each in policies if direction in each["policyTypes"]]
    rules = [rule for each in closing for rule in each.get(direction.lower(), [])]
    return not closing or any(_allows(rule, direction, peer, port, protocol) for rule in rules)


def _allows(rule: dict[str, Any], direction: str, peer: End, port: int, protocol: str) -> bool:
    ports, peers = rule.get("ports"), rule.get("from" if direction == "Ingress" else "to")
    fits = not ports or any((each["port"], each.get("protocol", "TCP")) == (port, protocol) for each in ports)
    return fits and (not peers or any(_is(each, peer) for each in peers))


def _is(described: dict[str, Any], end: End) -> bool:
    if "ipBlock" in described:
        block = described["ipBlock"]
        return bool(end.address) and _inside(end.address, block["cidr"], block.get("except", []))
    if end.labels is None:
        return False
    if "namespaceSelector" in described:
        of_namespace = {"kubernetes.io/metadata.name": end.namespace, **end.namespace_labels}
        right_namespace = selects(described["namespaceSelector"], of_namespace)
    else:
        right_namespace = end.namespace == FLEET
    return right_namespace and selects(described.get("podSelector", {}), end.labels)


def _inside(address: str, block: str, excepted: list[str]) -> bool:
    where = ipaddress.ip_address(address)
    return where in ipaddress.ip_network(block) and not any(where in ipaddress.ip_network(each) for each in excepted)
