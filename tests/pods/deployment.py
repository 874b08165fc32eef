"""A Deployment: as many pods as it says, and a rolling update that brings a new one before an old one goes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.integration.k8s_manifests import Manifest, name_of, of_kind
from tests.pods.pod import Ended, Node, Pod


class Deployment:
    """Pods of one Deployment.

    Args:
        node: where they run.
        manifests: with the Deployment, and what it refers to.
        name: its name.
    """

    def __init__(self, node: Node, manifests: list[Manifest], name: str) -> None:
        self._node, self._name, self._count = node, name, 0
        self._manifests = manifests
        self.pods: list[Pod] = []

    def scale(self, replicas: int) -> list[float]:
        """Start pods until there are so many. Returns after how many seconds each was ready."""
        new = [self._start() for _ in range(replicas - len(self.pods))]
        self.pods += new
        return [pod.wait_ready() for pod in new]

    def rollout(self, manifests: list[Manifest]) -> list[Ended]:
        """Replace all pods by ones of other manifests: one more at a time (maxSurge), none less (maxUnavailable)."""
        self._manifests = manifests
        old, self.pods = self.pods, []
        with ThreadPoolExecutor(max_workers=len(old)) as ending:
            ends = []
            for leaving in old:
                self.scale(len(self.pods) + 1)
                ends.append(ending.submit(leaving.terminate))
            return [end.result() for end in ends]

    def terminate(self) -> list[Ended]:
        """End all pods."""
        leaving, self.pods = self.pods, []
        with ThreadPoolExecutor(max_workers=len(leaving)) as ending:
            return list(ending.map(Pod.terminate, leaving))

    def _start(self) -> Pod:
        self._count += 1
        workload = next(each for each in of_kind(self._manifests, "Deployment") if name_of(each) == self._name)
        return Pod(self._node, workload, f"{self._name}-{self._count}", self._manifests, self._name)
