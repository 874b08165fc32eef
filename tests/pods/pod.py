"""One pod, and what the kubelet does for it: volumes, probes, the end."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from tests.integration.k8s_manifests import Manifest, pod_of
from tests.pods.converting import (
    POD_LABEL,
    bytes_of,
    claims_of,
    config_maps_of,
    empty_dirs,
    ours,
    played,
    secret_files,
)
from tests.pods.podman import PREFIX, Podman, PodmanFailed, remove_folder

T = TypeVar("T")
ASK_EVERY_S = 0.2
SET_BY_HAND = "3"  # NET_ADDR_SET of the kernel


class PodFailed(Exception):
    """A pod does not become ready, or ended on its own; the message has its last words."""


@dataclass
class Asked:
    """Probes of one pod: how many once it was ready, which of them failed, how long the slowest of all took."""

    times: int = 0
    failed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


@dataclass(frozen=True)
class Ended:
    """The end of a pod: after how many seconds of its grace period, with which status."""

    seconds: float
    status: int


class Node:
    """A machine that pods run on.

    Args:
        podman: its podman.
        folder: where emptyDirs are.
        images: other images for those of the manifests.

    Attributes:
        pods: those that are there.
        gone: those that were.
        sizes: volumes that are to be full after so many bytes, by their claim.
    """

    def __init__(self, podman: Podman, folder: Path, images: dict[str, str]) -> None:
        self.podman, self.folder, self.images = podman, folder, images
        self.network = PREFIX
        self.pods: list[Pod] = []
        self.gone: list[Pod] = []
        self.claims: set[str] = set()
        self.secrets: dict[str, dict[str, str]] = {}
        self.sizes: dict[str, str] = {}

    def play(self, *manifests: Manifest, service: str = "") -> None:
        """Let podman play these, under the name of a Service."""
        network = f"--network={self.network}" + (f":alias={service}" if service else "")
        self.podman.call("kube", "play", network, "-", given=yaml.safe_dump_all(manifests))
        self.keep_bridge(self.network)

    def secret(self, name: str, **values: str) -> None:
        """Make a Secret, or another one in its place."""
        self.secrets[name] = values
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        if ours(name) in self.podman.call("secret", "ls", "--format={{.Name}}").split():
            self.podman.call("secret", "rm", ours(name))
        self.podman.call("secret", "create", ours(name), "-", given=json.dumps(encoded))

    def claim(self, claim: Manifest) -> None:
        """Make a volume, unless it is there."""
        name = claim["metadata"]["name"]
        if name in self.claims:
            return
        self.play(claim)
        self.claims.add(name)
        root = Path(self.podman.call("volume", "inspect", "--format={{.Mountpoint}}", name).strip())
        if claim["metadata"]["annotations"]["volume.podman.io/gid"] != "0":
            root.chmod(0o2775)

    def forget(self, claim: str) -> None:
        """Remove a volume, so that its claim makes another one."""
        self.podman.call("volume", "rm", ours(claim))
        self.claims.discard(ours(claim))

    def keep_bridge(self, network: str) -> None:
        """Fix the address of a network's bridge: it would change as pods come and go, and DNS fail for seconds."""
        name = json.loads(self.podman.call("network", "inspect", network))[0]["network_interface"]
        bridge = Path("/sys/class/net", name)
        if bridge.exists() and (bridge / "addr_assign_type").read_text(encoding="utf-8").strip() != SET_BY_HAND:
            address = (bridge / "address").read_text(encoding="utf-8").strip()
            subprocess.run(["ip", "link", "set", "dev", name, "address", address], check=True)

    def clean(self) -> None:
        """Remove all pods and their folders."""
        for pod in list(self.pods):
            pod.remove()


