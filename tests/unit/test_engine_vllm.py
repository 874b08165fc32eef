"""The vllm engine reads its application's answers. A small ASGI application stands in for vLLM's; the real one is in
tests/contract and tests/e2e.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, Field
from structlog.testing import capture_logs

from streamfleet.common.protocol import CHAT, ENDPOINTS, MESSAGES, Lane
from streamfleet.worker.engine import vllm, vllm_host
from streamfleet.worker.engine.asgi import Application, Receive, Send
from streamfleet.worker.engine.base import (
    Capacity,
    EngineAborted,
    EngineDied,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
)
from streamfleet.worker.engine.vllm import VllmEngine
from streamfleet.worker.engine.vllm_host import Hosted, VllmMoved, find_names


class Front:
    """Stands in for AsyncLLM: one output with metrics for each call."""

    def __init__(self) -> None:
        self.errored = False

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(metrics=SimpleNamespace(first_token_latency=0.025))

    async def encode(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace()

    def shutdown(self, timeout: float) -> None:
        assert timeout == 0


class Stand:
    """An application that answers as it is told."""

    def __init__(self) -> None:
        self.front = Front()
        self.args = SimpleNamespace(
            scheduling_policy="priority", served_model_name=["m"], model="m", lora_modules=None, api_key=None
        )
        self.status = 200
        self.body = b'{"choices": [{"finish_reason": "stop"}]}'
        self.raises: Exception | None = None
        self.headers: dict[str, str] = {}
        self.inside: int | None = None
        self.asked: dict[str, Any] = {}
        self.streams: Callable[[Send], Awaitable[None]] | None = None
        self.engine: VllmEngine | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.asked = json.loads((await receive())["body"])
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        async for _ in self.front.generate():
            self.inside = self.engine.inside if self.engine else None
        if self.raises is not None:
            raise self.raises
        if self.streams is not None:
            return await self.streams(send)
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": self.body})
        return None


@pytest.fixture
async def stand(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    stand = Stand()

    async def open_application(_hosted: Hosted, _stack: AsyncExitStack) -> Application:
        return stand

    monkeypatch.setattr(vllm_host, "build", lambda *_: Hosted(stand.front, stand.args))
    monkeypatch.setattr(vllm_host, "open_application", open_application)
    monkeypatch.setattr(vllm, "prepare_environment", lambda *_, **__: None)
    monkeypatch.setattr(vllm, "check_libraries", lambda: None)
    stand.engine = VllmEngine("m", cpu=True)
    await stand.engine.start()
    yield stand
    await stand.engine.stop()


async def run(stand: Stand) -> EngineReply:
    assert stand.engine is not None
    return await stand.engine.run(EngineRequest("r-1", CHAT, {"messages": []}, Lane.HIGH, 1_790_000_000_000))


def there(path: str) -> bool:
    return Path(path).exists()


@pytest.mark.parametrize("starts", [True, False])
async def test_what_its_processes_leave_is_gone_with_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    def build(*_: object) -> Hosted:
        for name in ("VLLM_RPC_BASE_PATH", "TMPDIR"):
            (Path(os.environ[name]) / f"vllm_dist_{name}").touch()
        used.append(os.environ["TMPDIR"])
        if not starts:
            raise ValueError("no")
        return Hosted(stand.front, stand.args)

    used: list[str] = []
    monkeypatch.setattr(vllm_host, "build", build)
    engine = VllmEngine("m", cpu=True)
    with contextlib.suppress(ValueError):
        await engine.start()
    assert there(used[0]) == starts
    await engine.stop()
    assert not there(used[0])


def test_an_idle_engine_uses_none_of_its_kv_cache_whatever_its_last_step_said() -> None:
    engine = VllmEngine("m", cpu=True)
    engine._steps.record(SimpleNamespace(kv_cache_usage=0.5))
    assert engine.kv_use == 0
    engine._watchdog.entered()
    assert engine.kv_use == 0.5


async def test_an_answer_comes_as_it_is_with_its_first_token(stand: Stand) -> None:
    reply = await run(stand)
    assert (reply.status, reply.body) == (200, stand.body)
    assert reply.first_token_ms == pytest.approx(25)
    assert stand.headers["x-request-id"] == "r-1"
    assert stand.asked == {"messages": [], "priority": 11_790_000_000}
    assert stand.inside == 1
    assert stand.engine is not None
    assert stand.engine.inside == 0


async def test_endpoints_are_those_of_the_applications_routes() -> None:
    """vLLM mounts what its model can do, and paths that no request may reach."""
    paths = ["/v1/responses", "/v1/chat/completions", "/v1/load_lora_adapter", "/v1/responses/{response_id}"]
    app = SimpleNamespace(routes=[*(SimpleNamespace(path=path) for path in paths), SimpleNamespace()])
    assert vllm_host.endpoints_of(app) == ("/v1/chat/completions", "/v1/responses")


async def test_no_priority_where_vllm_would_refuse_it(stand: Stand) -> None:
    stand.args.scheduling_policy = "fcfs"
    await run(stand)
    assert "priority" not in stand.asked


@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS))
async def test_every_endpoint_is_told_the_priority_where_vllm_reads_it(stand: Stand, endpoint: str) -> None:
    assert stand.engine is not None
    await stand.engine.run(EngineRequest("r-1", endpoint, {"input": "x"}, Lane.HIGH, 1_790_000_000_000))
    assert stand.asked["priority"] == 11_790_000_000
    if endpoint == MESSAGES:  # whose body has no such field
        assert stand.headers["x-vllm-priority"] == "11790000000"


def hosted(cores: int = 1, *, told: int | None = 160_000, blocks: int | None = None, **parallel: Any) -> Hosted:
    """As vLLM leaves its configuration: blocks of all cores together, all else of each."""
    config = SimpleNamespace(
        cache_config=SimpleNamespace(
            num_gpu_blocks=cores * 25_000 if blocks is None else blocks, block_size=16, kv_cache_size_tokens=told
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
        model_config=SimpleNamespace(max_model_len=8_192),
        parallel_config=SimpleNamespace(data_parallel_size=cores, **parallel),
    )
    return Hosted(SimpleNamespace(vllm_config=config), None)


def test_the_kv_cache_is_as_large_as_vllm_says() -> None:
    """For models of several kinds of layers, blocks times their size is up to six times too much."""
    with capture_logs() as logs:
        assert hosted().capacity() == Capacity(64, 160_000, 8_192)
    assert logs == []


def test_a_release_that_does_not_say_is_taken_by_its_blocks_and_that_is_logged() -> None:
    with capture_logs() as logs:
        assert hosted(told=None).capacity() == Capacity(64, 400_000, 8_192)
        older = hosted()
        del older.engine.vllm_config.cache_config.kv_cache_size_tokens
        assert older.capacity() == Capacity(64, 400_000, 8_192)
    assert [entry["event"] for entry in logs] == ["kv_capacity_by_blocks"] * 2


def test_a_model_without_a_kv_cache_is_limited_by_none() -> None:
    """vLLM then has one empty block in each core."""
    with capture_logs() as logs:
        assert hosted(told=None, blocks=1).capacity() == Capacity(64, None, 8_192)
        assert hosted(4, told=None, blocks=4).capacity() == Capacity(256, None, 8_192)
    assert logs == []


def test_the_capacity_is_that_of_all_cores_behind_this_front_end() -> None:
    assert hosted(4).capacity() == Capacity(256, 640_000, 8_192)
    assert hosted(4, told=None).capacity() == Capacity(256, 1_600_000, 8_192)
    outside = {"data_parallel_external_lb": True, "data_parallel_hybrid_lb": False, "data_parallel_size_local": 1}
    assert hosted(4, **outside).capacity() == Capacity(64, 160_000, 8_192)
    both = {"data_parallel_external_lb": False, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}
    assert hosted(4, **both).capacity() == Capacity(128, 320_000, 8_192)


async def test_a_key_of_vllms_own_does_not_lock_us_out(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k-env")
    await run(stand)
    assert stand.headers["authorization"] == "Bearer k-env"
    stand.args.api_key = ["k-arg"]
    await run(stand)
    assert stand.headers["authorization"] == "Bearer k-arg"


ABORTED = b'{"choices": [{"finish_reason": "abort"}]}'


@pytest.mark.parametrize(
    ("status", "body", "dead", "error"),
    [
        (200, ABORTED, False, EngineAborted),
        (200, ABORTED, True, EngineDied),
        (500, b"{}", True, EngineDied),
        (503, b"{}", False, EngineUnavailable),
    ],
)
async def test_what_is_no_answer_is_an_error(
    stand: Stand, status: int, body: bytes, dead: bool, error: type[Exception]
) -> None:
    stand.status, stand.body, stand.front.errored = status, body, dead
    with pytest.raises(error):
        await run(stand)
    if dead:
        assert stand.engine is not None
        assert "died" in await asyncio.wait_for(stand.engine.failed(), 2)


async def test_a_500_of_a_well_engine_is_the_requests_own(stand: Stand) -> None:
    stand.status, stand.body = 500, b'{"error": {"message": "TypeError"}}'
    reply = await run(stand)
    assert (reply.status, reply.body) == (500, stand.body)


async def test_no_answer_at_all_is_a_500_that_says_why(stand: Stand) -> None:
    stand.raises = KeyError("oops")
    reply = await run(stand)
    assert reply.status == 500
    assert "oops" in json.loads(reply.body)["error"]["message"]


async def test_a_path_that_the_model_does_not_serve_is_a_clean_404(stand: Stand) -> None:
    stand.status, stand.body = 404, b'{"detail":"Not Found"}'
    assert json.loads((await run(stand)).body)["error"]["param"] == "endpoint"


async def test_not_started_is_said() -> None:
    with pytest.raises(EngineDied, match="not started"):
        await VllmEngine("m", cpu=True).run(EngineRequest("r-1", CHAT, {}, Lane.LOW))


def test_a_release_that_moved_a_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(place: str) -> Any:
        if place == "vllm":
            return SimpleNamespace(__version__="9.9.9")
        if place == "vllm.v1.engine.async_llm":
            raise ModuleNotFoundError(f"No module named {place!r}", name=place)
        return SimpleNamespace(**{name: object() for name in vllm_host._NAMES if name != "build_app"})

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(
        VllmMoved, match=r"vLLM 9\.9\.9 does not have AsyncLLM .*; build_app .*launchers\.app"
    ) as caught:
        find_names()
    assert "init_app_state" not in str(caught.value)


def test_an_absent_vllm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(place: str) -> Any:
        raise ModuleNotFoundError(f"No module named {place!r}", name=place)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(ImportError, match=r"pip install '.\[gpu"):
        find_names()


class First(BaseModel):
    messages: list[str]
    schema_: str = Field("", alias="schema")


class Second(BaseModel):
    input: str


def test_fields_are_those_of_the_request_models() -> None:
    """Of a union all of them; a route without a model, or whose annotations cannot be read, has none."""

    async def handler(_request: First | Second | None, _raw: int) -> None: ...

    async def strange(_request: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    def route(path: str, endpoint: Any) -> SimpleNamespace:
        return SimpleNamespace(path=path, endpoint=endpoint)

    app = SimpleNamespace(
        routes=[route(CHAT, handler), route("/v1/responses", strange), SimpleNamespace(path="/pooling")]
    )
    handler.__annotations__["_request"] = First | Second | None
    assert vllm_host.fields_of(app) == {CHAT: ["input", "messages", "schema", "schema_"]}
