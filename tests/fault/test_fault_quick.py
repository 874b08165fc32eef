"""The harness itself: scenarios with every guard in place, and one without. `make fault` has the runs under load."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
from redis.exceptions import ResponseError

from tests.fault import mutants
from tests.fault.harness import warm_launcher
from tests.fault.launcher import Launcher
from tests.fault.mutants import Runner, Seen, _acted, play
from tests.fault.mutations import MUTATIONS, PATIENT, Mutation
from tests.fault.redis_faults import server_binary
from tests.fault.scenarios import SCENARIOS, Scenario
from tests.fault.stage import Stage
from tests.long.others import NOISY, Others

pytestmark = pytest.mark.kill


@pytest.mark.timeout(300)
def test_the_harness_notices_a_guard_that_was_taken_out(repository: Path) -> None:
    command = [sys.executable, "-m", "tests.fault.mutants", "fence"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert done.stdout.splitlines()[-1].split()[:2] == ["mutants=1", "caught=1"]


@pytest.mark.parametrize("name", ["pull_answer_lost", "wake_up_lost", "password_changes", "same_worker_again"])
async def test_scenarios_of_each_kind_pass_with_every_guard_in_place(name: str) -> None:
    mark = uuid.uuid4().hex
    async with warm_launcher(mark, "simulated", Path()) as launcher:
        seen = await play(name, PATIENT.name if name == PATIENT.scenario else "", launcher, mark, server_binary(""))
    assert seen.said == ()
    shutil.rmtree(seen.folder)


async def test_a_scenario_that_breaks_is_one_that_fails_and_the_others_go_on() -> None:
    async def breaks(_: Stage) -> None:
        raise ResponseError("data string too short")

    assert await _acted(Scenario(breaks), cast("Stage", None)) == "ResponseError: data string too short"


@pytest.mark.parametrize(("noise", "plays", "passes"), [("", 1, False), (NOISY, 2, True)])
async def test_a_scenario_that_fails_on_a_busy_machine_is_played_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noise: str, plays: int, passes: bool
) -> None:
    left = [Seen(("unexplained: r",), 1.0, tmp_path / "logs"), Seen((), 1.0, tmp_path / "logs")]
    played = mock.AsyncMock(side_effect=left)
    monkeypatch.setattr(mutants, "play", played)
    monkeypatch.setattr(Others, "noise", lambda _: noise)
    assert await Runner(cast("Launcher", None), "", None, keep=False).passes("watched") == passes
    assert played.await_count == plays


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_guard_is_where_its_mutation_expects_it(mutation: Mutation) -> None:
    assert mutation.missing() == []
    assert mutation.scenario in SCENARIOS
