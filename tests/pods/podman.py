"""podman's command line, and the removal of all that a run has made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PREFIX = "streamfleet-check"
"""First part of the names of pods, volumes, secrets, networks and folders of a run; nothing else is ever removed."""
CALL_S = 120.0
REMOVE_TRIES, REMOVE_AGAIN_S = 10, 0.5
# Without systemd, podman has no timer for an image's HEALTHCHECK, which Kubernetes passes over anyway.
_NOISE = re.compile(r'^time="|^failed to connect to syslog|systemd connection')


class PodmanFailed(Exception):
    """A call failed; the message is what podman says."""


class Podman:
    """Calls podman.

    Args:
        variables: those with which containers run on this machine.

    Attributes:
        environment: all variables of its calls.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        self.environment = os.environ | variables

    def call(self, *words: str, given: str = "", timeout_s: float = CALL_S) -> str:
        """Returns what a call prints. Raises PodmanFailed."""
        done = subprocess.run(
            ["podman", *words],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
        )
        if done.returncode:
            raise PodmanFailed(f"podman {' '.join(words[:3])}: {_without_noise(done.stderr) or done.returncode}")
        return done.stdout

    def started(self, *words: str) -> subprocess.Popen[str]:
        """A call that goes on, with pipes."""
        pipe = subprocess.PIPE
        command = ["podman", *words]
        return subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def asked(self, *words: str) -> Any:
        """A call's output, decoded from JSON."""
        return json.loads(self.call(*words, "--format", "json") or "null")

    def inspected(self, container: str) -> dict[str, Any]:
        """All that podman knows of a container."""
        found: dict[str, Any] = json.loads(self.call("container", "inspect", container))[0]
        return found

    def output(self, container: str) -> str:
        """A container's output, both streams in their order."""
        done = subprocess.run(
            ["podman", "logs", container],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return _without_noise(done.stdout)

    def left(self) -> list[str]:
        """Names of what runs have made, and what is still there."""
        rows = [
            *self._names("pod", "ps", "--format={{.Name}}"),
            *self._names("ps", "--all", "--format={{.Names}}"),
            *self._names("volume", "ls", "--format={{.Name}}"),
            *self._names("secret", "ls", "--format={{.Name}}"),
            *self._names("network", "ls", "--format={{.Name}}"),
        ]
        return [*rows, *map(str, folders())]

    def remove_all(self) -> None:
        """Remove what this run, or one that was killed, has made."""
        for pod in self._names("pod", "ps", "--format={{.Name}}"):
            self.remove_pod(pod)
        for container in self._names("ps", "--all", "--format={{.Names}}"):
            # Of compose.yaml, some need others, which are removed with them.
            self.call("rm", "--force", "--ignore", "--depend", "--time=0", container)
        for kind in ("volume", "secret", "network"):
            for name in self._names(kind, "ls", "--format={{.Name}}"):
                self.call(kind, "rm", name)
        for folder in folders():
            remove_folder(folder)

    def remove_pod(self, pod: str) -> None:
        """Remove a pod, also one whose container podman starts again at this very moment."""
        for left in reversed(range(REMOVE_TRIES)):
            try:
                self.call("pod", "rm", "--force", "--time=0", pod)
            except PodmanFailed:
                if not left:
                    raise
                time.sleep(REMOVE_AGAIN_S)
            else:
                return

    def _names(self, *words: str) -> list[str]:
        return [name for name in self.call(*words).split() if name.startswith(PREFIX)]


def folders() -> list[Path]:
    """Temporary folders of runs."""
    return list(Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"))


def remove_folder(folder: Path) -> None:
    """Remove a folder with what is mounted in it."""
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    for mounted in [line.split()[1] for line in mounts]:
        if Path(mounted).is_relative_to(folder):
            subprocess.run(["umount", mounted], check=True)
    shutil.rmtree(folder, ignore_errors=True)


def _without_noise(text: str) -> str:
    return "\n".join(line for line in text.strip().splitlines() if not _NOISE.search(line))
