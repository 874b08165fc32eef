"""Rules for every kustomization, as pure functions from its manifests to their faults.

The rules come from what a worker promises: it drains before it is killed, its settings are read, nothing that it needs
is missing. `broken_rules` applies all of them.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import GATEWAY_GROUPS, GROUPS, load, variable
from streamfleet.worker.worker import LAST_WRITES_S
from tests.integration.k8s_gateway import GATEWAY_ENDS_S, misplaced, settings_of
from tests.integration.k8s_manifests import (
    ROOT,
    Manifest,
    environment_of,
    gateways,
    labels_of,
    name_of,
    of_kind,
    pod_of,
    pools,
    workloads,
)
from tests.integration.k8s_network import cut_off
from tests.integration.k8s_references import dangling, misdirected, unmounted
from tests.integration.k8s_scaling import misscaled, unseen
from tests.integration.k8s_schemas import refusals
from tests.integration.pod_security import restricted_violations

# Read by Redis's own tools and by what vLLM downloads models with.
THIRD_PARTY = {"REDIS_PASSWORD", "REDISCLI_AUTH", "HF_TOKEN", "HF_HOME"}
# And by what the gateway stores files in S3 with.
THIRD_PARTY |= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"}
THIRD_PARTY |= {"HOME", "USER"}  # compilers that vLLM starts
WELL_KNOWN = {"REDIS_URL", "REDIS_URL_FILE", "VLLM_URL"}
# Redis waits so long for replicas that lag before it ends (its default), and a second for the rest.
REDIS_ENDS_S = 11
DEPLOY, SECURITY = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("deploy.md", "security.md"))

QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")

Rule = Callable[[list[Manifest]], Iterator[str]]


def schema(manifests: list[Manifest]) -> Iterator[str]:
    """Kubernetes would refuse or pass over something."""
    for each in manifests:
        yield from refusals(each)


def names(manifests: list[Manifest]) -> Iterator[str]:
    """Two manifests would overwrite each other, or one has a namespace of its own."""
    for (kind, name), count in Counter((each["kind"], name_of(each)) for each in manifests).items():
        if count > 1:
            yield f"{count} of kind {kind} named {name}"
    for each in manifests:
        if "namespace" in each["metadata"]:
            yield f"{name_of(each)}: has a namespace"
        if each["kind"] == "Secret":
            yield f"{name_of(each)}: a Secret in the repository"


def restricted(manifests: list[Manifest]) -> Iterator[str]:
    """A pod breaks the restricted Pod Security Standard, or what goes beyond it here."""
    for each in workloads(manifests):
        pod = pod_of(each)
        for violation in restricted_violations(pod):
            yield f"{name_of(each)}: {violation}"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{name_of(each)}: gets a token of the cluster"
        # A Service streamfleet-redis would put STREAMFLEET_REDIS_PORT into the environment, which looks like a setting.
        if pod.get("enableServiceLinks") is not False:
            yield f"{name_of(each)}: service links are on"
        for container in pod["containers"]:
            if container["securityContext"].get("readOnlyRootFilesystem") is not True:
                yield f"{name_of(each)}: root file system is writable"


def stopping(manifests: list[Manifest]) -> Iterator[str]:
    """The grace period ends before the pod's work does."""
    for each in workloads(manifests):
        pod, container = pod_of(each), pod_of(each)["containers"][0]
        needed_s = _pre_stop_s(container)
        if each in pools(manifests):
            drain_ms = int(environment_of(container, manifests)["STREAMFLEET_DRAIN_MS"])
            needed_s += drain_ms / 1000 + LAST_WRITES_S
        elif each in gateways(manifests):
            needed_s += settings_of(each, manifests).gateway_drain_ms / 1000 + GATEWAY_ENDS_S
            if not _pre_stop_s(container):
                yield f"{name_of(each)}: refuses connections before proxies know that it goes"
        elif needed_s:
            needed_s += REDIS_ENDS_S
        granted_s = pod.get("terminationGracePeriodSeconds", 30)
        if granted_s < needed_s:
            yield f"{name_of(each)}: grace period of {granted_s} s, {needed_s:g} s are needed"


def _pre_stop_s(container: Manifest) -> float:
    """Longest time of a preStop hook, in seconds; a command has to limit itself, by `timeout`."""
    hook = container.get("lifecycle", {}).get("preStop", {})
    if "exec" in hook:
        name, seconds, *_ = hook["exec"]["command"]
        return float(seconds) if name == "timeout" else float("inf")
    return float(hook.get("sleep", {}).get("seconds", 0))


def rolling(manifests: list[Manifest]) -> Iterator[str]:
    """A rolling update drops below capacity, or is called dead while a worker still loads."""
    for each in of_kind(manifests, "Deployment"):
        strategy = each["spec"].get("strategy", {})
        moves = strategy.get("rollingUpdate", {})
        if strategy.get("type") != "RollingUpdate" or moves.get("maxUnavailable") != 0:
            yield f"{name_of(each)}: a rolling update drops below capacity"
        if moves.get("maxSurge") in (None, 0, "0%"):
            yield f"{name_of(each)}: a rolling update cannot begin"
        probe = pod_of(each)["containers"][0].get("startupProbe", {"periodSeconds": 0, "failureThreshold": 0})
        if each["spec"].get("progressDeadlineSeconds", 600) < probe["periodSeconds"] * probe["failureThreshold"]:
            yield f"{name_of(each)}: the rollout gives up before the startup probe"


