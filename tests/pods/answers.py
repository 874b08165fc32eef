"""Steps with the real model: it starts, answers as it does outside of a container, and stops in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamfleet.cli.demo.model import model_folder
from streamfleet.cli.demo.server import with_parent
from streamfleet.producer import SyncClient
from tests.integration.k8s_chart import charted, examples
from tests.integration.k8s_manifests import Manifest, environment_of, of_kind, only, pod_of
from tests.pods.deployment import Deployment
from tests.pods.pod import Pod, tail
from tests.pods.stage import MODEL_INSIDE, PASSWORD, WORKER, Act, Stage, check, check_writes, first_event
from tests.support.redis_server import free_port

ANSWER_S, OUTSIDE_S = 120.0, 180.0
LONG_TOKENS, LONG_REQUESTS = 1900, 4
FRANCE = {"messages": [{"role": "user", "content": "What is the capital of France? Answer in one word."}]}
SEA = {"messages": [{"role": "user", "content": "Write three sentences about the sea."}]}
BODIES: tuple[dict[str, Any], ...] = (
    {**FRANCE, "max_tokens": 24, "temperature": 0},
    {**SEA, "max_tokens": 48, "temperature": 0},
    {**SEA, "max_tokens": 48, "temperature": 0.9, "seed": 7},
    {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 1.1, "top_p": 0.9, "seed": 11},
)
"""Greedy ones, and ones with a seed."""


class RealModel:
    """A worker with vLLM on CPU, by the example dev-cpu, and its model out of this machine's cache.

    Args:
        stage: where.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._manifests = with_model(model_folder())
        self._worker = Deployment(stage.node, self._manifests, WORKER)
        self._answers: list[str] = []

    def starts(self) -> str:
        """It is ready within the startup probe's time, writes where it may, and its log begins with what it is."""
        (ready_s,) = self._worker.scale(1)
        log = self._pod.log()
        check(first_event(self._pod) == "engine_chosen", f"its log begins with {log[:200]}")
        check_writes(self._pod)
        check("Found duplicate keys" not in log, "vLLM is given an argument twice")
        probe = pod_of(only(self._manifests, "Deployment", WORKER))["containers"][0]["startupProbe"]
        allowed_s = probe["periodSeconds"] * probe["failureThreshold"]
        check(self._pod.asked.slowest_s < probe["timeoutSeconds"], f"a probe took {self._pod.asked.slowest_s:.1f} s")
        used, limit = self._pod.memory()
        return (
            f"ready after {ready_s:.0f} s of {allowed_s}; "
            f"probes meanwhile took {self._pod.asked.slowest_s:.2f} s at most; {used >> 20} of {limit >> 20} MiB"
        )

    def first_request(self) -> str:
        """The pod of `helm test` ends well: a client's container, the Secret's URL, the answer as its log."""
        (hook,) = of_kind(self._manifests, "Pod")
        pod = Pod(self._stage.node, {"kind": "Job", "spec": {"template": hook}}, "streamfleet-first-request", [])
        status = pod.wait_ended(ANSWER_S)
        log = pod.log().strip()
        pod.remove()
        check(status == 0 and log, f"status {status}: {log}")
        self._stage.acts.append(Act("chart", "first-request", 1, 1, 0))
        return f"its log: {log!r}"

    def answers(self) -> str:
        """Answers of it, kept to be compared."""
        self._answers = asked(self._address, "default")
        return f"{len(self._answers)} answers, greedy and seeded, for example {self._answers[0]!r}"

    def stops(self) -> str:
        """Told to stop while it writes long answers, it ends by itself within the grace period; others do the rest."""
        for number in range(LONG_REQUESTS):
            self._stage.fleet(
                "enqueue", "--prompt=Tell a long story", f"--max-tokens={LONG_TOKENS}", f"--id=long-{number}"
            )
        time.sleep(1)
        grace_s = pod_of(only(self._manifests, "Deployment", WORKER))["terminationGracePeriodSeconds"]
        (ended,) = self._worker.terminate()
        check(ended.status == 0, f"it ended with {ended.status} after {ended.seconds:.0f} s of {grace_s}")
        return f"ended with 0 after {ended.seconds:.1f} s of {grace_s}, in the middle of {LONG_REQUESTS} long answers"

    def same_outside(self) -> str:
        """The same questions to a worker on this machine, without a container: letter for letter the same."""
        settings = environment_of(pod_of(only(self._manifests, "Deployment", WORKER))["containers"][0], self._manifests)
        with outside(self._address, settings):
            outside_answers = asked(self._address, "outside")
        for inside, there in zip(self._answers, outside_answers, strict=True):
            check(inside == there, f"inside {inside!r}, outside {there!r}")
        return f"{len(self._answers)} answers of this machine's own vLLM are the same"

    @property
    def _pod(self) -> Pod:
        return self._worker.pods[0]

    @property
    def _address(self) -> str:
        assert self._stage.redis is not None
        return f"redis://:{PASSWORD}@{self._stage.redis.address}:6379/0"


def long_answers(fleet: str, cli: Callable[..., str]) -> Act:
    """Wait for the answers in whose middle a worker had to stop.

    Args:
        fleet: its name.
        cli: runs a command of streamfleet there.
    """
    command = ("--wait", f"--timeout={ANSWER_S}", "--json")
    found = [json.loads(cli("result", f"long-{number}", *command)) for number in range(LONG_REQUESTS)]
    return Act(fleet, "drain", LONG_REQUESTS, len(found), sum(each["attempt"] > 1 for each in found))


def with_model(folder: Path) -> list[Manifest]:
    """The chart by dev-cpu, with a model of this machine in its worker, read-only."""
    volume = {"name": "model", "hostPath": {"path": str(folder), "type": "Directory"}}
    mount = {"name": "model", "mountPath": MODEL_INSIDE, "readOnly": True}
    worker = {"model": MODEL_INSIDE, "volumes": [volume], "volumeMounts": [mount]}
    return charted(examples()["dev-cpu"], values={"worker": worker})


def asked(url: str, queue: str) -> list[str]:
    """The texts of all answers, one at a time: what runs beside a request may change its last digits."""
    with SyncClient(url, queue) as fleet:
        return [str(fleet.enqueue(body).result(ANSWER_S).text) for body in BODIES]


@contextmanager
def outside(url: str, settings: dict[str, str]) -> Iterator[None]:
    """A worker on this machine with a pod's settings, in a queue of its own."""
    given = {**settings, "STREAMFLEET_MODEL": str(model_folder()), "STREAMFLEET_QUEUE": "outside", "REDIS_URL": url}
    given |= {"STREAMFLEET_HEALTH_HOST": "127.0.0.1", "STREAMFLEET_HEALTH_PORT": str(free_port())}
    given.pop("HF_HOME", None)
    command = with_parent([sys.executable, "-m", "streamfleet.cli", "worker"])
    process = subprocess.Popen(
        command, env=os.environ | given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    check(process.returncode == 0, f"the worker outside ended with {process.returncode}:\n{tail(errors)}")
