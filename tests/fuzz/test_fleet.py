"""The bounded form of `python -m tests.fuzz`: a few thousand raw entries, two workers, and all that must hold then."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.fleet import FuzzedFleet
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers


def test_raw_entries_of_any_kind_end_and_harm_nobody(tmp_path: Path) -> None:
    with RedisServer(newest(find_servers())) as server, FuzzedFleet(server.url, tmp_path, 1, workers=2) as fleet:
        found = fleet.run(3_000)
    print(found.line())
    assert found.problems == []
    assert found.terminal == found.entries >= 3_000
    assert found.statuses["succeeded"] > 500
    assert found.statuses["failed"] > 500
    assert min(found.statuses["expired"], found.statuses["cancelled"]) > 10
