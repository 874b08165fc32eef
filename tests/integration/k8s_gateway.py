"""Gateways of one kustomization, held against where their files are, and how callers get to them."""

import os
import re
from collections.abc import Iterator
from unittest.mock import patch

from streamfleet.common.settings import load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway.gateway import FINISHING_S
from streamfleet.gateway.server import LAST_S
from tests.integration.k8s_manifests import Manifest, environment_of, gateways, name_of, of_kind, pod_of
from tests.integration.k8s_references import picks_owner

# Behind the drain: the last words to those who still wait; then what nobody waits for, and webhooks under way.
GATEWAY_ENDS_S = LAST_S + 1 + 2 * FINISHING_S
FILES = "STREAMFLEET_GATEWAY_FILES"
COMMUNITY, F5 = "nginx.ingress.kubernetes.io/", "nginx.org/"
# Paths for callers. The rest (probes, metrics) asks for no key.
OUTSIDE = re.compile(r"/(v1|ui)(/.*)?|/openapi\.json")


def settings_of(gateway: Manifest, manifests: list[Manifest]) -> GatewaySettings:
    """Returns the settings in a gateway's environment, without its Secrets."""
    given = environment_of(pod_of(gateway)["containers"][0], manifests)
    with patch.dict(os.environ, given, clear=True):
        return load(GatewaySettings)


def misplaced(manifests: list[Manifest]) -> Iterator[str]:
    """Gateways whose files get lost, and Ingresses that cut callers off or let them in too far."""
    for each in gateways(manifests):
        yield from _losing(each, manifests)
        port = settings_of(each, manifests).gateway_port
        if port not in {found["containerPort"] for found in pod_of(each)["containers"][0]["ports"]}:
            yield f"{name_of(each)}: listens on {port}, which is no port of the pod"
    for each in of_kind(manifests, "Ingress"):
        yield from _leading_nowhere(each, manifests)
        yield from _cutting(each, manifests)


def _losing(gateway: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    """Files that are not where all gateways find them, also once this pod is gone."""
    container = pod_of(gateway)["containers"][0]
    if FILES in {entry["name"] for entry in container.get("env", []) if "valueFrom" in entry}:
        return  # an object store, whose URL is in a Secret
    scheme, _, path = settings_of(gateway, manifests).gateway_files.partition("://")
    if scheme not in ("file", "local", "memory"):
        return
    volumes = {volume["name"]: volume for volume in pod_of(gateway).get("volumes", [])}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container.get("volumeMounts", [])}
    claim = mounts.get(path, {}).get("persistentVolumeClaim", {}).get("claimName")
    claims = {name_of(each): each["spec"]["accessModes"] for each in of_kind(manifests, "PersistentVolumeClaim")}
    if scheme == "memory" or claim not in claims:
        yield f"{name_of(gateway)}: files in {scheme}://{path}, which others do not see, and which goes with the pod"
    # One node may have several pods on a volume of ReadWriteOnce.
    elif not set(claims[claim]) & {"ReadWriteMany", "ReadWriteOnce"}:
        yield f"{name_of(gateway)}: its volume is for one pod"


def _leading_nowhere(ingress: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    name, secured = name_of(ingress), {host for part in ingress["spec"].get("tls", []) for host in part["hosts"]}
    services = {name_of(each): each for each in of_kind(manifests, "Service")}
    for rule in ingress["spec"]["rules"]:
        if rule.get("host") not in secured:
            yield f"Ingress {name}: {rule.get('host')} without TLS: API keys would be read on the way"
        for path in rule["http"]["paths"]:
            if not OUTSIDE.fullmatch(path["path"]):
                yield f"Ingress {name}: {path['path']} is open to anybody"
            target = path["backend"]["service"]
            found = services.get(target["name"])
            if found is None or target["port"]["name"] not in {port["name"] for port in found["spec"]["ports"]}:
                yield f"Ingress {name}: no Service {target['name']} with {target['port']['name']}"
            elif not [each for each in gateways(manifests) if picks_owner(found, each)]:
                yield f"Ingress {name}: {target['name']} is no gateway's"


def _cutting(ingress: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    """Yields every way in which either kind of NGINX would cut callers who wait, read a stream, or upload."""
    said, name = ingress["metadata"].get("annotations", {}), name_of(ingress)
    longest_s = (
        max((settings_of(each, manifests).gateway_max_wait_ms for each in gateways(manifests)), default=0) / 1000
    )
    for key in (f"{maker}proxy-{way}-timeout" for maker in (COMMUNITY, F5) for way in ("read", "send")):
        if int(said.get(key, "60").removesuffix("s")) <= longest_s:
            yield f"Ingress {name}: {key} ends before the longest wait, {longest_s:g} s"
    wanted = {
        f"{COMMUNITY}proxy-buffering": "off",
        f"{COMMUNITY}proxy-request-buffering": "off",
        f"{COMMUNITY}proxy-body-size": "0",
        f"{F5}proxy-buffering": "False",
        f"{F5}client-max-body-size": "0",
    }
    yield from (f"Ingress {name}: {key} is not {value}" for key, value in wanted.items() if said.get(key) != value)
