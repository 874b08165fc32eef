"""Readers that know only `data:` lines read every stream: OpenAI's client, that of `vllm bench serve`, a loop by hand.

The requests wait in their lane at first, until a worker starts, so that chunks without text come before all others.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway import framing, streaming
from streamfleet.gateway.app import build
from streamfleet.gateway.gateway import Gateway
from tests.integration.gateway_process import Stage
from tests.integration.worker_process import WorkerProcess, chat
from tests.unit.gateway_server import served
from tests.waiting import eventually

PATH = "/v1/chat/completions"
TEXT = "[simulated] Say hi Say hi Say hi Say hi Say"
MESSAGES: list[Any] = chat()["messages"]
SILENCE_S = 0.3


@asynccontextmanager
async def gateway(url: str, queue: str) -> AsyncIterator[str]:
    """The address of a gateway in this process, whose one model is served by a queue of its own."""
    settings = load(GatewaySettings, gateway_keys="off", gateway_models=f"mine={queue}=simulated")
    here = Gateway(load(QueueSettings, redis_url=url), settings)
    try:
        async with served(build(here)) as (host, port):
            yield f"http://{host}:{port}"
    finally:
        await here.close()


def check_alike(chunks: list[Any]) -> None:
    """Check what all chunks of an answer have in common, and that some came before the engine's first."""
    for name in ("id", "object", "created", "model"):
        assert len({getattr(chunk, name) for chunk in chunks}) == 1, name
    assert chunks[0].model == "simulated"
    assert chunks[0].choices


async def sdk_chat(url: str, seen: list[Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk:
        stream = await sdk.chat.completions.create(
            model="mine",
            messages=MESSAGES,
            max_tokens=10,
            stream=True,
            service_tier="priority",
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        seen.extend([chunk async for chunk in stream])
    check_alike(seen)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen[:-1]) == TEXT
    assert {chunk.service_tier for chunk in seen} == {"priority"}
    assert (seen[-1].choices, seen[-1].usage.completion_tokens) == ([], 10)


async def sdk_helper(url: str, seen: list[Any]) -> None:
    """The client's own way to put an answer together."""
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk,
        sdk.chat.completions.stream(
            model="mine", messages=MESSAGES, stop=["hi Say hi"], extra_body={"ignore_eos": True}
        ) as stream,
    ):
        seen.extend([event async for event in stream])
        answer = await stream.get_final_completion()
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "[simulated] Say ",
        "stop",
    )


async def sdk_completions(url: str, seen: list[Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk:
        stream = await sdk.completions.create(
            model="mine", prompt="Say hi", max_tokens=10, n=2, stream=True, extra_body={"ignore_eos": True}
        )
        seen.extend([chunk async for chunk in stream])
    check_alike(seen)
    for number in range(2):
        choices = [choice for chunk in seen for choice in chunk.choices if choice.index == number]
        assert "".join(choice.text for choice in choices) == TEXT
        assert [choice.finish_reason for choice in choices][-1] == "length"


async def by_hand(url: str, seen: list[Any]) -> None:
    """As a loop of five lines does it: no other fields, no comments, and always a choice."""
    body = chat(0.1, model="mine", stream=True)
    text = ""
    async with httpx.AsyncClient(trust_env=False) as http, http.stream("POST", url + PATH, json=body) as answer:
        async for line in answer.aiter_lines():
            if not line:
                continue
            seen.append(line)
            assert line.startswith("data: ")
            if line != "data: [DONE]":
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert (text, seen[-1]) == (TEXT, "data: [DONE]")


async def vllm_bench(url: str, seen: list[Any]) -> None:
    """The functions of `vllm bench serve` themselves."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / "benchmarks/lib/endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with aiohttp.ClientSession() as session:
        for path_, ask in (
            (PATH, module.async_request_openai_chat_completions),
            ("/v1/completions", module.async_request_openai_completions),
        ):
            given = module.RequestFuncInput(
                prompt="Say hi", api_url=url + path_, prompt_len=2, output_len=10, model="mine", ignore_eos=True
            )
            output = await ask(given, session)
            assert (output.success, output.error) == (True, "")
            assert (output.generated_text, output.output_tokens) == (TEXT, 10)
            seen.append(output)


async def test_plain_readers_read_streams_that_wait_at_first(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[Any] = [sdk_chat, sdk_helper, sdk_completions, by_hand]
    if importlib.util.find_spec("vllm") is not None:
        readers.append(vllm_bench)
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", SILENCE_S)
    seen: list[list[Any]] = [[] for _ in readers]
    sent: list[bytes] = []
    keep_alive = framing.Framing.keep_alive

    def counted(*given: Any) -> bytes:
        sent.append(keep_alive(*given))
        return sent[-1]

    monkeypatch.setattr(framing.Framing, "keep_alive", counted)
    async with gateway(stage.url, "plain") as url:
        reading = asyncio.gather(*(reader(url, into) for reader, into in zip(readers, seen, strict=True)))
        await eventually(lambda: len(sent) >= 3 * len(readers) or reading.done(), 20, "all have waited")
        assert sent, reading
        with WorkerProcess(stage.url, tmp_path, "later", queue="plain"):
            await asyncio.wait_for(reading, 60)
    assert all(seen)
