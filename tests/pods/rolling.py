"""Steps with the simulated engine under load: two workers, a rollout, SIGKILL, none and two again, Redis restarted."""

from __future__ import annotations

import time

from tests.integration.k8s_chart import charted, examples, merged
from tests.integration.k8s_manifests import Manifest, only, pod_of
from tests.pods.answers import LONG_REQUESTS, long_answers
from tests.pods.converting import ours
from tests.pods.pod import until
from tests.pods.stage import SIMULATED, WORKER, Stage, check

LOAD_S = 4.0
BEGUN_S = 60.0


class Rolling:
    """Workers by the example dev-cpu with the simulated engine.

    Args:
        stage: where.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def redis_and_exporter(self) -> str:
        """Redis has a volume of its group, the exporter shows its metrics."""
        ready_s = self._stage.start_redis()
        (exporter_s,) = self._stage.exporter.scale(1)
        pod = self._stage.exporter.pods[0]
        check(pod.get("/metrics", pod.port("metrics")) == 200, "the exporter shows no metrics")
        return f"ready after {ready_s:.1f} s; the exporter after {exporter_s:.1f} s"

    def two_workers(self) -> str:
        """Both take work, and the image's own HEALTHCHECK, which Kubernetes passes over, agrees that they are well."""
        seconds = self._stage.workers.scale(2)
        load = self._stage.load("two-workers")
        time.sleep(LOAD_S)
        results = load.results()
        by = {each["worker"] for each in results}
        check(len(by) == 2, f"only {by} answered")
        self._stage.workers.pods[0].check_health()
        return f"ready after {max(seconds):.1f} s, both answered: {len(results)} requests"

    def handed_back(self) -> str:
        """Long answers that the real model's worker handed back when it stopped were given by others."""
        self._stage.acts.append(long_answers("chart", self._stage.fleet))
        return f"{LONG_REQUESTS} answers, each given once"

    def rollout(self) -> str:
        """New before old, under load: each request has one result, and no old worker is killed."""
        other = {"worker": {"settings": {"STREAMFLEET_WATCHDOG_S": "61"}}}
        changed = charted(examples()["dev-cpu"], values=merged(SIMULATED, other))
        load = self._stage.load("rolling-update")
        time.sleep(LOAD_S)
        ends = self._stage.workers.rollout(changed)
        results = load.results()
        self._stage.audited()
        grace_s = grace_of(changed)
        check(all(end.status == 0 for end in ends), f"old workers ended with {[end.status for end in ends]}")
        by = {each["worker"] for each in results}
        check(len(by) == 4, f"not both old and both new ones answered: {by}")
        slowest = max(end.seconds for end in ends)
        old = f"old ones ended after {slowest:.1f} s of {grace_s}"
        return f"{len(results)} requests, one result each, by {len(by)} workers; {old}"

    def sigkill(self) -> str:
        """A worker's container is killed under load, and started again; each request has one result."""
        victim = self._stage.workers.pods[0]
        load = self._stage.load("kill", max_tokens=300)
        time.sleep(LOAD_S)
        victim.kill()
        check(until(lambda: victim.restarts, 20), "podman did not start it again")
        check(until(lambda: victim.get("/readyz", victim.port("health")) == 200, BEGUN_S), "it was not ready again")
        results = load.results()
        self._stage.audited()
        again = [each for each in results if each["attempt"] > 1]
        check(again, "no request was tried again: the worker that was killed held none")
        return f"{len(results)} requests, one result each; {len(again)} were taken from the one that was killed"

    def none_and_back(self) -> str:
        """All workers go under load, and two others come: what waits meanwhile is theirs, each has one result."""
        load = self._stage.load("scale-to-0-and-back")
        time.sleep(LOAD_S)
        ends = self._stage.workers.terminate()
        check(all(end.status == 0 for end in ends), f"workers ended with {[end.status for end in ends]}")
        time.sleep(LOAD_S)
        seconds = self._stage.workers.scale(2)
        results = load.results()
        self._stage.audited()
        by, came = {each["worker"] for each in results}, [ours(pod.name) for pod in self._stage.workers.pods]
        check(any(each.startswith(name) for each in by for name in came), f"none of those that came answered: {by}")
        return f"{len(results)} requests, one result each; two were ready again after {max(seconds):.1f} s"

    def redis_restarted(self) -> str:
        """Redis's pod goes and comes back with its volume, under load: nothing is lost, earlier results are there."""
        assert self._stage.redis is not None
        load = self._stage.load("redis-restarted")
        time.sleep(LOAD_S)
        ended = self._stage.redis.terminate()
        check(ended.status == 0, f"Redis ended with {ended.status}")
        ready_s = self._stage.start_redis()
        time.sleep(LOAD_S)
        results = load.results()
        self._stage.audited()
        self._stage.fleet("result", "rolling-update-0")
        return f"ready again after {ready_s:.1f} s; {len(results)} requests, one result each, and those of before"


def grace_of(manifests: list[Manifest]) -> int:
    """The grace period of a worker's pod."""
    grace: int = pod_of(only(manifests, "Deployment", WORKER))["terminationGracePeriodSeconds"]
    return grace
