"""`streamfleet batch` with a real worker (its engine simulated): stop it anywhere, each custom_id is answered once."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from streamfleet.common.broker.types import Completion, Hint, Role
from streamfleet.common.protocol import Lane, Status
from streamfleet.common.settings import QueueSettings, load
from streamfleet.producer import Client
from streamfleet.producer.batch import Batch, BatchOptions, Progress
from streamfleet.producer.batch_files import AppendFile, Job
from tests.broker import Broker
from tests.integration.batch_lines import NO_REQUESTS
from tests.integration.cli_processes import WITHIN_S, lines_of, started, streamfleet, worker
from tests.waiting import eventually, eventually_blocking

# One after the other on the simulated engine, so that there is a middle to stop in.
SLOW = {"STREAMFLEET_SIMULATED_PROFILE": "smollm2-cpu", "BATCH_SIZE": "1"}


def line(custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"This is {custom_id}."}], "max_tokens": 4}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


def write(path: Path, *lines: Any) -> Path:
    texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_bytes().split(b"\n") if text] if path.exists() else []


def custom_ids(path: Path) -> list[str]:
    return sorted(answer["custom_id"] for answer in read(path))


def has_lines(path: Path, count: int) -> bool:
    return lines_of(path) >= count


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
@pytest.mark.kill
def test_interrupted_and_started_again(
    redis_url: str, repository: Path, tmp_path: Path, out: Path, signum: int
) -> None:
    source = Path(shutil.copy(repository / "examples" / "prompts.jsonl", tmp_path))
    wanted = sorted(json.loads(text)["custom_id"] for text in source.read_text().splitlines())
    with worker(redis_url, settings=SLOW):
        for _ in range(2):
            wanted_lines = lines_of(out) + 1
            with started(redis_url, "batch", str(source), str(out), "--window", "4") as batch:
                eventually_blocking(partial(has_lines, out, wanted_lines), WITHIN_S, "an answer was written")
                batch.send_signal(signum)
                _, said = batch.communicate(timeout=WITHIN_S)
            assert batch.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
            if signum != signal.SIGKILL:
                assert "interrupted: " in said
                assert "Run the same command again to go on." in said
                assert "Traceback" not in said
        assert 2 <= lines_of(out) < len(wanted), "it was stopped in the middle"
        again = streamfleet(redis_url, "batch", str(source), str(out))
        assert again.returncode == 0, again.stderr
    assert custom_ids(out) == wanted
    assert not out.with_name("out.errors.jsonl").exists()
    assert not out.with_name("out.jsonl.partial").exists()
    audit = streamfleet(redis_url, "audit")
    assert audit.stdout.splitlines()[-1].startswith("accepted=20 = succeeded=20 "), "none was asked twice"
    assert audit.returncode == 0


def test_every_line_ends_in_one_of_two_files(redis_url: str, tmp_path: Path, out: Path) -> None:
    source = write(
        tmp_path / "in.jsonl",
        line("good"),
        "{",
        "",
        line("get", method="GET"),
        line("where", url="/v1/models"),
        line("good", body={"prompt": "another"}),
        line("greedy", body={"prompt": "hi", "n": 100_000}),
        line("late"),
        {"custom_id": 7},
        line("embedding", url="/v1/embeddings", body={"input": 5}),
    )
    with worker(redis_url):
        done = streamfleet(redis_url, "batch", str(source), str(out), "--lane", "high")
        assert done.returncode == 1
        again = streamfleet(redis_url, "batch", str(source), str(out), "--lane", "high")
        assert again.returncode == 1
    assert custom_ids(out) == ["good", "late"]
    errors = read(out.with_name("out.errors.jsonl"))
    assert {error["custom_id"] for error in errors if error["custom_id"]} == {"get", "where", "greedy", "embedding"}
    refused = {error["error"]["line"]: error["error"] for error in errors if error["response"] is None}
    assert {number: error["param"] for number, error in refused.items()} == {
        2: None,
        4: "method",
        5: "url",
        6: "custom_id",
        9: "custom_id",
    }
    assert refused[6]["code"] == "duplicate_custom_id"
    assert "line 1" in refused[6]["message"]
    greedy = next(error for error in errors if error["custom_id"] == "greedy")
    assert greedy["response"]["status_code"] == 400
    assert greedy["error"]["message"]
    assert len(errors) == 7, "the second run wrote none again"


@pytest.mark.parametrize("kind", NO_REQUESTS)
def test_a_file_of_which_no_line_is_a_request_is_told(redis_url: str, tmp_path: Path, out: Path, kind: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(NO_REQUESTS[kind])
    for _ in range(2):
        done = streamfleet(redis_url, "batch", str(source), str(out))
        assert done.returncode == 1
        assert f"no line of {source} is a request; the first: line 1: " in done.stderr
    assert not out.exists()
    assert read(out.with_name("out.errors.jsonl"))[0]["error"]["line"] == 1
    assert not out.with_name("out.jsonl.partial").exists()


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n"])
def test_a_file_without_lines_is_refused(redis_url: str, tmp_path: Path, out: Path, content: bytes) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(content)
    done = streamfleet(redis_url, "batch", str(source), str(out))
    assert done.returncode == 2
    assert f"{source} has no requests: one JSON object on each line is expected" in done.stderr
    assert list(tmp_path.iterdir()) == [source]


def test_a_line_of_the_output_is_one_line_for_every_reader(redis_url: str, tmp_path: Path, out: Path) -> None:
    good, bad = ([f"{name}{end}" for end in ("\x85", "\u2028", "\u2029")] for name in ("good", "bad"))
    lines = [*map(line, good), *(line(each, method="GET") for each in bad)]
    source = write(tmp_path / "in.jsonl", *(json.dumps(each, ensure_ascii=False) for each in lines))
    with worker(redis_url):
        assert streamfleet(redis_url, "batch", str(source), str(out)).returncode == 1
        again = streamfleet(redis_url, "batch", str(source), str(out))
    for path, wanted in ((out, good), (out.with_name("out.errors.jsonl"), bad)):
        assert sorted(json.loads(text)["custom_id"] for text in path.read_text().splitlines()) == wanted
    assert "(6 of them by earlier runs)" in again.stderr


def test_failures_that_were_taken_out_are_tried_again(redis_url: str, tmp_path: Path, out: Path) -> None:
    source, errors = write(tmp_path / "in.jsonl", line("a"), line("b")), tmp_path / "failed.jsonl"
    arguments = ("batch", str(source), str(out), "--errors", str(errors))
    with worker(redis_url):
        late = streamfleet(redis_url, *arguments, "--deadline", "1000000000000")
        assert (late.returncode, lines_of(out), lines_of(errors)) == (1, 0, 2)
        assert {error["error"]["code"] for error in read(errors)} == {"deadline_exceeded"}
        errors.unlink()
        again = streamfleet(redis_url, *arguments)
        assert again.returncode == 0, again.stderr
    assert custom_ids(out) == ["a", "b"]
    assert not errors.exists()


@pytest.mark.parametrize("wrong", ["same", "folder", "foreign", "busy"])
def test_files_that_cannot_be_used(redis_url: str, tmp_path: Path, out: Path, wrong: str) -> None:
    source = write(tmp_path / "in.jsonl", line("a"))
    target, status, said = out, 1, ""
    if wrong == "same":
        target, status, said = source, 2, "three different files"
    elif wrong == "folder":
        target, status, said = tmp_path / "no" / "out.jsonl", 2, "there is no folder"
    elif wrong == "foreign":
        out.write_text("my notes\n")
        said = "was not written by a batch"
    with Job(out) if wrong == "busy" else Job(tmp_path / "another"):
        found = streamfleet(redis_url, "batch", str(source), str(target))
    assert found.returncode == status
    assert (said or "another run writes the same output") in " ".join(found.stderr.split())
    assert source.read_text() == json.dumps(line("a")) + "\n"


def test_a_file_system_without_locks_is_told_and_used(
    redis_url: str, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    source = write(tmp_path / "in.jsonl", line("a"))
    with worker(redis_url):
        done = streamfleet(redis_url, "batch", str(source), str(out))
    assert done.returncode == 0
    assert "no locks (Function not implemented): see that no other run writes the same output" in done.stderr
    assert sorted(tmp_path.iterdir()) == [source, out]


# -- the runner itself, the test playing the worker ---------------------------------------------------------------


async def serve(url: str) -> None:
    """Answer whatever comes, until cancelled."""
    hints: list[Hint] = []
    role = Role.NONE
    async with Client(url) as fleet:
        while True:
            pulled = await Broker.of(fleet.broker).pull("w1", 8, hints)
            role, hints = pulled.role, []
            values = {"response": "{}", "worker": "w1", "attempt": "1"}
            done = [
                Completion(claim.lease, Status.SUCCEEDED, values, reply=claim.fields[b"reply"].decode())
                for claim in pulled.claims
            ]
            if done:
                await Broker.of(fleet.broker).complete("w1", done)
            elif role is not Role.NONE:
                hints = await Broker.of(fleet.broker).watch(1_000)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(url))
    try:
        yield
    finally:
        await ended(task)


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel it, and see it to its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def waiting(client: redis.asyncio.Redis) -> bool:
    return await client.xlen("{default}:lane:low") > 0


async def none_waiting(client: redis.asyncio.Redis) -> bool:
    return not await waiting(client)


async def run_batch(url: str, source: Path, out: Path, window: int = 1000, **settings: Any) -> list[Progress]:
    seen: list[Progress] = []
    options = BatchOptions("job", Lane.LOW, window=window)
    errors = AppendFile(out.with_name("errors.jsonl"))
    async with Client(settings=load(QueueSettings, redis_url=url, **settings)) as fleet:
        await Batch(fleet, source, AppendFile(out), errors, options, seen.append).run()
    return seen


async def test_never_more_outstanding_than_the_window(redis_url: str, tmp_path: Path, out: Path) -> None:
    source = write(tmp_path / "in.jsonl", *(line(f"c-{number}") for number in range(100)))
    async with serving(redis_url):
        seen = await run_batch(redis_url, source, out, window=10)
    assert max(progress.outstanding for progress in seen) == 10
    assert seen[-1] == Progress(total=100, succeeded=100, failed=0, earlier=0, outstanding=0, lane_full=False)
    assert len(set(custom_ids(out))) == lines_of(out) == 100


async def test_lines_that_begin_alike_are_enqueued_together(
    redis_url: str, tmp_path: Path, out: Path, raw_redis: redis.asyncio.Redis
) -> None:
    def asked(number: int) -> dict[str, Any]:
        system = {"role": "system", "content": f"You are assistant {number % 5}. " * 20}
        body = {"messages": [system, {"role": "user", "content": f"Question {number}"}], "max_tokens": 2}
        return line(f"c-{number}", body=body)

    source = write(tmp_path / "in.jsonl", *map(asked, range(100)))
    running = asyncio.create_task(run_batch(redis_url, source, out, window=50))

    async def all_there() -> bool:
        return bool(await raw_redis.xlen("{default}:lane:low") == 50)

    await eventually(all_there)
    rows: Any = await raw_redis.xrange("{default}:lane:low")
    shared = [json.loads(fields["body"])["messages"][0]["content"] for _, fields in rows]
    assert shared == sorted(shared)
    assert len(set(shared)) == 5
    async with serving(redis_url):
        await asyncio.wait_for(running, 30)
    assert len(set(custom_ids(out))) == lines_of(out) == 100


async def test_a_full_lane_is_waited_for(redis_url: str, tmp_path: Path, out: Path) -> None:
    source = write(tmp_path / "in.jsonl", *(line(f"c-{number}") for number in range(30)))
    running = asyncio.create_task(run_batch(redis_url, source, out, lane_limit=4))
    async with serving(redis_url):
        seen = await asyncio.wait_for(running, 30)
    assert any(progress.lane_full for progress in seen)
    assert not seen[-1].lane_full
    assert len(set(custom_ids(out))) == lines_of(out) == 30


async def test_what_ended_meanwhile_is_picked_up(
    redis_url: str, tmp_path: Path, out: Path, raw_redis: redis.asyncio.Redis
) -> None:
    source = write(tmp_path / "in.jsonl", *(line(f"c-{number}") for number in range(5)))
    first = asyncio.create_task(run_batch(redis_url, source, out))
    await eventually(lambda: waiting(raw_redis), what="the requests are there")
    await ended(first)
    async with serving(redis_url):
        await eventually(lambda: none_waiting(raw_redis), what="all were answered")
    assert lines_of(out) == 0
    await asyncio.wait_for(run_batch(redis_url, source, out), 30)
    assert len(custom_ids(out)) == 5
    assert await none_waiting(raw_redis), "none was asked again"


async def test_a_line_changed_under_its_custom_id_is_a_conflict(
    redis_url: str, tmp_path: Path, out: Path, raw_redis: redis.asyncio.Redis
) -> None:
    source = write(tmp_path / "in.jsonl", line("a"), line("b"))
    first = asyncio.create_task(run_batch(redis_url, source, out))
    await eventually(lambda: waiting(raw_redis), what="the requests are there")
    await ended(first)
    write(source, line("a"), line("b", body={"prompt": "changed"}))
    async with serving(redis_url):
        (*_, last) = await asyncio.wait_for(run_batch(redis_url, source, out), 30)
    assert (last.succeeded, last.failed) == (1, 1)
    assert custom_ids(out) == ["a"]
    (error,) = read(out.with_name("errors.jsonl"))
    assert (error["custom_id"], error["error"]["code"], error["error"]["line"]) == ("b", "conflict", 2)
    assert "was changed since it was sent" in error["error"]["message"]
