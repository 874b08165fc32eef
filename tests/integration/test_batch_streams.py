"""`streamfleet batch` and `enqueue` in pipes, and batches in gzip files, with a real worker (its engine simulated)."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.cli_processes import WITHIN_S, piped, started, streamfleet, worker
from tests.integration.test_batch import SLOW, line
from tests.waiting import eventually_blocking

BAD = {"custom_id": "bad", "method": "GET"}


def lines(*ids: str) -> bytes:
    return b"".join(json.dumps(line(name)).encode() + b"\n" for name in ids)


def custom_ids(text: str) -> list[str]:
    return sorted(json.loads(each)["custom_id"] for each in text.splitlines())


def unzipped(path: Path) -> str:
    """The part of a gzip file, perhaps still being written, that a reader gets."""
    given = path.read_bytes() if path.exists() else b""
    done = subprocess.run(["gzip", "-dc"], input=given, capture_output=True, check=False)
    return done.stdout.decode()


def has_lines(path: Path, count: int) -> bool:
    return unzipped(path).count("\n") >= count


def entries(url: str, lane: str) -> list[dict[str, str]]:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found: Any = client.xrange(f"{{default}}:lane:{lane}")
    return [fields for _, fields in found]


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
@pytest.mark.kill
def test_gzip_files_go_on_after_an_interruption(redis_url: str, repository: Path, tmp_path: Path, signum: int) -> None:
    text = (repository / "examples" / "prompts.jsonl").read_bytes()
    source, out = tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl.gz"
    source.write_bytes(gzip.compress(text))
    with worker(redis_url, settings=SLOW):
        for _ in range(2):
            wanted = unzipped(out).count("\n") + 1
            with started(redis_url, "batch", str(source), str(out), "--window", "4") as batch:
                eventually_blocking(partial(has_lines, out, wanted), WITHIN_S, "an answer was written")
                batch.send_signal(signum)
                batch.communicate(timeout=WITHIN_S)
        assert 2 <= unzipped(out).count("\n") < 20, "it was stopped in the middle"
        again = streamfleet(redis_url, "batch", str(source), str(out))
        assert again.returncode == 0, again.stderr
    answered = gzip.decompress(out.read_bytes()).decode()
    assert custom_ids(answered) == sorted(json.loads(each)["custom_id"] for each in text.splitlines())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl.gz", "out.jsonl.gz"]
    assert streamfleet(redis_url, "audit").stdout.splitlines()[-1].startswith("accepted=20 = succeeded=20 ")


def test_from_stdin_to_stdout(redis_url: str, tmp_path: Path) -> None:
    given = lines("a", "b") + json.dumps(BAD).encode() + b"\n"
    with worker(redis_url):
        done = piped(redis_url, "batch", "-", "-", given=given, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert custom_ids(done.stdout) == ["a", "b"]
        (failure,) = [json.loads(each) for each in done.stderr.splitlines() if each.startswith("{")]
        assert (failure["custom_id"], failure["error"]["param"]) == ("bad", "method")
        assert "2 in stdout" in done.stderr
        assert "1 failed: see stderr" in done.stderr
        kept = piped(redis_url, "batch", "-", "-", "--errors", "errors.jsonl", given=given, cwd=tmp_path)
        assert kept.returncode == 1
        assert custom_ids((tmp_path / "errors.jsonl").read_text()) == ["bad"]
        whole = piped(redis_url, "batch", "-", "-", "--errors", "-", given=given, cwd=tmp_path)
        assert custom_ids(whole.stdout) == ["a", "b", "bad"]
    assert [path.name for path in tmp_path.iterdir()] == ["errors.jsonl"]


def test_stdin_with_nothing_in_it_is_refused(redis_url: str, tmp_path: Path) -> None:
    done = piped(redis_url, "batch", "-", "out.jsonl", given=b"\n", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin has no requests: one JSON object on each line" in " ".join(done.stderr.replace("│", "").split())
    assert not list(tmp_path.iterdir())


def test_stdin_to_a_file_goes_on_with_the_same_lines(redis_url: str, tmp_path: Path) -> None:
    """The file keeps the ids, so what was enqueued is not enqueued again."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines("a", "b", "c"))
    with started(redis_url, "batch", str(source), str(tmp_path / "out.jsonl")) as batch:
        eventually_blocking(lambda: len(entries(redis_url, "low")) == 3, WITHIN_S, "all are enqueued")
        batch.kill()
    with worker(redis_url):
        done = piped(redis_url, "batch", "-", "out.jsonl", given=source.read_bytes(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert custom_ids((tmp_path / "out.jsonl").read_text()) == ["a", "b", "c"]
    assert streamfleet(redis_url, "audit").stdout.splitlines()[-1].startswith("accepted=3 ")


def test_stdout_keeps_nothing_but_a_prefix_finds_what_is_answered(redis_url: str, tmp_path: Path) -> None:
    def accepted() -> str:
        return streamfleet(redis_url, "audit").stdout.splitlines()[-1].split()[0]

    with worker(redis_url):
        for count in ("accepted=2", "accepted=2"):
            done = piped(redis_url, "batch", "-", "-", "--id-prefix", "night", given=lines("a", "b"), cwd=tmp_path)
            assert (custom_ids(done.stdout), accepted()) == (["a", "b"], count)
        piped(redis_url, "batch", "-", "-", given=lines("a", "b"), cwd=tmp_path)
        assert accepted() == "accepted=4"


@pytest.mark.parametrize(
    ("more", "said"), [([], "The same command begins anew."), (["--id-prefix", "n"], "Run the same command again")]
)
def test_an_interrupted_batch_to_stdout_promises_no_more_than_it_can(
    redis_url: str, tmp_path: Path, more: list[str], said: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines("a"))
    with started(redis_url, "batch", str(tmp_path / "in.jsonl"), "-", *more) as batch:
        eventually_blocking(lambda: bool(entries(redis_url, "low")), WITHIN_S, "it is enqueued")
        batch.send_signal(signal.SIGINT)
        stdout, stderr = batch.communicate(timeout=WITHIN_S)
    assert (batch.returncode, stdout) == (130, "")
    assert said in stderr


def test_a_reader_that_has_enough_ends_it_in_silence(redis_url: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(*(f"r{number}" for number in range(50))))
    with worker(redis_url), started(redis_url, "batch", str(source), "-", "--window", "1") as batch:
        assert batch.stdout is not None
        batch.stdout.readline()
        batch.stdout.close()
        batch.stdout = None
        _, stderr = batch.communicate(timeout=WITHIN_S)
    assert batch.returncode == 1
    assert "Traceback" not in stderr


def test_a_damaged_gzip_file_sends_nothing(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines("a", "b"))[:-9])
    done = piped(redis_url, "batch", "in.jsonl.gz", "out.jsonl", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("streamfleet: in.jsonl.gz is a damaged gzip file: ")
    assert not entries(redis_url, "low")


LABELS = ["--tenant", "acme", "--session", "chat-17", "--program", "agent-3"]
CARRIED = {"tenant": "acme", "session": "chat-17", "program": "agent-3"}


def test_labels_are_carried(redis_url: str, tmp_path: Path) -> None:
    assert streamfleet(redis_url, "enqueue", "hi", *LABELS).returncode == 0
    (tmp_path / "in.jsonl").write_bytes(lines("a"))
    with started(redis_url, "batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), *LABELS) as batch:
        eventually_blocking(lambda: bool(entries(redis_url, "low")), WITHIN_S, "it is enqueued")
        batch.kill()
    for lane in ("normal", "low"):
        (fields,) = entries(redis_url, lane)
        assert CARRIED.items() <= fields.items()


def test_a_prompt_in_place_of_an_option_and_stdout_has_the_text_alone(redis_url: str) -> None:
    question = "What is the capital of France?"
    with worker(redis_url):
        done = piped(redis_url, "enqueue", question, "--max-tokens", "4", "--wait", "--id", "r-1")
        assert (done.returncode, done.stderr) == (0, "request r-1\n")
        whole = json.loads(piped(redis_url, "enqueue", question, "--max-tokens", "4", "--wait", "--json").stdout)
        assert done.stdout == f"{whole['response']['choices'][0]['message']['content']}\n"
        assert piped(redis_url, "enqueue", "--prompt", question, "--max-tokens", "4", "--id", "r-1").returncode == 0
        failed = piped(redis_url, "enqueue", "hi", "--max-tokens", "9999999", "--wait")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert " failed: " in failed.stderr
