"""A step with compose.yaml, which podman-compose plays as a project of its own, without ports on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.integration.k8s_manifests import ROOT
from tests.pods.podman import PREFIX
from tests.pods.rolling import LOAD_S
from tests.pods.stage import PRODUCER, Load, Stage, check

PROJECT = f"{PREFIX}-compose"
URL = "redis://:word@redis:6379/0"
# The stand-in for the official image has no folder /data, so that the volume is root's.
OTHERWISE = """
services:
  redis: {{image: {redis}, ports: !reset null, user: "{user}"}}
  gateway: {{ports: !reset null}}
  worker: {{image: {worker}, environment: {{STREAMFLEET_ENGINE: simulated, STREAMFLEET_MODEL: simulated}}}}
"""
WORKERS = (f"{PROJECT}_worker_1", f"{PROJECT}_worker_2")


class Composed:
    """The fleet of one host with two workers, which have the simulated engine.

    Args:
        stage: has the images.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._podman = stage, stage.podman

    def lives(self) -> str:
        """First request; SIGKILL of a worker under load; all answered; the end of all is in order."""
        redis = self._stage.redis_image
        user = "0:0" if "debian" in redis else "999:999"
        otherwise = self._stage.folder / "compose.yaml"
        otherwise.write_text(
            OTHERWISE.format(redis=redis, user=user, worker=self._stage.image("worker")), encoding="utf-8"
        )
        self._compose("up", "--detach", "--no-build", "redis")
        self._stage.node.keep_bridge(f"{PROJECT}_default")
        self._compose("up", "--detach", "--no-build")
        answer = self._compose("exec", "-T", "gateway", "streamfleet", "enqueue", "Say hi", "--wait", "--timeout=60")
        check("[simulated]" in answer, f"the first request: {answer}")
        for worker in WORKERS:
            self._stage.wait_said(worker, "worker_ready")
        load = self._load()
        time.sleep(LOAD_S)
        self._podman.call("kill", "--signal=KILL", WORKERS[0])
        time.sleep(LOAD_S)
        results = load.results()
        again = sum(each["attempt"] > 1 for each in results)
        check(again, "the worker that was killed ran nothing")
        self._compose("up", "--detach", "--no-build")
        self._compose("exec", "-T", "gateway", "streamfleet", "audit")
        self._compose("stop", "gateway", "worker", "exporter")
        ends = {each: self._podman.inspected(each)["State"]["ExitCode"] for each in WORKERS}
        check(set(ends.values()) == {0}, f"workers ended with {ends}")
        self._compose("down", "--volumes")
        return f"first request, {len(results)} requests over a SIGKILL of a worker, {again} of them again; drained"

    def _load(self) -> Load:
        options = [f"--name={PROJECT}-load", "--rm", "--pull=never", f"--network={PROJECT}_default", "--interactive"]
        options += [f"--env=REDIS_URL={URL}", f"--volume={PRODUCER}:/producer.py:ro", "--entrypoint=python3"]
        command = ["run", *options, self._stage.image("client"), "/producer.py", "compose", "100"]
        return Load(self._podman.started(*command))

    def _compose(self, *words: str) -> str:
        """What a command of podman-compose prints; subprocess.CalledProcessError where it fails."""
        files = ["-f", "compose.yaml", "-f", str(self._stage.folder / "compose.yaml")]
        project = ["--in-pod=false", f"--project-name={PROJECT}", f"--env-file={os.devnull}"]
        done = subprocess.run(
            [sys.executable, "-m", "podman_compose", *files, *project, *words],
            cwd=ROOT,
            env=self._podman.environment | {"CPU_WORKERS": "2", "REDIS_PASSWORD": "word"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        check(done.returncode == 0, f"podman-compose {words[0]}: {done.stderr[-600:]}")
        return done.stdout
