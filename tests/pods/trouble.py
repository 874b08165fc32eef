"""Steps that go wrong: each ends in a status or a line that says what it is."""

from __future__ import annotations

import json
import time
from collections import Counter

from tests.integration.k8s_chart import charted, examples
from tests.pods.callers import Callers
from tests.pods.podman import PodmanFailed
from tests.pods.stage import EXPORTER, GATEWAY, REDIS, URL, WORKER, Stage, check, said

REFUSES = "refuses the user or password"
MISSING = "/cache/huggingface/no-such-model"
FULL = "No space left on device"
SETTLED_S, MOST_TIMES = 6.0, 2
FILES_SIZE, REDIS_SIZE, PROMPT = "1m", "1m", "x" * 100_000


class Trouble:
    """Pods with a wrong Secret, without a model, on full volumes.

    Args:
        stage: where.
        callers: of the gateways.
    """

    def __init__(self, stage: Stage, callers: Callers) -> None:
        self._stage, self._callers = stage, callers

    def wrong_secret(self) -> str:
        """The worker ends with 2; gateway and exporter are not ready. Each says why, and not over and over."""
        stage, wrong = self._stage, URL.replace("not-a-secret", "wrong")
        stage.node.secret(REDIS, password="", url=wrong)
        stage.node.secret(f"{GATEWAY}-redis", url=wrong)
        try:
            worker = stage.failing(stage.dev_cpu, WORKER, 1)
            status = worker.wait_ended(60)
            check(status == 2, f"the worker ended with {status}")
            said(worker, REFUSES)
            exporter = stage.failing(stage.dev_cpu, EXPORTER, 1)
            gateway = stage.failing(stage.gateway, GATEWAY, 1)
            said(gateway, REFUSES)
            said(exporter, "exporter_ready")
            check(exporter.get("/readyz", exporter.port("metrics"), 8) == 503, "the exporter is ready")
            said(exporter, REFUSES)
            check(gateway.get("/readyz", gateway.port("health")) == 503, "the gateway is ready")
            time.sleep(SETTLED_S)
            said_by = Counter(json.loads(line)["event"] for line in gateway.log().splitlines() if REFUSES in line)
            ((event, times),) = said_by.most_common(1)
            check(times <= MOST_TIMES, f"the gateway says {event} {times} times in a few seconds")
            for pod in (worker, exporter, gateway):
                pod.remove()
        finally:
            stage.node.secret(REDIS, password="not-a-secret", url=URL)
            stage.node.secret(f"{GATEWAY}-redis", url=URL)
        return f"worker: status 2; the others: not ready; all say '{REFUSES}', the gateway {said_by.total()} times"

    def missing_model(self) -> str:
        """The worker ends with 3, and names the path."""
        manifests = charted(examples()["dev-cpu"], values={"worker": {"model": MISSING}})
        pod = self._stage.failing(manifests, WORKER, 2)
        status = pod.wait_ended(120)
        line = said(pod, "engine_did_not_start")
        pod.remove()
        check(status == 3, f"it ended with {status}")
        check(f"STREAMFLEET_MODEL: {MISSING} is not there" in line, line[:400])
        return f"status 3, and 'STREAMFLEET_MODEL: {MISSING} is not there'"

    def full_files(self) -> str:
        """Uploads to a full volume are refused with 503, and the log says why; the gateway stays ready."""
        stage = self._stage
        ends = stage.gateways.terminate()
        check(all(end.status == 0 for end in ends), f"gateways that were told to stop ended with {ends}")
        claim = f"{GATEWAY}-files"
        stage.node.forget(claim)
        stage.node.sizes[claim] = FILES_SIZE
        stage.gateways.scale(1)
        pod = stage.gateways.pods[0]
        with self._callers.http(pod) as client:
            answer = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b" " * 3_000_000)})
        check(answer.status_code == 503, f"{answer.status_code} {answer.text}")
        line = said(pod, "file_store_failed")
        check(FULL in line, line)
        check(pod.get("/readyz", pod.port("health")) == 200, "the gateway is not ready any more")
        return f"the gateway answers 503, logs file_store_failed: {FULL}, and is ready"

    def full_redis(self) -> str:
        """Enqueueing on a Redis whose volume is full is refused, with Redis's own reason."""
        stage = self._stage
        assert stage.redis is not None
        stage.workers.terminate()
        stage.redis.terminate()
        stage.node.sizes[f"data-{REDIS}-1"] = REDIS_SIZE
        stage.start_redis(another_volume=True)
        refused = ""
        for number in range(30):
            try:
                stage.container("enqueue", f"--id=full-{number}", "--prompt", PROMPT)
            except PodmanFailed as error:
                refused = str(error).splitlines()[-1]
                break
        check(FULL in refused, f"the volume is full, and enqueueing says: {refused or 'nothing'}")
        worker = stage.failing(stage.dev_cpu, WORKER, 3)
        said(worker, FULL)
        check(worker.get("/readyz", worker.port("health")) == 503, "a worker is ready")
        return f"the worker logs it, and enqueue says: {refused.partition('streamfleet: ')[2]}"
