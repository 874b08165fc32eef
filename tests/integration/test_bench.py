"""`streamfleet bench` on a queue with a real worker, and against servers, good and bad."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from streamfleet.cli.requests.bench_load import Answer, run_step
from tests.integration.cli_processes import WITHIN_S, Ended, command, environment, piped, streamfleet
from tests.integration.sse_server import Behaviour, sse_server
from tests.integration.worker_process import Fleet, WorkerProcess
from tests.waiting import eventually

NOBODY = "redis://127.0.0.1:1"


def bench(redis_url: str, *arguments: str) -> Ended:
    """Run the command to its end, in a process of its own."""
    return piped(redis_url, "bench", *arguments)


def asked(url: str, *arguments: str, **more: str) -> Ended:
    """Run the command against a server, inside this process, which is faster."""
    return streamfleet(NOBODY, "bench", "--url", url, *arguments, **more)


def steps(ended: Ended) -> list[dict[str, Any]]:
    """Figures of a command with --json that went well."""
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


async def ready(fleet: Fleet, **settings: Any) -> WorkerProcess:
    """A worker that says in Redis that it takes requests."""

    async def said() -> bool:
        return any(worker.get("state") == "ready" for worker in (await fleet.broker.workers()).values())

    worker = await fleet.worker("w1", **settings)
    await eventually(said, 10, "the worker says that it is ready")
    return worker


# -- on a queue --------------------------------------------------------------------------------------------


async def test_a_queue_is_measured_with_real_workers(fleet: Fleet, tmp_path: Path) -> None:
    await ready(fleet, simulated_profile="smollm2-cpu", speed=4)
    plot = tmp_path / "bench.svg"
    more = ("--plot", str(plot)) if importlib.util.find_spec("matplotlib") else ()
    given = ("-c", "1,4", "--requests", "8", "--output-tokens", "16", *more)
    ended = await asyncio.to_thread(bench, fleet.url, *given, "--json")
    one, four = steps(ended)
    assert [one["concurrency"], four["concurrency"]] == [1, 4]
    for step in (one, four):
        assert step["requests"] == 8
        assert step["tokens_per_s"] == pytest.approx(8 * 16 / step["seconds"]), "answers have the exact length"
        assert step["requests_per_s"] == pytest.approx(8 / step["seconds"])
        assert 0 < step["first_token_p50_ms"] < step["p50_ms"] <= step["p95_ms"] <= step["p99_ms"]
        assert step["gpu_percent"] is None
    assert four["tokens_per_s"] > one["tokens_per_s"]
    assert one["in_engine"] <= 1.01 < four["in_engine"] <= 4.01, "the batch grows with the concurrency"
    assert "warming up with 4 requests" in ended.stderr
    assert "4 at once: 8 answers in" in ended.stderr, "progress, though nobody is at a terminal"
    assert not more or "<svg" in plot.read_text(encoding="utf-8")
    assert await fleet.finished() == 4 + 8 + 8
    await fleet.settled()


async def test_the_chunk_that_names_the_role_is_no_token(fleet: Fleet) -> None:
    with sse_server(Behaviour(thinks_s=0.2)) as url:
        await ready(fleet, engine="openai", vllm_url=url)
        for target in ((), ("--url", url)):
            ended = await asyncio.to_thread(bench, fleet.url, *target, "-c", "1", "--requests", "2", "--json")
            (step,) = steps(ended)
            assert step["first_token_p50_ms"] >= 200


async def test_a_worker_that_hangs_ends_it_in_bounded_time_and_leaves_nothing_behind(fleet: Fleet) -> None:
    worker = await ready(fleet, lease_ms=30_000)
    worker.send(signal.SIGSTOP)
    began_s = time.monotonic()
    ended = await asyncio.to_thread(bench, fleet.url, "-c", "2", "--timeout", "1", "--seconds", "60")
    assert ended.returncode == 1
    assert "no whole answer after 1 s (--timeout)" in ended.stderr
    assert time.monotonic() - began_s < 20
    assert (await fleet.broker.audit()).counts["cancelled"] > 0, "what runs no more for anybody is cancelled"
    worker.send(signal.SIGCONT)
    await fleet.settled()


def test_without_a_live_worker_it_says_so(redis_url: str) -> None:
    ended = bench(redis_url, "--queue", "empty")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("streamfleet: no worker of queue empty takes requests: start `streamfleet worker`")


def test_a_redis_that_does_not_answer_is_named() -> None:
    ended = bench(NOBODY)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "127.0.0.1:1" in ended.stderr


async def test_a_request_that_fails_ends_it_with_its_words(fleet: Fleet) -> None:
    await ready(fleet)
    ended = await asyncio.to_thread(bench, fleet.url, "-c", "1", "--prompt-tokens", "9000")
    assert ended.returncode == 1
    assert "a request failed:" in ended.stderr
    assert "context length" in ended.stderr


# -- against a server --------------------------------------------------------------------------------------


def test_a_server_is_measured() -> None:
    acts = Behaviour(wait_s=0.03)
    with sse_server(acts) as url:
        found = steps(asked(url, "-c", "1,3", "--requests", "6", "--json"))
        bare = url.removesuffix("/v1")
        keyed = asked(bare, "-c", "1", "--api-key-variable", "KEY", "--model", "other", KEY=" secret\n")
    assert [step["requests"] for step in found] == [6, 6]
    for step in found:
        assert step["tokens_per_s"] == pytest.approx(6 * 4 / step["seconds"])
        assert step["first_token_p50_ms"] >= 30
        assert step["in_engine"] is None
    assert acts.keys[0] is None
    assert keyed.returncode == 0, keyed.stderr
    assert acts.keys[-1] == "Bearer secret"
    assert len(acts.bodies) == 3 + 6 + 6 + 1 + 8, "as many to warm up as the largest step has at once"
    assert {body["model"] for body in acts.bodies[:15]} == {"first"}
    assert {body["model"] for body in acts.bodies[15:]} == {"other"}
    assert all(body["stream"] and body["stream_options"] == {"include_usage": True} for body in acts.bodies)
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in acts.bodies)
    assert acts.priorities == {"0"}, "as of requests without one, which a server may refuse"
    assert "in engine" not in keyed.stdout


def test_the_same_seed_makes_the_same_prompts_of_the_given_length() -> None:
    acts = Behaviour()
    with sse_server(acts) as url:
        for seed in ("7", "7", "8"):
            asked(url, "-c", "1", "--requests", "2", "--prompt-tokens", "12", "--seed", seed)
    prompts = [body["messages"][0]["content"] for body in acts.bodies]
    assert len(prompts) == 9
    assert prompts[:3] == prompts[3:6]
    assert len({*prompts[:3], *prompts[6:]}) == 6
    assert {len(prompt.split()) for prompt in prompts} == {12}


def test_prompts_come_from_a_file_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text('Say hi\n\n{"prompt": "Go on"}\n', encoding="utf-8")
    acts = Behaviour()
    with sse_server(acts) as url:
        given = ("-c", "1", "--requests", "2", "--prompts", str(file), "--output-tokens", "9")
        assert asked(url, *given).returncode == 0
    said = [body["messages"] for body in acts.bodies]
    hi, on = ([{"role": "user", "content": line}] for line in ("Say hi", '{"prompt": "Go on"}'))
    assert said == [hi, on, hi]
    assert {body["max_tokens"] for body in acts.bodies} == {9}
    assert not any("ignore_eos" in body for body in acts.bodies)


BAD = {
    "401": (Behaviour(status=401), "answers 401", "--api-key-variable"),
    "403": (Behaviour(status=403), "answers 403", "--api-key-variable"),
    "400": (Behaviour(status=400), "answers 400", "it is broken"),
    "500": (Behaviour(status=500), "answers 500", "it is broken"),
    "no SSE": (Behaviour(kind="application/json"), "does not stream its answers", "SSE"),
    "broken off": (Behaviour(breaks_off=True), "/v1/chat/completions", ""),
    "hang": (Behaviour(hangs=True), "no whole answer after 1 s", "--timeout"),
    "silence": (Behaviour(wait_s=3), "no whole answer after 1 s", "--timeout"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_ends_it_with_one_clear_line(name: str) -> None:
    acts, *words = BAD[name]
    began_s = time.monotonic()
    with sse_server(acts) as url:
        ended = asked(url, "-c", "1,2", "--timeout", "1")
    assert (ended.returncode, ended.stdout) == (1, "")
    said = [line for line in ended.stderr.splitlines() if line.startswith("streamfleet: ")]
    assert len(said) == 1
    assert all(word in said[0] for word in words), said
    assert "Traceback" not in ended.stderr
    assert time.monotonic() - began_s < 20


def test_nobody_at_the_address_is_said() -> None:
    ended = asked("http://127.0.0.1:1/v1")
    assert ended.returncode == 1
    assert "http://127.0.0.1:1" in ended.stderr.splitlines()[-1]


def test_steps_before_a_failure_are_shown() -> None:
    acts = Behaviour(status=500, good=2 + 8 + 3)
    with sse_server(acts) as url:
        ended = asked(url, "-c", "1,2", "--json")
    assert ended.returncode == 1
    assert [step["concurrency"] for step in json.loads(ended.stdout)] == [1]
    assert "answers 500" in ended.stderr


def test_a_server_that_counts_no_tokens_has_no_tokens_a_second() -> None:
    with sse_server(Behaviour(counts=False)) as url:
        (step,) = steps(asked(url, "-c", "1", "--json"))
    assert step["tokens_per_s"] is None
    assert step["requests"] == 8


def test_a_step_ends_with_its_seconds_whatever_it_has_left() -> None:
    acts = Behaviour(wait_s=0.05)
    with sse_server(acts) as url:
        given = ("-c", "2", "--requests", "1000000", "--seconds", "0.5", "--json")
        (step,) = steps(asked(url, *given))
    assert 2 <= step["requests"] <= 20
    assert 0.5 <= step["seconds"] < 10


# -- the client as the limit, GPUs ---------------------------------------------------------------------------


async def _step(work: Any) -> Any:
    async def ask(_: dict[str, Any]) -> Answer:
        began_s = time.perf_counter()
        await work()
        return Answer(began_s, None, time.perf_counter(), None)

    return await run_step(ask, 2, itertools.repeat({}), 10, 60.0, 60.0)


async def test_a_client_that_computes_all_the_time_is_the_limit() -> None:
    async def compute() -> None:
        until_s = time.perf_counter() + 0.1
        while time.perf_counter() < until_s:
            pass
        await asyncio.sleep(0)

    found = await _step(compute)
    assert found["client_limit"] is not None
    assert found["client_cpu_percent"] >= 90 or found["client_late_ms"] >= 50


async def test_a_client_that_waits_all_the_time_uses_no_core() -> None:
    found = await _step(lambda: asyncio.sleep(0.05))
    assert found["client_cpu_percent"] < 50


def test_the_busiest_gpu_is_shown_where_nvml_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    (tmp_path / "pynvml.py").write_text(
        "from types import SimpleNamespace\n"
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetCount(): return 2\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetUtilizationRates(gpu): return SimpleNamespace(gpu=(30, 75)[gpu])\n",
        encoding="utf-8",
    )
    with sse_server(Behaviour(wait_s=0.1)) as url:
        (step,) = steps(asked(url, "-c", "1", "--json"))
        monkeypatch.setattr("pynvml.nvmlInit", mock.Mock(side_effect=OSError("no driver")))
        (without,) = steps(asked(url, "-c", "1", "--json"))
        said = asked(url, "-c", "1").stderr.splitlines()
    assert [line.split(":")[0] for line in said] == ["warming up with 1 requests", "1 at once"], "no line a request"
    assert step["gpu_percent"] == 75
    assert without["gpu_percent"] is None


# -- the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--concurrency 1,x", "--concurrency: must be numbers of 1 to 10000"),
        ("--concurrency 0", "--concurrency: must be numbers of 1 to 10000"),
        ("--concurrency 8 --requests 4", "--requests: 4 requests are never 8 at once"),
        ("--url http://localhost:1 --queue chat", "give --url, or --queue and --redis-url, not both"),
        ("--url localhost:8000", "--url:"),
        ("--url http://localhost:1 --api-key-variable NO_SUCH_KEY", "the environment has no NO_SUCH_KEY"),
        ("--seconds nan", "Invalid value for '--seconds'"),
        ("--timeout inf", "Invalid value for '--timeout'"),
        ("--plot /no/such/folder/a.svg", "must end with .svg, and its folder must be there"),
        ("--plot bench.png", "must end with .svg"),
        ("--prompts /dev/null", "has no line with a prompt"),
        ("--prompts /bin/sh", "--prompts: /bin/sh is not UTF-8"),
    ],
)
def test_wrong_usage_names_the_option(arguments: str, said: str) -> None:
    ended = streamfleet(NOBODY, "bench", *arguments.split())
    assert ended.returncode == 2
    assert said in " ".join(ended.stderr.replace("│", " ").split())


def test_a_terminal_gets_a_table() -> None:
    main, side = pty.openpty()
    with sse_server(Behaviour()) as url:
        words = command("bench", "--url", url, "-c", "1,2")
        process = subprocess.run(
            words,
            env=environment(NOBODY, NO_COLOR="1", TERM="dumb", LINES="50"),
            stdout=side,
            stderr=subprocess.PIPE,
            timeout=WITHIN_S,
            check=False,
        )
    os.close(side)
    assert process.returncode == 0, process.stderr
    head, _, *rows = os.read(main, 65_536).decode().replace("\r", "").splitlines()
    os.close(main)
    assert head.split()[:3] == ["at", "once", "requests/s"]
    assert [row.split()[0] for row in rows[:2]] == ["1", "2"]
