"""Round after round of failovers and changed passwords, each compared by itself and added up by kind."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ha.clusters import ClusterDeployment, slot_of
from tests.ha.failover import Failover, fail_over
from tests.ha.fleet import QUEUE, Scene, users_on, workers_on
from tests.ha.judge import Verdict
from tests.ha.migration import migrate
from tests.ha.nodes import tell
from tests.ha.passwords import Changes, change_passwords
from tests.ha.sentinels import DOWN_AFTER_MS, SentinelDeployment
from tests.passwords import Passwords
from tests.waiting import eventually

HALF_S = 1.0
PAUSE_MS = 5_000
NEVER_MS = 600_000


@dataclass
class Tally:
    """Sums by kind of round.

    Attributes:
        failed: rounds that lost what must not be lost, in words.
    """

    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    gaps: dict[str, list[float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, kind: str, scene: Scene, gap_s: float, said: str, *, may_lose: bool) -> None:
        """A round that has ended."""
        verdict = scene.verdict
        assert verdict is not None
        self.verdicts.setdefault(kind, []).append(verdict)
        self.gaps.setdefault(kind, []).append(gap_s)
        print(f"{kind}: {said} {scene.line()}", flush=True)
        wrong = verdict.books or verdict.notified_twice or verdict.mistold
        if wrong or (verdict.lost and not may_lose):
            self.failed.append(f"{kind}: {scene.line()}")

    def add_changes(self, scene: Scene, changes: Changes) -> None:
        """A round with changed passwords: no lease lapses, worker ends or stream breaks, and a worker is refused."""
        self.add("password", scene, changes.answer_s, changes.line(), may_lose=False)
        assert scene.verdict is not None
        wrong = scene.verdict.lapsed or scene.verdict.run_again or changes.ended or changes.broken
        if wrong or not changes.refused:
            self.failed.append(f"password: {changes.line()} {scene.line()}")

    def line(self) -> str:
        """All figures in one line."""
        parts = []
        for kind, verdicts in self.verdicts.items():
            accepted, lost = sum(v.accepted for v in verdicts), sum(v.lost for v in verdicts)
            told = f"told={sum(v.told for v in verdicts)} mistold={sum(v.mistold for v in verdicts)}"
            others = f"forgotten={sum(v.forgotten for v in verdicts)} run_again={sum(v.run_again for v in verdicts)}"
            gap = statistics.median(self.gaps[kind])
            worst = max(self.gaps[kind])
            parts.append(
                f"[{kind}: rounds={len(verdicts)} accepted={accepted} lost={lost} {told} {others} "
                f"answer_gap_median={gap:.1f}s answer_gap_max={worst:.1f}s]"
            )
        return f"{' '.join(parts)} failed={len(self.failed)}"


async def sentinel_rounds(binary: Path | None, rounds: int, cut_s: float) -> Tally:
    """The master killed; killed while its replicas are cut off, without and with WAIT; replaced in order; passwords."""
    tally = Tally()
    kinds = {"kill": (0, 0.0), "kill-wait1": (1, 0.0), "cut": (0, cut_s), "cut-wait1": (1, cut_s)}
    with SentinelDeployment(binary) as deployment, _folder() as folder:
        passwords = Passwords(folder)
        file = passwords.file(deployment.url)
        async with workers_on(file, folder) as workers:
            for _ in range(rounds):
                for kind, (replicas, before_s) in kinds.items():
                    await _sentinel_kill(tally, deployment, kind, replicas, before_s)
                for kind, least in (("ordered", 0), ("ordered-paused", 2)):
                    await _ordered(tally, deployment, kind, least)
                nodes, sentinels = ([each.port for each in some] for some in (deployment.nodes, deployment.sentinels))
                # Sentinels connect again once a second at most: with DOWN_AFTER_MS some of them would fail over.
                deployment.take_for_dead_after(NEVER_MS)
                async with users_on(file) as scene:
                    changes = await change_passwords(scene, passwords, workers, nodes, sentinels)
                tally.add_changes(scene, changes)
                deployment.take_for_dead_after(DOWN_AFTER_MS)
                await eventually(lambda: asyncio.to_thread(deployment.complete), 60, "all are in step")
    return tally


async def cluster_rounds(binary: Path | None, rounds: int, cut_s: float) -> Tally:
    """The queue's slot moved; the master that has it killed; killed while its replica is cut off; passwords."""
    tally, slot = Tally(), slot_of(QUEUE)
    with ClusterDeployment(binary) as cluster, _folder() as folder:
        passwords = Passwords(folder)
        file = passwords.file(cluster.url)
        async with workers_on(file, folder) as workers:
            for _ in range(rounds):
                async with users_on(cluster.url) as scene:
                    migration = await migrate(scene, cluster, slot, HALF_S)
                tally.add("migration", scene, migration.answer_s, migration.line(), may_lose=False)
                for kind, before_s in (("kill", 0.0), ("cut", cut_s)):
                    await _cluster_kill(tally, cluster, kind, before_s)
                async with users_on(file) as scene:
                    changes = await change_passwords(scene, passwords, workers, [node.port for node in cluster.nodes])
                tally.add_changes(scene, changes)
    return tally


