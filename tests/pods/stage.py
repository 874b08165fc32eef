"""The stage of a run: the chart's manifests, Secrets, Redis, and what a producer's container and this machine ask."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.k8s_chart import charted, examples
from tests.integration.k8s_manifests import Manifest, name_of, of_kind, only
from tests.pods.deployment import Deployment
from tests.pods.pod import Node, Pod, PodFailed, tail, until
from tests.pods.podman import PREFIX, Podman

PASSWORD = "not-a-secret"
REDIS, WORKER, EXPORTER, GATEWAY = (f"streamfleet-{part}" for part in ("redis", "worker", "exporter", "gateway"))
URL = f"redis://:{PASSWORD}@{REDIS}:6379/0"
ENGINE = {"STREAMFLEET_ENGINE": "simulated"}
SIMULATED = {"worker": {"image": "streamfleet/worker", "model": "simulated", "settings": ENGINE}}
"""Values of workers with the simulated engine, in the small image."""
MODEL_INSIDE = "/models/SmolLM2-135M-Instruct"
MEMORY_SHARE = 0.9
RESTRICTED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")
UNWRITABLE = ("ermission denied", "Read-only file system")
PRODUCER = Path(__file__).parent / "producer.py"


class WrongOutcome(Exception):
    """A step saw something else than it should; the message says what."""


@dataclass(frozen=True)
class Act:
    """Counts of requests during one event of a fleet: asked, answered, run again."""

    fleet: str
    name: str
    asked: int
    answered: int
    again: int


class Stage:
    """Everything of a run; what it has made is gone when its context ends.

    Args:
        podman: runs containers.
        client: image of the client.
        redis: image for Redis.

    Attributes:
        redis_image: the same.
        acts: counts of all events so far.
    """

    def __init__(self, podman: Podman, client: str, redis: str) -> None:
        self.podman, self._client, self.redis_image = podman, client, redis
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-"))
        self.node = Node(podman, self.folder / "pods", {"redis:8.2-bookworm": redis})
        self.dev_cpu = charted(examples()["dev-cpu"], values=SIMULATED)
        self.gateway = charted(examples()["gateway"], values=SIMULATED)
        self.acts: list[Act] = []
        self.redis: Pod | None = None
        self.exporter = Deployment(self.node, self.dev_cpu, EXPORTER)
        self.workers = Deployment(self.node, self.dev_cpu, WORKER)
        self.gateways = Deployment(self.node, self.gateway, GATEWAY)
        self._redis_pods = 0
        self._clients = itertools.count()

    def __enter__(self) -> Self:
        self.podman.call("network", "create", self.node.network)
        self.node.secret(REDIS, password=PASSWORD, url=URL)
        self.node.secret(f"{GATEWAY}-redis", url=URL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.node.clean()
        finally:
            self.podman.remove_all()

    def start_redis(self, *, another_volume: bool = False) -> float:
        """Start the pod of the StatefulSet, with the volume that it had. Returns the seconds until it was ready."""
        self._redis_pods += another_volume
        workload = only(self.dev_cpu, "StatefulSet", REDIS)
        self.redis = Pod(self.node, workload, f"{REDIS}-{self._redis_pods}", self.dev_cpu, REDIS)
        return self.redis.wait_ready()

    def failing(self, manifests: list[Manifest], name: str, number: int) -> Pod:
        """A pod of a Deployment that is not to be started again, so that its end can be looked at."""
        found = next(each for each in of_kind(manifests, "Deployment") if name_of(each) == name)
        workload: Manifest = json.loads(json.dumps(found))
        workload["spec"]["template"]["spec"]["restartPolicy"] = "Never"
        return Pod(self.node, workload, f"{name}-failing-{number}", manifests)

    def fleet(self, *words: str) -> str:
        """Run a command of an operator in the exporter's pod, as docs/deploy.md does."""
        return self.exporter.pods[0].run("streamfleet", *words)

    def container(self, *words: str, options: tuple[str, ...] = (), program: str = "streamfleet") -> str:
        """Run a program in a container of the client's image, in the same network, as restricted as the pods are."""
        return self.podman.call(
            "run", *self._options(), *RESTRICTED, *options, f"--entrypoint={program}", self._client, *words
        )

    def load(self, act: str, max_tokens: int = 100) -> Load:
        """Begin to enqueue, from a producer's container."""
        options = [*self._options(), "--interactive", f"--volume={PRODUCER}:/producer.py:ro", "--entrypoint=python3"]
        process = self.podman.started("run", *options, self._client, "/producer.py", act, str(max_tokens))
        return Load(process, "chart", act, self.acts)

    def first_lines(self) -> str:
        """The first line that `kubectl logs` shows of each of our pods is an event, as JSON."""
        pods = [pod for pod in self.node.pods if pod is not self.redis]
        return ", ".join(f"{pod.name.removeprefix('streamfleet-')}: {first_event(pod)}" for pod in pods)

    def rights(self) -> str:
        """Each pod's process is who the manifest says, without capabilities, on a read-only root, and can write."""
        for pod in self.node.pods:
            check_writes(pod)
            check(pod.rights() == pod.rights_given(), f"{pod.name} has {pod.rights()}")
        return f"{len(self.node.pods)} pods: their own user and group, no capabilities, a read-only root"

    def home_in_memory(self) -> str:
        """A container without Kubernetes' volumes: HOME as an empty tmpfs is for the image's user to write to."""
        self.container("-c", "touch /cache/written", options=("--tmpfs=/cache",), program="sh")
        return "an empty tmpfs at /cache, with a read-only root: writable"

    def probes_and_memory(self) -> str:
        """Probes of pods that were ready have not failed, but for Redis's absence; memory is below the limits."""
        pods = [*self.node.pods, *self.node.gone]
        failed = {f"{pod.name}: {name}" for pod in pods for name in pod.asked.failed if name == "livenessProbe"}
        check(not failed, f"liveness failed: {', '.join(failed)}")
        used = []
        for pod in self.node.pods:
            most, limit = pod.memory()
            check(most < limit * MEMORY_SHARE, f"{pod.name} has used {most >> 20} of {limit >> 20} MiB")
            used.append(f"{pod.name.removeprefix('streamfleet-')} {most >> 20} of {limit >> 20} MiB")
        times, slowest_s = sum(pod.asked.times for pod in pods), max(pod.asked.slowest_s for pod in pods)
        return f"{times} probes, no liveness probe failed, the slowest took {slowest_s:.2f} s; {', '.join(used)}"

    def any_user(self) -> str:
        """Worker and gateway run as a user whom no image knows, of group 0, as OpenShift chooses one."""
        options = [f"--network={self.node.network}", f"--env=REDIS_URL={URL}", "--env=STREAMFLEET_QUEUE=any-user"]
        options += ["--pull=never", "--detach", "--user=1000660000:0", "--tmpfs=/tmp", *RESTRICTED]
        settings = {"worker": "STREAMFLEET_ENGINE=simulated", "gateway": "STREAMFLEET_GATEWAY_FILES=file:///tmp/files"}
        for target, setting in settings.items():
            name = f"{PREFIX}-any-user-{target}"
            self.podman.call("run", f"--name={name}", *options, f"--env={setting}", self.image(target))
            self.wait_said(name, f"{target}_ready")
            self.podman.call("rm", "--force", "--time=0", name)
        return "user 1000660000 of group 0, a read-only root: worker and gateway are ready"

    def wait_said(self, container: str, event: str, timeout_s: float = 60.0) -> None:
        """Wait until a container has logged an event. Raises WrongOutcome."""
        found = until(lambda: event in self.podman.output(container), timeout_s)
        check(found, f"{container} does not say {event}, but:\n{tail(self.podman.output(container))}")

    def image(self, target: str) -> str:
        """The image of one of the Dockerfile's targets."""
        return self._client.replace("/client:", f"/{target}:")

    def audited(self) -> None:
        """Raises PodmanFailed, with what is wrong, when the queue does not add up."""
        self.fleet("audit")

    def _options(self) -> list[str]:
        name = f"--name={PREFIX}-client-{next(self._clients)}"  # whatever happens, it is found and removed
        return [name, "--rm", "--pull=never", f"--network={self.node.network}", f"--env=REDIS_URL={URL}"]