def settings(manifests: list[Manifest]) -> Iterator[str]:
    """A variable is no setting, or has a value that who reads it refuses."""
    known = {variable(name) for group in GROUPS for name in group.model_fields} | WELL_KNOWN
    scripts = " ".join(text for each in of_kind(manifests, "ConfigMap") for text in each["data"].values())
    for each in workloads(manifests):
        container = pod_of(each)["containers"][0]
        given = environment_of(container, manifests)
        values = " ".join(given.values())
        for name in given | {entry["name"]: "" for entry in container.get("env", [])}:
            used = re.search(rf"\${name}\b", scripts) or f"$({name})" in values
            if name not in known | THIRD_PARTY and not used:
                yield f"{name_of(each)}: {name} is no setting, and nothing here uses it"
        if each["kind"] != "Deployment":
            continue
        groups = GATEWAY_GROUPS if each in gateways(manifests) else GROUPS
        with patch.dict(os.environ, given, clear=True):
            yield from (f"{name_of(each)}: {line}" for group in groups for line in _refused(group))


def _refused(group: type) -> list[str]:
    try:
        load(group)
    except SettingsError as error:
        return str(error).splitlines()
    return []


def references(manifests: list[Manifest]) -> Iterator[str]:
    """Something that is referred to exists neither here nor in a command of the docs, or a path is on no mount."""
    yield from dangling(manifests, DEPLOY + SECURITY)
    yield from unmounted(manifests)


def selectors(manifests: list[Manifest]) -> Iterator[str]:
    """A selector picks other pods than those that it is meant for."""
    return misdirected(manifests)


def connections(manifests: list[Manifest]) -> Iterator[str]:
    """A part of the fleet cannot reach Redis."""
    return cut_off(manifests)


def resources(manifests: list[Manifest]) -> Iterator[str]:
    """The scheduler is not told what a pod needs, or it is throttled. The schemas take any text for a quantity."""
    for each in workloads(manifests):
        for container in pod_of(each)["containers"]:
            requests, limits = (container.get("resources", {}).get(part, {}) for part in ("requests", "limits"))
            if not {"cpu", "memory"} <= set(requests) or "memory" not in limits:
                yield f"{name_of(each)}: {container['name']} lacks a request of CPU or memory, or a limit of memory"
            for text in [*map(str, requests.values()), *map(str, limits.values())]:
                if not QUANTITY.fullmatch(text):
                    yield f"{name_of(each)}: {container['name']} asks for {text}, which is no quantity"
            # Throttling would hold up lease renewals, and failovers.
            if "cpu" in limits:
                yield f"{name_of(each)}: {container['name']} has a limit of CPU"
            gpus = {part.get("nvidia.com/gpu") for part in (requests, limits)}
            if len(gpus) > 1:
                yield f"{name_of(each)}: requests and limits of GPUs differ"
            arguments = environment_of(container, manifests).get("STREAMFLEET_ENGINE_ARGS", "")
            parallel = re.search(r"--tensor-parallel-size[= ](\d+)", arguments)
            serves = each in pools(manifests)
            if serves and (parallel[1] if parallel else "1") not in {each or "1" for each in gpus}:
                yield f"{name_of(each)}: tensor parallel is not what there are GPUs"


def disruption(manifests: list[Manifest]) -> Iterator[str]:
    """A node drain may take all workers, or never ends."""
    budgets = [each["spec"] for each in of_kind(manifests, "PodDisruptionBudget")]
    for each in workloads(manifests):
        own = [spec for spec in budgets if spec["selector"]["matchLabels"].items() <= labels_of(each).items()]
        # A single Redis or exporter must be allowed to move: a budget would only hold the drain up.
        needs = labels_of(each)["app.kubernetes.io/component"] in ("worker", "gateway", "vllm")
        if each["spec"].get("replicas", 1) > 1 or needs:
            if len(own) != 1:
                yield f"{name_of(each)}: has {len(own)} disruption budgets"
            elif own[0].get("maxUnavailable") != 1:
                yield f"{name_of(each)}: its disruption budget is not one pod at a time"


def fronting(manifests: list[Manifest]) -> Iterator[str]:
    """A gateway is cut off from its files or its callers, or shows outside what is for inside."""
    return misplaced(manifests)


def scaling(manifests: list[Manifest]) -> Iterator[str]:
    """An autoscaler has no fleet, fights over it, or sends workers away before others have loaded."""
    return misscaled(manifests)


def monitors(manifests: list[Manifest]) -> Iterator[str]:
    """Prometheus does not find what it is to scrape."""
    return unseen(manifests)


RULES: tuple[Rule, ...] = (
    schema,
    names,
    restricted,
    stopping,
    rolling,
    settings,
    references,
    selectors,
    connections,
    resources,
    disruption,
    fronting,
    scaling,
    monitors,
)


def broken_rules(manifests: list[Manifest]) -> list[str]:
    """Everything that is wrong, one line each, the rule first."""
    wrong = [f"schema: {line}" for line in schema(manifests)]
    # The other rules presume manifests that Kubernetes takes.
    others = [rule for rule in RULES if rule is not schema]
    return wrong or [f"{rule.__name__}: {line}" for rule in others for line in rule(manifests)]
