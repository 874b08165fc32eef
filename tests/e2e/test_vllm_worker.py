"""The whole way with real vLLM: a plain XADD, a worker process, a keyed answer; then cancel it, kill it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis.asyncio

from streamfleet.cli.demo.server import free_port
from streamfleet.producer import Chunk, Client
from streamfleet.worker.engine.processes import Process, alive, command_line, descendants
from tests.waiting import eventually

pytestmark = [pytest.mark.needs_vllm, pytest.mark.kill, pytest.mark.timeout(480)]

START_S = 240.0
WELL_BEFORE_ITS_END_S = 3.0
LANE = "{default}:lane:high"
HI = '{"messages":[{"role":"user","content":"Say hi"}],"max_tokens":8}'
LONG = {
    "messages": [{"role": "user", "content": "Tell me a very long story."}],
    "max_tokens": 1900,
    "min_tokens": 1900,
}


@dataclass(frozen=True)
class Worker:
    """A worker process with vLLM in it."""

    process: asyncio.subprocess.Process
    health_port: int
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def engine_processes(self) -> dict[str, Process]:
        """By vLLM's title for them: "EngineCore" and "Worker"."""
        titles = {process: command_line(process) for process in descendants(self.pid)}
        return {title.split("::")[1].split()[0]: process for process, title in titles.items() if "VLLM::" in title}

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=5) as page:
            return str(page.read().decode())

    def running_in_engine(self) -> float:
        """vLLM's own count of what it runs, from the page that serves both."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))


@asynccontextmanager
async def vllm_worker(redis_url: str, model: Path, log: Path, collector: str = "") -> AsyncIterator[Worker]:
    """A worker; with the address of a collector, it and its engine send their spans there."""
    port = free_port()
    traces = {
        "STREAMFLEET_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    environment = {
        **os.environ,
        "REDIS_URL": redis_url,
        "STREAMFLEET_HEALTH_PORT": str(port),
        "STREAMFLEET_LEASE_MS": "2000",
        **(traces if collector else {}),
    }
    command = [sys.executable, "-m", "streamfleet.cli", "worker", "--engine", "vllm", "--model", str(model)]
    command += ["--", "--max-num-seqs", "8", "--max-model-len", "2048"]
    command += ["--otlp-traces-endpoint", f"{collector}/v1/traces"] if collector else []
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=out, stderr=out)
    worker = Worker(process, port, log)
    try:
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def is_ready(worker: Worker) -> bool:
    assert worker.process.returncode is None, worker.log.read_text()[-3000:]
    try:
        return bool(await asyncio.to_thread(worker.get, "/readyz"))
    except OSError:
        return False


async def tokens_come_before_the_result(redis_url: str) -> None:
    """A streamed answer says the same as one that is not, and begins before it ends."""
    body = {"messages": [{"role": "user", "content": "Count to twenty."}], "max_tokens": 200, "temperature": 0}
    body["min_tokens"] = 200  # long enough to be looked at meanwhile
    async with Client(redis_url) as client:
        plain = await (await client.enqueue(body)).result(30)
        handle = await client.enqueue(body, stream=True)
        chunks: list[Chunk] = []
        async for chunk in handle.stream():
            if not any(before.text for before in chunks) and chunk.text:
                assert await client.broker.result(handle.id) is None, "the first token comes before the result"
            chunks.append(chunk)
        result = await handle.result(10)
    assert "".join(chunk.text for chunk in chunks) == result.text == plain.text
    assert len(chunks) > 10
    assert result.finish_reason == plain.finish_reason
    assert (result.usage or {})["completion_tokens"] == (plain.usage or {})["completion_tokens"]
    assert result.timings.first_token_ms is not None


async def test_an_xadd_is_answered_a_running_request_cancelled_and_a_killed_worker_leaves_nothing(
    redis_url: str, raw_redis: redis.asyncio.Redis, smollm2: Path, tmp_path: Path
) -> None:
    from tests.integration.otlp import receiver  # needs OpenTelemetry, which comes with vLLM

    with receiver() as collected:
        async with vllm_worker(redis_url, smollm2, tmp_path / "worker.log", collected.url) as worker:
            # Enqueued before anybody works: the groups start at 0, so nothing is missed.
            await raw_redis.xadd(LANE, {"id": "r-42", "body": HI})
            await eventually(lambda: is_ready(worker), START_S, "the worker is ready")
            status = await eventually(
                lambda: raw_redis.hget("{default}:result:r-42", "status"), 30, "r-42 has a result"
            )
            result = await raw_redis.hgetall("{default}:result:r-42")
            assert status == "succeeded"
            assert json.loads(result["response"])["choices"][0]["message"]["content"]
            assert json.loads(result["usage"])["completion_tokens"] > 0
            assert float(result["first_token_ms"]) > 0
            assert await raw_redis.xlen(LANE) == 0
            # Two processes send them, each when it gets to it.
            (generated,) = await eventually(lambda: collected.named("llm_request"), 10, "vLLM's own span")
            (ran,) = await eventually(lambda: collected.named("streamfleet.run"), 10, "the worker's span around it")
            assert (generated.trace, generated.parent) == (ran.trace, ran.id)
            await tokens_come_before_the_result(redis_url)

            async with Client(redis_url) as client:
                handle = await client.enqueue(LONG)
                await eventually(lambda: asyncio.to_thread(worker.running_in_engine), 20, "it runs in the engine")
                cancelled_at = time.monotonic()
                await handle.cancel()
                await eventually(
                    lambda: asyncio.to_thread(lambda: worker.running_in_engine() == 0),
                    WELL_BEFORE_ITS_END_S,
                    "it is gone from the engine",
                )
                assert time.monotonic() - cancelled_at < WELL_BEFORE_ITS_END_S
                assert (await handle.result(timeout=5)).status == "cancelled"

                await client.enqueue(LONG)
                await eventually(lambda: asyncio.to_thread(worker.running_in_engine), 20, "another one runs")
            family = descendants(worker.pid)
            assert set(worker.engine_processes()) == {"EngineCore", "Worker"}
            worker.process.kill()
            await eventually(lambda: not [p for p in family if alive(p)], 10, "no process of the engine is left")
