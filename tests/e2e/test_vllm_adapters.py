"""One real vLLM engine, its model and two LoRA adapters, three queues: each answered by its own within its deadline.

`sql` is loaded at the start, `poems` by vLLM itself when the first request asks for it. The last test kills the worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamfleet.producer import Client
from tests.e2e.adapters import make_adapter
from tests.integration.gateway_process import GatewayProcess, gateway_on
from tests.integration.worker_process import Fleet, WorkerProcess
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.long, pytest.mark.needs_vllm, pytest.mark.timeout(900)]

MODELS = {"base": "chat", "sql": "queries", "poems": "poems"}
ROUTES = ",".join(f"{model}={queue}" for model, queue in MODELS.items())
ARGS = "--served-model-name base --dtype float32 --max-num-seqs 8 --max-model-len 1024 --enable-lora --max-loras 2"
SHARED = "The library of the old town lends books, maps and instruments to all who live there. " * 20
DEADLINE_MS = 240_000


def asked(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me of bridges and of those who built them."}]
    return {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}


class Scene:
    """Redis, a worker on three queues, a gateway."""

    def __init__(self, url: str, folder: Path, worker: WorkerProcess, gateway: GatewayProcess) -> None:
        self.url, self.folder, self.worker, self.gateway = url, folder, worker, gateway


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("sql", "poems")):
        make_adapter(folder / "loras" / name, smollm2, seed)
    with pytest.MonkeyPatch.context() as patch, RedisServer(newest(find_servers())) as server:
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        patch.setenv("VLLM_PLUGINS", "lora_filesystem_resolver")
        patch.setenv("VLLM_LORA_RESOLVER_CACHE_DIR", str(folder / "loras"))
        settings: dict[str, Any] = {
            "engine": "vllm",
            "model": smollm2,
            "engine_args": f"{ARGS} --lora-modules sql={folder}/loras/sql",
            "worker_models": ROUTES,
            "lease_ms": 2_000,
        }
        worker = WorkerProcess(server.url, folder, "w1", **settings)
        try:
            with gateway_on(server.url, folder, gateway_models=ROUTES, gateway_keys="off") as gateway:
                eventually_blocking(lambda: len(worker.events("worker_ready")) == 3 or not worker.alive, 300)
                assert worker.alive, worker.printed()[-3_000:]
                yield Scene(server.url, folder, worker, gateway)
        finally:
            worker.destroy()


@pytest.fixture
async def queues(scene: Scene) -> AsyncIterator[dict[str, Fleet]]:
    fleets = {model: Fleet(scene.url, scene.folder, queue) for model, queue in MODELS.items()}
    yield fleets
    for fleet in fleets.values():
        await fleet.close()


async def test_each_queue_is_answered_by_its_own_adapter(scene: Scene, queues: dict[str, Fleet]) -> None:
    """By plain XADD into a queue, by the client, and by the gateway's choice of the model: the same answer."""
    texts: dict[str, str] = {}
    for model, fleet in queues.items():
        await fleet.add("plain", "normal", asked(), ttl=str(DEADLINE_MS))
        result = await fleet.result("plain", 60)
        assert result.ok, (model, result.error)
        texts[model] = result.text
        async with Client(scene.url, queue=MODELS[model]) as client:
            again = await (await client.enqueue(asked(), ttl_ms=DEADLINE_MS)).result(60)
        assert (again.ok, again.text) == (True, result.text)
    assert len(set(texts.values())) == 3, texts
    async with httpx.AsyncClient(base_url=scene.gateway.url, timeout=60) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert {model["id"] for model in listed} == set(MODELS)
        for model, text in texts.items():
            answer = (await http.post("/v1/chat/completions", json=asked(model=model))).json()
            assert answer["choices"][0]["message"]["content"] == text, model
        nobody = await http.post("/v1/chat/completions", json=asked(model="nobody"))
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "model_not_found")
    await queues["sql"].add("wrong", "normal", asked(model="nobody"))
    refused = await queues["sql"].result("wrong")
    assert (refused.status, refused.http_status) == ("failed", 404)
    assert "nobody" in (refused.error or {})["message"]


async def test_two_full_queues_are_answered_within_their_deadlines(queues: dict[str, Fleet]) -> None:
    ids = [f"many-{number}" for number in range(24)]
    for fleet in (queues["sql"], queues["poems"]):
        for identity in ids:
            await fleet.add(identity, "normal", asked(max_tokens=24), ttl=str(DEADLINE_MS))
    for fleet in (queues["sql"], queues["poems"]):
        results = await fleet.results(ids, 250)
        assert {result.status for result in results} == {"succeeded"}
        assert max(result.timings.total_ms or 0 for result in results) < DEADLINE_MS
        assert len({result.text for result in results}) == 1
        await fleet.settled()


async def test_cached_tokens_are_told_and_an_adapter_shares_none(scene: Scene, queues: dict[str, Fleet]) -> None:
    async def cached(model: str, identity: str) -> int:
        body = {"prompt": f"{SHARED}{identity}", "max_tokens": 4, "temperature": 0}
        await queues[model].add(identity, "normal", body)
        result = await queues[model].result(identity, 30)
        assert result.ok, result.error
        return result.cached_tokens

    assert await cached("sql", "first") == 0
    assert await cached("sql", "second") >= 256
    assert await cached("poems", "third") == 0
    assert scene.worker.metric("streamfleet_tokens_cached_total") >= 256
    async with httpx.AsyncClient(base_url=scene.gateway.url, timeout=60) as http:
        body = {"model": "sql", "prompt": f"{SHARED}fourth", "max_tokens": 4}
        usage = (await http.post("/v1/completions", json=body)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 256
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = (await http.post("/v1/completions", json=body | options)).text
        last = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")][-1]
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256


async def test_work_of_both_adapters_survives_the_death_of_their_worker(
    scene: Scene, queues: dict[str, Fleet], smollm2: Path
) -> None:
    for model in ("sql", "poems"):
        for number in range(3):
            await queues[model].add(f"long-{number}", "normal", asked(max_tokens=400))
        await queues[model].runs({"w1": 3})
    os.kill(scene.worker.pid, signal.SIGKILL)
    await asyncio.to_thread(eventually_blocking, lambda: not scene.worker.alive, 10)
    loras = [f"{name}={scene.folder}/loras/{name}" for name in ("sql", "poems")]
    second = WorkerProcess(
        scene.url,
        scene.folder,
        "w2",
        engine="vllm",
        model=smollm2,
        engine_args=f"{ARGS} --lora-modules {' '.join(loras)}",
        worker_models=ROUTES,
        lease_ms=2_000,
    )
    try:
        there = lambda: len(second.events("worker_ready")) == 3 or not second.alive  # noqa: E731
        await asyncio.to_thread(eventually_blocking, there, 300)
        assert second.alive, second.printed()[-3_000:]
        for model in ("sql", "poems"):
            results = await queues[model].results([f"long-{number}" for number in range(3)], 180)
            assert {(result.ok, result.worker, result.attempt) for result in results} == {(True, "w2", 2)}
            await queues[model].settled()
    finally:
        second.destroy()