async def _sentinel_kill(
    tally: Tally, deployment: SentinelDeployment, kind: str, replicas: int, cut_before_s: float
) -> None:
    master = deployment.master()
    assert master is not None
    async with users_on(deployment.url, replicas) as scene:
        failover = await fail_over(scene, master, deployment.replicas(), deployment.master, cut_before_s)
    tally.add(kind, scene, failover.answer_s, failover.line(), may_lose=replicas == 0)
    await asyncio.to_thread(deployment.revive, master)


async def _cluster_kill(tally: Tally, cluster: ClusterDeployment, kind: str, cut_before_s: float) -> None:
    slot = slot_of(QUEUE)
    master = cluster.owner(slot)
    assert master is not None
    async with users_on(cluster.url) as scene:
        others = [cluster.replica_of(master)]
        failover = await fail_over(scene, master, others, lambda: cluster.owner(slot), cut_before_s)
    tally.add(kind, scene, failover.answer_s, failover.line(), may_lose=True)
    await asyncio.to_thread(cluster.revive, master)


async def _ordered(tally: Tally, deployment: SentinelDeployment, kind: str, least_replicas: int) -> None:
    """The master replaced although it is well; with `least_replicas`, as docs/operate.md says how to."""
    master = deployment.master()
    assert master is not None
    tell(master.port, "CONFIG", "SET", "min-replicas-to-write", least_replicas)
    async with users_on(deployment.url) as scene:
        ordered = await _replace_in_order(scene, deployment, paused=least_replicas > 0)
    tally.add(kind, scene, ordered.answer_s, ordered.line(), may_lose=least_replicas == 0)
    await eventually(lambda: asyncio.to_thread(deployment.complete), 60, "all are in step again")
    tell(master.port, "CONFIG", "SET", "min-replicas-to-write", 0)


async def _replace_in_order(scene: Scene, deployment: SentinelDeployment, paused: bool) -> Failover:
    await scene.answers(100, time.monotonic())
    before = deployment.master()
    begun = time.monotonic()
    if paused and before is not None:
        tell(before.port, "CLIENT", "PAUSE", PAUSE_MS, "WRITE")
    await asyncio.to_thread(deployment.replace_master)

    async def another() -> bool:
        return await asyncio.to_thread(deployment.master) not in (None, before)

    await eventually(another, 30, "the Sentinels name another master")
    at = time.monotonic()
    await scene.answers(100, at + 2.0)
    log = scene.log
    return Failover(at - begun, log.gap_s(log.accepted, begun), log.gap_s(log.answered_at, begun))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="streamfleet-ha-") as folder:
        yield Path(folder)
