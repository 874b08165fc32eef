"""`streamfleet plan` with a real worker process, and its order beside the real pull script."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from streamfleet.common.broker.types import Completion
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES, Status
from streamfleet.operator.plan.lengths import learnt, length_class
from streamfleet.operator.plan.profile import EngineProfile, load_profile
from streamfleet.operator.plan.simulate import Lanes
from streamfleet.producer import Client
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU
from tests.broker import Broker
from tests.integration.cli_processes import WITHIN_S, Ended, streamfleet, worker
from tests.integration.worker_process import Fleet
from tests.waiting import eventually_blocking

SPEED = 4
"""Steps of 5 ms and more: what timers are late does not count for much."""
SIMULATED = {"STREAMFLEET_SIMULATED_PROFILE": "smollm2-cpu"}
SMALL = ("--up-to", "4", "--rounds", "1", "--output-tokens", "16")


@contextmanager
def ready(url: str) -> Iterator[Any]:
    """A worker that takes requests, and says so; gives a client of its Redis."""
    with worker(url, "w1", SIMULATED, speed=SPEED), redis.Redis.from_url(url, decode_responses=True) as client:
        raw: Any = client

        def said() -> bool:
            return '"state":"ready"' in str(raw.hget("{default}:workers", "w1")).replace(" ", "")

        eventually_blocking(said, WITHIN_S, "the worker says that it is ready")
        yield raw


def measured(url: str, folder: Path, prompt_tokens: int = 64) -> Ended:
    """`streamfleet plan measure`, small, into engine.json."""
    out = str(folder / "engine.json")
    return streamfleet(url, "plan", "measure", *SMALL, "--prompt-tokens", str(prompt_tokens), "--out", out)


def test_a_real_worker_is_measured_and_a_fleet_planned_from_it(redis_url: str, tmp_path: Path) -> None:
    with ready(redis_url):
        refused = measured(redis_url, tmp_path, prompt_tokens=9_000)
        ended = measured(redis_url, tmp_path)
    assert refused.returncode == 1, "what the engine refuses ends the measurement, with its words"
    assert "maximum context length" in refused.stderr
    assert "--prompt-tokens" in refused.stderr
    assert ended.returncode == 0, ended.stderr
    assert "output tokens/s" in ended.stdout
    found = load_profile(tmp_path / "engine.json").engine
    assert [together for together, _ in found.throughput] == [1, 2, 4]
    for together in (1, 2, 4):  # nothing is faster than its timers; how late these are is the machine's affair
        assert found.step_s(together) >= 0.8 * SMOLLM2_135M_CPU.step_s(together) / SPEED
    options = (
        "--rate",
        "1",
        "--prompt-tokens",
        "64",
        "--output-tokens",
        "32",
        "--deadline",
        "60s",
        "--requests",
        "200",
    )
    planned = streamfleet(redis_url, "plan", "--profile", str(tmp_path / "engine.json"), *options, "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["workers"] >= 1


def test_only_a_worker_that_is_alone_and_idle_is_measured(redis_url: str, tmp_path: Path) -> None:
    def refused() -> str:
        ended = measured(redis_url, tmp_path)
        assert ended.returncode == 1
        assert not (tmp_path / "engine.json").exists()
        return ended.stderr

    assert "has 0 workers" in refused()
    with ready(redis_url) as client:
        body = json.dumps({"prompt": "go on", "max_tokens": 5_000, "ignore_eos": True})
        assert streamfleet(redis_url, "enqueue", "--id", "long", "--body", body).returncode == 0
        assert "has 1 requests, which would be in the way" in refused()
        assert streamfleet(redis_url, "cancel", "long").returncode == 0
        eventually_blocking(lambda: not client.xlen("{default}:lane:normal"), WITHIN_S, "the worker has let go of it")
        client.hset("{default}:workers", "w2", client.hget("{default}:workers", "w1"))
        assert "has 2 workers; one engine is measured at a time" in refused()


@pytest.mark.parametrize("seed", range(3))
async def test_requests_are_picked_as_the_pull_script_picks_them(fleet: Fleet, seed: int) -> None:
    """Some come, some are taken, again and again: lanes fill up, run empty, and are owed something."""
    chance, limits = random.Random(seed), replace(fleet.broker.limits, shares=(0, 100, 300, 200))
    broker = Broker(Connection(fleet.url), Keys("default"), limits)
    lanes = Lanes(limits.shares, limits.patience_ms / 1000)
    names: list[str] = []
    base_ms = await broker.now_ms() + 10_000_000
    for _ in range(40):
        for _ in range(chance.randint(0, 8)):
            lane, due_ms = chance.choice(LANES), base_ms + chance.randrange(60) * 1_000
            lanes.add(lane, len(names), 0.0, due_ms / 1000)
            names.append(await fleet.add(f"p{len(names)}", lane, deadline=str(due_ms)))
        wanted = chance.randint(1, 7)
        pulled = await broker.pull("reader", wanted)
        picked = [names[lanes.pick()] for _ in range(min(wanted, len(lanes)))]
        assert {claim.lease.request_id for claim in pulled.claims} == set(picked)
    await broker.close()


def test_a_plan_takes_the_lengths_that_a_queue_has_learnt(redis_url: str, tmp_path: Path) -> None:
    EngineProfile(SMOLLM2_135M_CPU, 2.0, {}).save(tmp_path / "engine.json")
    options = ("--profile", str(tmp_path / "engine.json"), "--rate", "1", "--deadline", "60s", "--requests", "200")
    named = streamfleet(redis_url, "plan", *options, "--queue", "default")
    assert (named.returncode, "--prompt-tokens: give the mean length" in named.stderr) == (2, True), named.stderr
    asyncio.run(_learn(redis_url))
    planned = streamfleet(redis_url, "plan", *options, "--queue", "default", "--json")
    assert planned.returncode == 0, planned.stderr
    assert "7 prompt and 40 output tokens" in json.loads(planned.stdout)["basis"]


async def _learn(redis_url: str) -> None:
    async with Client(redis_url) as client:
        broker = Broker.of(client.broker)
        await broker.ensure_groups()
        for output in (30, 50):
            await client.enqueue({"prompt": "hi", "max_tokens": 100}, tenant="a")
            (claim,) = (await broker.pull("w1", 1)).claims
            usage = json.dumps({"prompt_tokens": 7, "completion_tokens": output})
            await broker.complete("w1", [Completion(claim.lease, Status.SUCCEEDED, {"usage": usage}, "", "")])
        assert learnt(await broker.audit(0)).outputs == {("a", length_class(100)): 40.0}
