"""Steps with compose.yaml, which podman-compose plays as a project of its own, without ports on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from tests.integration.k8s_manifests import ROOT
from tests.pods.answers import LONG_REQUESTS, long_answers
from tests.pods.podman import PREFIX
from tests.pods.rolling import LOAD_S
from tests.pods.stage import PRODUCER, Act, Load, Stage, check

PROJECT = f"{PREFIX}-compose"
URL = "redis://:word@redis:6379/0"
# The stand-in for the official image has no folder /data, so that the volume is root's.
OTHERWISE = """
services:
  redis: {{image: {redis}, ports: !reset null, user: "{user}"}}
  gateway: {{ports: !reset null}}
  worker: {{image: {worker}, environment: {{STREAMFLEET_ENGINE: simulated, STREAMFLEET_MODEL: simulated}}}}
"""
# The simulated engine needs 55 s for it, and workers go on for 25 s at most when they have to stop.
LONG = '{"prompt": "Tell a long story", "max_tokens": 1900, "ignore_eos": true}'
WORKERS = (f"{PROJECT}_worker_1", f"{PROJECT}_worker_2")


class Composed:
    """The fleet of one host with two workers, which have the simulated engine.

    Args:
        stage: has the images.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._podman = stage, stage.podman

    def starts(self) -> str:
        """All of it starts, and the first request is answered."""
        redis = self._stage.redis_image
        user = "0:0" if "debian" in redis else "999:999"
        otherwise = self._stage.folder / "compose.yaml"
        otherwise.write_text(
            OTHERWISE.format(redis=redis, user=user, worker=self._stage.image("worker")), encoding="utf-8"
        )
        self._compose("up", "--detach", "--no-build", "redis")
        self._stage.node.keep_bridge(f"{PROJECT}_default")
        self._compose("up", "--detach", "--no-build")
        answer = self._fleet("enqueue", "Say hi", "--wait", "--timeout=60")
        check("[simulated]" in answer, f"the first request: {answer}")
        self._stage.acts.append(Act("compose.yaml", "first-request", 1, 1, 0))
        for worker in WORKERS:
            self._stage.wait_said(worker, "worker_ready")
        return f"{answer.strip()[:40]} …"

    def sigkill(self) -> str:
        """A worker is killed under load: the other has its requests, each has one result."""
        load = self._load("kill")
        time.sleep(LOAD_S)
        self._podman.call("kill", "--signal=KILL", WORKERS[0])
        time.sleep(LOAD_S)
        results = self._audited(load)
        again = sum(each["attempt"] > 1 for each in results)
        check(again, "the worker that was killed ran nothing")
        self._compose("up", "--detach", "--no-build")
        return f"{len(results)} requests, one result each; {again} were taken from the one that was killed"

    def rolling_update(self) -> str:
        """Under load one worker after the other makes room for a new one, as for another image: each ends by itself."""
        load = self._load("rolling-update")
        time.sleep(LOAD_S)
        for worker in WORKERS:
            self._podman.call("stop", worker)
            self._check_ended(worker)
            self._podman.call("rm", worker)
            self._compose("up", "--detach", "--no-build")
            self._stage.wait_said(worker, "worker_ready")
        time.sleep(LOAD_S)
        results = self._audited(load)
        by, came = {each["worker"] for each in results}, [self._podman.inspected(each)["Id"][:12] for each in WORKERS]
        check(any(each.startswith(name) for each in by for name in came), f"no new one answered: {by}")
        return f"{len(results)} requests, one result each, by {len(by)} workers"

    def none_and_back(self) -> str:
        """All workers stop under load, and start again: what waits meanwhile is answered, each has one result."""
        load = self._load("scale-to-0-and-back")
        time.sleep(LOAD_S)
        self._compose("stop", "worker")
        self._check_ended(*WORKERS)
        time.sleep(LOAD_S)
        self._compose("up", "--detach", "--no-build")
        results = self._audited(load)
        return f"{len(results)} requests, one result each"

    def drained(self) -> str:
        """Workers hand long answers back when they stop, and give them when they start again; then all of it ends."""
        asked = [f"streamfleet enqueue --body='{LONG}' --id=long-{number} &" for number in range(LONG_REQUESTS)]
        self._compose("exec", "-T", "gateway", "sh", "-c", "\n".join([*asked, "wait"]))
        time.sleep(1)
        began = time.monotonic()
        self._compose("stop", "worker")
        took_s = time.monotonic() - began
        # It fails where the answer is there already.
        self._compose("exec", "-T", "gateway", "sh", "-c", "! streamfleet result long-0")
        self._check_ended(*WORKERS)
        self._compose("up", "--detach", "--no-build")
        self._stage.acts.append(long_answers("compose.yaml", self._fleet))
        self._compose("stop", "gateway", "worker", "exporter")
        self._check_ended(*WORKERS)
        self._compose("down", "--volumes")
        return f"ended after {took_s:.1f} s in the middle of {LONG_REQUESTS} long answers, which were given later"

    def _fleet(self, *words: str) -> str:
        return self._compose("exec", "-T", "gateway", "streamfleet", *words)

    def _check_ended(self, *workers: str) -> None:
        ends = {each: self._podman.inspected(each)["State"]["ExitCode"] for each in workers}
        check(set(ends.values()) == {0}, f"workers ended with {ends}")

    def _audited(self, load: Load) -> list[dict[str, Any]]:
        results = load.results()
        self._fleet("audit")
        return results

    def _load(self, act: str, max_tokens: int = 100) -> Load:
        options = [f"--name={PROJECT}-load", "--rm", "--pull=never", f"--network={PROJECT}_default", "--interactive"]
        options += [f"--env=REDIS_URL={URL}", f"--volume={PRODUCER}:/producer.py:ro", "--entrypoint=python3"]
        command = ["run", *options, self._stage.image("client"), "/producer.py", act, str(max_tokens)]
        return Load(self._podman.started(*command), "compose.yaml", act, self._stage.acts)

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
