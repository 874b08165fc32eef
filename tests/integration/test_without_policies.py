"""A queue without policies: the core of the scripts works alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamfleet.common import scripts
from streamfleet.common.protocol import Status
from streamfleet.producer.client import Client
from streamfleet.worker.engine.simulated import SimulatedEngine
from streamfleet.worker.engine.simulated_profile import Profile
from tests.integration.worker_in_process import worker_inside

REQUESTS, SLOTS = 2_000, 256


def asks() -> Iterator[dict[str, object]]:
    """Requests with and without labels, which mean nothing where no policy is."""
    for number in range(REQUESTS):
        labels = {"tenant": f"t{number % 7}", "session": f"s{number % 50}"} if number % 2 else {}
        yield {"body": {"messages": [{"role": "user", "content": "x" * 440}], "max_tokens": 1}, **labels}


@pytest.mark.parametrize("left_out", ["tenants", "homes", "all"])
async def test_a_worker_runs_many_requests(redis_url: str, left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = scripts.POLICIES if left_out == "all" else (left_out,)
    whole = scripts.source
    monkeypatch.setattr(scripts, "source", lambda verb: whole(verb, without))
    profile = Profile("fast, for tests", 0.0, ((1, 100_000), (SLOTS, 100_000 * SLOTS)), SLOTS, 10**6, 8_192, jitter=0.0)
    async with worker_inside(redis_url, SimulatedEngine(profile)), Client(redis_url) as client:
        found = [result.status async for result in client.run_many(asks(), concurrency=500)]
    assert found == [Status.SUCCEEDED] * REQUESTS
