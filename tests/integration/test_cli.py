"""The command line with a real worker (its engine simulated) and a real Redis."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.integration.cli_processes import WITHIN_S, started, streamfleet, worker
from tests.waiting import eventually_blocking


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def entries(raw: redis.Redis, stream: str) -> list[dict[str, str]]:
    """The fields of what stands in one of the queue's streams."""
    found: Any = raw.xrange(f"{{default}}:{stream}")
    return [fields for _, fields in found]


def spoil(url: str) -> None:
    """One request that expires, and one that is malformed, ended by a worker."""
    streamfleet(url, "enqueue", "--prompt", "late", "--id", "late", "--ttl", "1ms", "--lane", "high")
    with redis.Redis.from_url(url) as client:
        client.xadd("{default}:lane:low", {"id": "broken", "body": "{\u2028"})
    with worker(url):
        for name in ("late", "broken"):
            assert streamfleet(url, "result", name, "--wait", "--timeout", "20").returncode == 1


def test_a_request_from_start_to_end(redis_url: str) -> None:
    enqueued = streamfleet(
        redis_url, "enqueue", "--prompt", "Say hi", "--max-tokens", "8", "--id", "r-1", "--lane", "high"
    )
    assert (enqueued.returncode, enqueued.stdout, enqueued.stderr) == (0, "r-1\n", "")
    waiting = streamfleet(redis_url, "result", "r-1")
    assert waiting.returncode == 1
    assert waiting.stderr == "request r-1 has no result yet: queued in lane high\n"
    with worker(redis_url):
        done = streamfleet(redis_url, "result", "r-1", "--wait", "--timeout", "20")
        assert done.returncode == 0
        assert done.stdout.startswith("[simulated]")
    whole = json.loads(streamfleet(redis_url, "result", "r-1", "--json").stdout)
    assert (whole["status"], whole["worker"], whole["attempt"], whole["lane"]) == ("succeeded", "w1", 1, "high")
    assert whole["usage"]["completion_tokens"] == 8


def test_enqueue_and_wait(redis_url: str) -> None:
    body = '{"prompt": "hi", "max_tokens": 4}'
    with worker(redis_url):
        done = streamfleet(redis_url, "enqueue", "--body", body, "--wait", "--timeout", "20", "--id", "r-1")
        assert done.returncode == 0, done.stderr
        again = streamfleet(redis_url, "enqueue", "--body", body, "--wait", "--timeout", "20", "--id", "r-1")
        assert again.stdout == done.stdout
        assert "(enqueued before)" in again.stderr


def test_a_timeout_is_one_line(redis_url: str) -> None:
    late = streamfleet(redis_url, "enqueue", "--prompt", "hi", "--wait", "--timeout", "0.05", "--id", "r-1")
    assert late.returncode == 1
    assert late.stderr.splitlines()[-1].startswith("streamfleet: request r-1 has no result after")


def test_one_that_leaves_is_not_notified(redis_url: str, raw: redis.Redis) -> None:
    streamfleet(redis_url, "enqueue", "--prompt", "hi")
    assert [set(fields) for fields in entries(raw, "lane:normal")] == [{"body", "id"}]


def test_conflict_and_full_lane(redis_url: str) -> None:
    assert streamfleet(redis_url, "enqueue", "--prompt", "a", "--id", "r-1").returncode == 0
    conflict = streamfleet(redis_url, "enqueue", "--prompt", "b", "--id", "r-1")
    assert conflict.returncode == 1
    assert conflict.stderr.startswith("streamfleet: id: r-1 belongs to a request with another body")
    full = streamfleet(redis_url, "enqueue", "--prompt", "b", STREAMFLEET_LANE_LIMIT="1")
    assert full.returncode == 1
    assert full.stderr.startswith("streamfleet: lane normal holds 1 requests, its limit")


def test_cancel(redis_url: str) -> None:
    streamfleet(redis_url, "enqueue", "--prompt", "hi", "--id", "r-1")
    assert streamfleet(redis_url, "cancel", "r-1").stdout == "request r-1 cancelled\n"
    ended = streamfleet(redis_url, "result", "r-1")
    assert ended.returncode == 1
    assert ended.stderr.startswith("request r-1 cancelled: ")
    with worker(redis_url):
        streamfleet(redis_url, "enqueue", "--prompt", "hi", "--id", "r-2", "--max-tokens", "2", "--wait")
    late = streamfleet(redis_url, "cancel", "r-2")
    assert (late.returncode, late.stderr) == (1, "request r-2 had ended before: succeeded\n")


