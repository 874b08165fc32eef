"""Connections that the NetworkPolicies of a kustomization allow, by the rules of Kubernetes.

A pod that no policy picks takes (or starts) any connection. One that is picked takes those that at least one of its
policies allows. A connection needs both ends to agree.
"""

import ipaddress
from dataclasses import dataclass, field
from typing import Any

from tests.integration.k8s_manifests import Manifest, of_kind
from tests.integration.k8s_references import selects

Labels = dict[str, str]
FLEET = "fleet"


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
