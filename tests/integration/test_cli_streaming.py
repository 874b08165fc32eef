"""Answers printed while they come: `streamfleet enqueue --stream` and `streamfleet result --stream`."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.integration.cli_processes import WITHIN_S, command, environment, streamfleet, worker
from tests.integration.worker_process import chat

BODY = json.dumps(chat(0.3))
TEXT = " ".join(["[simulated]", *["Say", "hi"] * 14, "Say"])


def test_an_answer_is_printed_while_it_comes(redis_url: str) -> None:
    with worker(redis_url):
        done = streamfleet(redis_url, "enqueue", "--body", BODY, "--id", "r-1", "--stream")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{TEXT}\n", "request r-1\n")
        again = streamfleet(redis_url, "result", "r-1", "--stream")
        assert (again.returncode, again.stdout) == (0, f"{TEXT}\n")
        lines = streamfleet(redis_url, "result", "r-1", "--stream", "--json").stdout.splitlines()
        chunks = [json.loads(line) for line in lines]
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT


def test_it_is_flushed_word_by_word(redis_url: str) -> None:
    with worker(redis_url):
        words = command("enqueue", "--body", json.dumps(chat(60)), "--id", "r-1", "--stream")
        with subprocess.Popen(
            words, env=environment(redis_url), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            assert process.stdout.read(11) == b"[simulated]"
            assert streamfleet(redis_url, "cancel", "r-1").returncode == 0
            process.stdout.read()
            assert process.wait(WITHIN_S) == 1


def test_an_answer_that_fails_is_one_line(redis_url: str) -> None:
    with worker(redis_url):
        done = streamfleet(redis_url, "enqueue", "--body", '{"messages": "hi"}', "--id", "r-1", "--stream")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1].startswith("request r-1 failed: messages")


def test_what_was_not_streamed_is_printed_whole(redis_url: str) -> None:
    with worker(redis_url):
        streamfleet(redis_url, "enqueue", "--body", BODY, "--id", "r-1")
        done = streamfleet(redis_url, "result", "r-1", "--stream", "--timeout", "20")
        assert (done.returncode, done.stdout) == (0, f"{TEXT}\n")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ("enqueue", "--prompt", "hi", "--stream", "--timeout", "0.05", "--id", "r-1"),
            1,
            "request r-1 has not ended after 0.05 s",
        ),
        (("result", "r-1", "--stream", "--timeout", "0.05"), 1, "request r-1 has not ended after 0.05 s"),
        (("enqueue", "--prompt", "hi", "--json"), 2, "give --stream too"),
    ],
    ids=["enqueue", "result", "usage"],
)
def test_what_does_not_go_is_one_line(redis_url: str, words: tuple[str, ...], status: int, said: str) -> None:
    done = streamfleet(redis_url, *words)
    assert done.returncode == status
    assert said in done.stderr
