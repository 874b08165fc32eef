"""Workers of two releases side by side under load, there and back: nothing is lost, nothing answered twice.

For each release that is kept in tests/upgrade/releases. That these tests notice releases that do not get along:
`python -m tests.upgrade.breaks`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfleet.cli.demo.server import find_servers
from tests.servers import OLD_RELEASE, newest
from tests.upgrade.kept import kept, name_of, unpack
from tests.upgrade.launchers import OLD
from tests.upgrade.rollout import Played, play

pytestmark = [pytest.mark.kill, pytest.mark.timeout(120)]
HOT = {"enqueue", "pull", "complete", "renew"}
"""Scripts that every release calls all the time."""

RUNS = [*((archive, None) for archive in kept()[1:] or kept()), (kept()[0], OLD_RELEASE)]
"""Each release on the newest Redis, but the oldest one on the oldest: what they lack may be lacking together."""


@pytest.mark.parametrize(
    ("archive", "server"), RUNS, ids=[f"{name_of(path)}-{label or 'newest'}" for path, label in RUNS]
)
async def test_an_upgrade_and_the_way_back_lose_nothing(archive: Path, server: str | None, tmp_path: Path) -> None:
    servers = find_servers()
    played = await play(unpack(archive, tmp_path), None, servers[server] if server else newest(servers))
    assert not played.violations, f"logs: {played.folder}\n" + "\n".join(played.violations[:40])
    both_took_part(played, tmp_path)
    ready = {worker.name.split(".")[0] for worker in played.workers if worker.takes_requests}
    assert ready == {f"w{slot}" for slot in range(6)}


def both_took_part(played: Played, old_root: Path) -> None:
    """Else a run says nothing: each release ran its own code, and each went on with what the other had begun."""
    assert all(path.is_relative_to(old_root) for path in played.old.files), played.old.files
    assert not any(path.is_relative_to(old_root) for path in played.today.files)
    assert {verb for verb in HOT if played.old.shas[verb] == played.today.shas[verb]} == set()
    assert all(played.ran[name] >= HOT for name in ("old", "today")), played.ran
    handed_on = {
        (execution.worker.startswith(OLD), played.history.results[name].get("worker", "").startswith(OLD))
        for name, executions in played.history.executions.items()
        for execution in executions
        if played.history.results[name].get("status") == "succeeded"
    }
    assert handed_on == {(began, ended) for began in (True, False) for ended in (True, False)}
    assert {"failed", "expired", "cancelled", "succeeded"} <= played.history.counts.keys()