class Load:
    """Requests that come steadily, until `results`.

    Args:
        process: the producer.
        fleet: what it asks.
        act: what happens meanwhile.
        acts: gets one more.
    """

    def __init__(self, process: subprocess.Popen[str], fleet: str, act: str, acts: list[Act]) -> None:
        self._process, self._fleet, self._act, self._acts = process, fleet, act, acts
        assert process.stdout is not None
        # A container takes its time to start. By bytes: `communicate` does not see what `readline` has read ahead.
        while os.read(process.stdout.fileno(), 1) not in (b"\n", b""):
            pass

    def results(self, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """End the load. Returns the one result of each request. Raises WrongOutcome when one has none, or failed."""
        said, errors = self._process.communicate("", timeout=timeout_s)
        if self._process.returncode:
            raise WrongOutcome(f"the producer ended with {self._process.returncode}: {errors[-600:]}")
        asked: int
        found: list[dict[str, Any]]
        asked, found = json.loads(said.splitlines()[-1])  # before it, what the client logs
        ids = {each["id"] for each in found}
        again = sum(each["attempt"] > 1 for each in found)
        self._acts.append(Act(self._fleet, self._act, asked, len(ids), again))
        if not (len(found) == len(ids) == asked):
            raise WrongOutcome(f"{asked} requests, {len(found)} results of {len(ids)} of them")
        if other := [each for each in found if each["status"] != "succeeded"]:
            raise WrongOutcome(f"{len(other)} of {asked} did not succeed, for example {other[0]}")
        return found


def check(holds: object, otherwise: str) -> None:
    """Raises WrongOutcome with these words where something does not hold."""
    if not holds:
        raise WrongOutcome(otherwise)


def check_writes(pod: Pod) -> None:
    """Raises WrongOutcome where a pod logs that it may not write somewhere."""
    refused = [line for line in pod.log().splitlines() if any(words in line for words in UNWRITABLE)]
    check(not refused, f"{pod.name} may not write where it does: {refused[:1]}")


def first_event(pod: Pod) -> str:
    """The event in the first line of a pod's log. Raises WrongOutcome where that is none."""
    line = pod.log().partition("\n")[0]
    check(line.startswith("{"), f"the log of {pod.name} begins with {line[:200]!r}")
    return str(json.loads(line)["event"])


def said(pod: Pod, words: str, timeout_s: float = 20.0) -> str:
    """The line of a pod's log that has these words, waited for. Raises PodFailed."""

    def line() -> str:
        return next((line for line in pod.log().splitlines() if words in line), "")

    if not (found := until(line, timeout_s)):
        raise PodFailed(f"{pod.name} does not say {words!r}, but:\n{tail(pod.log())}")
    return found