def test_cancelling_what_the_queue_has_never_seen_says_so_and_blocks_nothing(redis_url: str) -> None:
    for name in ("r-1", "high:1790000000000-0", "a b"):
        never = streamfleet(redis_url, "cancel", name)
        assert (never.returncode, never.stdout) == (3, "")
        assert f"this queue has never seen request {name}" in never.stderr
        assert "--before-it-comes" in never.stderr
    ahead = streamfleet(redis_url, "cancel", "r-2", "--before-it-comes")
    assert (ahead.returncode, ahead.stderr) == (0, "")
    assert ahead.stdout == "the queue has never seen request r-2: cancelled if it comes within 3600 s\n"
    assert streamfleet(redis_url, "cancel", "r-3", "--before-it-comes", "--within", "10m").returncode == 0
    for words in (("--within", "10m"), ("--before-it-comes", "--within", "soon")):
        wrong = streamfleet(redis_url, "cancel", "r-3", *words)
        assert wrong.returncode == 2
        assert "--within" in wrong.stderr
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        assert 3_590_000 < raw.pttl("{default}:result:r-2") <= 3_600_000
        assert 590_000 < raw.pttl("{default}:result:r-3") <= 600_000
        raw.xadd("{default}:lane:high", {"id": "by-hand", "body": '{"prompt": "hi"}'})
    assert streamfleet(redis_url, "cancel", "by-hand").stdout == "request by-hand cancelled\n"
    with worker(redis_url):
        for name, status in (("r-1", 0), ("r-2", 1), ("r-3", 1)):
            ended = streamfleet(redis_url, "enqueue", "--prompt", "hi", "--id", name, "--max-tokens", "2", "--wait")
            assert ended.returncode == status, (name, ended)


def test_backlog(redis_url: str) -> None:
    for lane in ("critical", "low"):
        streamfleet(redis_url, "enqueue", "--prompt", "hi", "--lane", lane)
    seen = json.loads(streamfleet(redis_url, "backlog", "--json").stdout)
    assert {lane["lane"]: lane["ready"] for lane in seen["lanes"]} == {"critical": 1, "high": 0, "normal": 0, "low": 1}
    assert (seen["outstanding"], seen["accepted"], seen["workers"]) == (2, 2, [])
    picture = streamfleet(redis_url, "backlog").stdout
    assert "critical" in picture
    assert "no workers" in picture


def test_backlog_goes_on_until_ctrl_c(redis_url: str) -> None:
    with started(redis_url, "backlog", "--watch", "--json", "--interval", "0.1") as watching:
        looks = [json.loads(line) for line in some_lines(watching, 3)]
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=WITHIN_S)
        assert (watching.returncode, errors) == (130, "")
    assert looks[0]["now_ms"] < looks[1]["now_ms"] < looks[2]["now_ms"]
    assert looks[0]["rates"] is None
    assert (looks[2]["rates"]["enqueued_per_s"], looks[2]["rates"]["finished_per_s"]) == (0.0, 0.0)


def test_backlog_shows_rates(redis_url: str) -> None:
    with started(redis_url, "backlog", "--watch", "--interval", "0.1") as watching:
        assert watching.stdout is not None
        assert any("0.0 enqueued/s" in line for line in watching.stdout)
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=WITHIN_S)
        assert watching.returncode == 143


def some_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_dead_letters(redis_url: str, raw: redis.Redis) -> None:
    assert streamfleet(redis_url, "dead", "list").stdout == "no dead letters\n"
    spoil(redis_url)
    listed = [json.loads(line) for line in streamfleet(redis_url, "dead", "list", "--json").stdout.splitlines()]
    assert {letter["request_id"]: letter["status"] for letter in listed} == {"late": "expired", "broken": "failed"}
    assert "late" in streamfleet(redis_url, "dead", "list", "--reason", "expired").stdout
    assert streamfleet(redis_url, "dead", "list", "--reason", "dead").stdout == "no dead letters\n"

    page = streamfleet(redis_url, "dead", "show", "broken").stdout
    assert "status       failed" in page
    assert "error        body: is not JSON" in page
    assert "  body: {" in page
    by_its_own_id = streamfleet(redis_url, "dead", "show", listed[0]["letter_id"], "--json").stdout
    assert json.loads(by_its_own_id) == listed[0]
    assert streamfleet(redis_url, "dead", "show", "nobody").returncode == 2

    again = streamfleet(redis_url, "dead", "requeue", "late")
    assert again.returncode == 0
    assert "(its ttl had passed and was dropped)" in again.stdout
    body = '{"messages":[{"role":"user","content":"late"}]}'
    assert entries(raw, "lane:high") == [{"id": "late", "body": body}]
    with worker(redis_url):
        assert streamfleet(redis_url, "result", "late", "--wait", "--timeout", "20").returncode == 0
    assert streamfleet(redis_url, "dead", "purge", "--all", "--yes").stdout == "1 deleted\n"
    audit = streamfleet(redis_url, "audit")
    assert audit.returncode == 0, audit.stderr