class Pod:
    """One pod of a workload. It starts when it is made.

    Args:
        node: where it runs.
        workload: Deployment, StatefulSet or Job.
        name: its name; the container's is known to podman by it.
        manifests: those that the workload refers to.
        service: the Service in front of it.
    """

    def __init__(self, node: Node, workload: Manifest, name: str, manifests: list[Manifest], service: str = "") -> None:
        self.name, self._node, self._podman = name, node, node.podman
        self._spec = pod_of(workload)
        self._container: Manifest = self._spec["containers"][0]
        self._folder = node.folder / name
        self.asked = Asked()
        self._gone = threading.Event()
        self._prober: threading.Thread | None = None
        node.pods.append(self)
        for claim in claims_of(workload, name, manifests, node.sizes):
            node.claim(claim)
        folders = {volume: str(self._empty_dir(volume, size)) for volume, size in empty_dirs(workload).items()}
        for volume, files in secret_files(workload, node.secrets).items():
            folders[volume] = str(self._secret(volume, files))
        config_maps = config_maps_of(workload, manifests)
        self.started = time.monotonic()
        node.play(*config_maps, played(workload, name, folders, node.images, node.secrets), service=service)
        rows = node.podman.asked("ps", "--all", f"--filter=label={POD_LABEL}={name}")
        row = next(each for each in rows if not each["IsInfra"])
        self.container = row["Names"][0]
        infra = node.podman.call("pod", "inspect", "--format={{.InfraContainerID}}", row["Pod"]).strip()
        networks = node.podman.inspected(infra)["NetworkSettings"]["Networks"]
        self.address: str = networks[node.network]["IPAddress"]

    def wait_ready(self) -> float:
        """Wait for the startup probe, or without one the readiness probe. Returns the seconds; then probes go on.

        Raises:
            PodFailed: it ended, or took longer than the probe allows.
        """
        probe = self._container.get("startupProbe") or self._container["readinessProbe"]
        patience_s = probe["periodSeconds"] * probe["failureThreshold"]
        if "startupProbe" not in self._container:
            patience_s = 60
        while (seconds := time.monotonic() - self.started) < patience_s:
            if self.ask(probe):
                self._prober = threading.Thread(target=self._probe, daemon=True)
                self._prober.start()
                return seconds
            if not self.running:
                break
            time.sleep(ASK_EVERY_S)
        raise PodFailed(f"{self.name} was not ready after {seconds:.0f} s; it says:\n{tail(self.log())}")

    def ask(self, probe: Manifest) -> bool:
        """True if a probe succeeds now, within its own time."""
        began, timeout_s = time.monotonic(), probe["timeoutSeconds"]
        try:
            if "exec" in probe:
                self._podman.call("exec", self.container, *probe["exec"]["command"], timeout_s=timeout_s)
                return True
            return self.get(probe["httpGet"]["path"], self.port(probe["httpGet"]["port"]), timeout_s) == 200
        except (PodmanFailed, subprocess.TimeoutExpired):
            return False
        finally:
            self.asked.slowest_s = max(self.asked.slowest_s, time.monotonic() - began)

    def get(self, path: str, port: int, timeout_s: float = 5.0) -> int:
        """The status of GET; 0 when nothing answers."""
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def port(self, name: str) -> int:
        """A port by its name in the manifest."""
        return int(next(each["containerPort"] for each in self._container["ports"] if each["name"] == name))

    @property
    def running(self) -> bool:
        """True while its container runs."""
        return bool(self._state()["Running"])

    @property
    def restarts(self) -> int:
        """Number of times that podman has started its container again."""
        return int(self._podman.inspected(self.container)["RestartCount"])

    def status(self) -> int:
        """The exit status of a container that has ended."""
        return int(self._state()["ExitCode"])

    def rights(self) -> dict[str, str]:
        """The user, group, capabilities and restriction of its first process, and how its root is mounted."""
        process = Path("/proc", str(self._state()["Pid"]))
        lines = (process / "status").read_text(encoding="utf-8").splitlines()
        status = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
        root = next(
            line.split() for line in (process / "mounts").read_text(encoding="utf-8").splitlines() if " / " in line
        )
        found = {name: status[name] for name in ("Uid", "Gid", "CapEff", "NoNewPrivs")}
        return {**found, "root": root[3].split(",")[0]}

    def rights_given(self) -> dict[str, str]:
        """Rights that the manifest gives: none but to be that user, on a read-only root."""
        user = self._spec["securityContext"]
        found = {"Uid": str(user["runAsUser"]), "Gid": str(user["runAsGroup"])}
        return {**found, "CapEff": "0" * 16, "NoNewPrivs": "1", "root": "ro"}

    def memory(self) -> tuple[int, int]:
        """Most bytes that it has used so far, files in memory included, and its limit."""
        given = self._container["resources"]["limits"]["memory"]
        lines = Path(f"/proc/{self._state()['Pid']}/cgroup").read_text(encoding="utf-8").splitlines()
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                root = Path("/sys/fs/cgroup", controllers)
                for name in ("memory.max_usage_in_bytes", "memory.peak", "memory.current"):
                    if (measured := Path(f"{root}{path}") / name).exists():
                        return int(measured.read_text(encoding="utf-8")), bytes_of(given)
        return 0, bytes_of(given)

    def log(self) -> str:
        """Everything it has written; `kubectl logs`."""
        return self._podman.output(self.container)

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        """Run a program inside; `kubectl exec`."""
        return self._podman.call("exec", self.container, *words, timeout_s=timeout_s)

    def check_health(self) -> None:
        """Run the HEALTHCHECK of its image inside. Raises PodmanFailed."""
        image = self._podman.inspected(self.container)["ImageName"]
        (found,) = json.loads(self._podman.call("image", "inspect", image))
        self.run(*found["Healthcheck"]["Test"][1:])

    def wait_ended(self, timeout_s: float) -> int:
        """Wait until its container ends by itself. Returns its status; raises PodFailed when it does not end."""
        if not until(lambda: not self.running, timeout_s):
            raise PodFailed(f"{self.name} did not end within {timeout_s:.0f} s; it says:\n{tail(self.log())}")
        return self.status()

    def kill(self) -> None:
        """SIGKILL its first process, as the kernel does when memory runs out. podman starts it again."""
        os.kill(self._state()["Pid"], signal.SIGKILL)

    def terminate(self) -> Ended:
        """End it as the kubelet does: the preStop hook, SIGTERM, SIGKILL when the grace period is over."""
        self._stop_probing()
        started = time.monotonic()
        grace_s = self._spec.get("terminationGracePeriodSeconds", 30)
        slept_s = self._container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        time.sleep(slept_s)
        # The container alone is stopped: with its pod, podman would take the network away first.
        self._podman.call("stop", f"--time={grace_s - slept_s}", self.container, timeout_s=grace_s + 30)
        ended = Ended(time.monotonic() - started, self.status())
        self.remove()
        return ended

    def remove(self) -> None:
        """Remove the pod and its emptyDirs; volumes stay."""
        self._stop_probing()
        if self in self._node.pods:
            self._node.pods.remove(self)
            self._node.gone.append(self)
            for pod in self._podman.call("pod", "ps", "--quiet", f"--filter=label={POD_LABEL}={self.name}").split():
                self._podman.remove_pod(pod)
            remove_folder(self._folder)

    def _state(self) -> Manifest:
        state: Manifest = self._podman.inspected(self.container)["State"]
        return state

    def _empty_dir(self, volume: str, size: int) -> Path:
        """As the kubelet makes it: for everybody, and where there is an fsGroup, of that group."""
        folder = self._folder / volume
        folder.mkdir(parents=True)
        if size:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
        os.chown(folder, 0, self._spec["securityContext"].get("fsGroup", 0))
        folder.chmod(0o2777)
        return folder

    def _secret(self, volume: str, files: dict[str, str]) -> Path:
        folder = self._folder / volume
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        return folder

    def _probe(self) -> None:
        """Ask readiness and liveness as often as they say, until the pod goes."""
        probes = {
            name: self._container[name] for name in ("readinessProbe", "livenessProbe") if name in self._container
        }
        due = dict.fromkeys(probes, 0.0)
        while not self._gone.wait(ASK_EVERY_S):
            for name, probe in probes.items():
                if (now := time.monotonic()) >= due[name] and not self._gone.is_set():
                    due[name] = now + probe["periodSeconds"]
                    answered = self.ask(probe)
                    self.asked.times += 1
                    if not answered and not self._gone.is_set():
                        self.asked.failed.append(name)

    def _stop_probing(self) -> None:
        self._gone.set()
        if self._prober is not None:
            self._prober.join()


def until(found: Callable[[], T], timeout_s: float) -> T:
    """Ask until the answer is true, or the time is over. Returns the last answer."""
    deadline = time.monotonic() + timeout_s
    while not (answer := found()) and time.monotonic() < deadline:
        time.sleep(ASK_EVERY_S)
    return answer


def tail(text: str, lines: int = 8) -> str:
    """The last lines, a little to the right."""
    return "\n".join(f"    {line[:300]}" for line in text.strip().splitlines()[-lines:]) or "    nothing"