def test_all_dead_letters_are_requeued_once(redis_url: str, raw: redis.Redis) -> None:
    """Malformed ones fail again while the command runs: they must not be met a second time."""
    for number in range(150):
        raw.xadd("{default}:lane:low", {"id": f"broken-{number}", "body": "{"})
    with worker(redis_url):
        eventually_blocking(lambda: raw.xlen("{default}:dead") == 150, WITHIN_S, "all have failed")
        done = streamfleet(redis_url, "dead", "requeue", "--all")
        assert done.stderr == "150 requeued\n"
        eventually_blocking(lambda: raw.hget("{default}:counts", "failed") == "300", WITHIN_S, "they failed again")
    assert len(entries(raw, "dead")) == 150
    assert streamfleet(redis_url, "audit").returncode == 0


def test_a_letter_whose_id_was_used_again_is_refused_and_the_others_are_requeued(
    redis_url: str, raw: redis.Redis
) -> None:
    spoil(redis_url)
    raw.delete("{default}:result:late", "{default}:request:late")
    with worker(redis_url):
        newer = streamfleet(redis_url, "enqueue", "--prompt", "new", "--id", "late", "--wait", "--timeout", "20")
        assert newer.returncode == 0, newer.stderr
    done = streamfleet(redis_url, "dead", "requeue", "--all")
    assert done.returncode == 1
    assert "the id late is that of another request, which ended as succeeded: enqueue" in done.stderr
    assert done.stderr.endswith("1 requeued, 1 not\n")
    assert raw.hget("{default}:result:late", "status") == "succeeded"
    assert [letter["_id"] for letter in entries(raw, "dead")] == ["late"]


def test_the_audit_adds_up_or_says_so(redis_url: str, raw: redis.Redis) -> None:
    spoil(redis_url)
    streamfleet(redis_url, "enqueue", "--prompt", "hi")
    audit = streamfleet(redis_url, "audit")
    assert audit.returncode == 0
    identity = "accepted=3 = succeeded=0 + failed=1 + expired=1 + cancelled=0 + dead=0 + outstanding=1"
    assert audit.stdout.splitlines()[-1] == identity
    raw.hincrby("{default}:counts", "failed", 1)
    wrong = streamfleet(redis_url, "audit", "--json")
    assert wrong.returncode == 1
    assert "does not add up: " in wrong.stderr
    assert json.loads(wrong.stdout)["problems"]


def test_an_outsider_needs_only_xadd(redis_url: str, raw: redis.Redis) -> None:
    with worker(redis_url):
        raw.xadd("{default}:lane:high", {"id": "r-42", "body": '{"prompt": "Say hi", "max_tokens": 8}'})
        assert streamfleet(redis_url, "result", "r-42", "--wait", "--timeout", "20").returncode == 0
        assert raw.hget("{default}:result:r-42", "status") == "succeeded"


def test_warnings_of_a_result_are_shown(redis_url: str, raw: redis.Redis) -> None:
    raw.xadd(
        "{default}:lane:high", {"id": "odd", "body": json.dumps({"prompt": "hi", "max_tokens": 1}), "priority": "9"}
    )
    with worker(redis_url):
        shown = streamfleet(redis_url, "result", "odd", "--wait", "--timeout", "20")
        assert (shown.returncode, "field 'priority' is unknown" in shown.stderr) == (0, True)
        assert "priority" not in shown.stdout
        streamed: dict[Any, Any] = {
            "id": "odd-2",
            "body": json.dumps({"prompt": "hi", "max_tokens": 1}),
            "stream": "1",
            "modle": "m",
        }
        raw.xadd("{default}:lane:high", streamed)
        shown = streamfleet(redis_url, "result", "odd-2", "--stream", "--timeout", "20")
        assert (shown.returncode, "field 'modle' is unknown" in shown.stderr) == (0, True)
    told = json.loads(streamfleet(redis_url, "result", "odd", "--json").stdout)
    assert [warning[:16] for warning in told["warnings"]] == ["field 'priority'"]
