"""LiteLLM: its SDK, and its proxy in front of the gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import litellm
from calls import CITY, EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run

ASKED = [{"role": "user", "content": SAY}]
SHARED: dict[str, Any] = {"api_base": URL, "api_key": KEY}
ANTHROPIC: dict[str, Any] = {**SHARED, "api_base": URL.removesuffix("/v1")}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
PORT, PROXY_KEY = 18_431, "sk-" + "0123456789abcdef" * 4


@call
def chat() -> Any:
    return litellm.completion(f"openai/{MODEL}", ASKED, max_tokens=LIMIT, **SHARED).choices[0].message.content


@call
def chat_streamed() -> Any:
    chunks = list(litellm.completion(f"openai/{MODEL}", ASKED, max_tokens=LIMIT, stream=True, **SHARED))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@call
def completion() -> Any:
    name = f"text-completion-openai/{MODEL}"
    return litellm.text_completion(model=name, prompt=SAY, max_tokens=LIMIT, **SHARED).choices[0].text


@call
def response() -> Any:
    return litellm.responses(SAY, f"openai/{MODEL}", max_output_tokens=LIMIT, **SHARED).output_text


@call
def response_streamed() -> Any:
    asked = litellm.responses(SAY, f"openai/{MODEL}", max_output_tokens=LIMIT, stream=True, **SHARED)
    return [event.type for event in asked][-1] == "response.completed"


@call
def embeddings() -> Any:
    return litellm.embedding(f"openai/{EMBEDDER}", ["a cat", "a dog"], **SHARED).data


@call
def message() -> Any:
    return litellm.completion(f"anthropic/{MODEL}", ASKED, max_tokens=LIMIT, **ANTHROPIC).choices[0].message.content


@call
def message_streamed() -> Any:
    chunks = list(litellm.completion(f"anthropic/{MODEL}", ASKED, max_tokens=LIMIT, stream=True, **ANTHROPIC))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@call
def message_with_a_tool() -> Any:
    asked = litellm.completion(f"anthropic/{MODEL}", ASKED, tools=TOOLS, tool_choice="required", **ANTHROPIC)
    return json.loads(asked.choices[0].message.tool_calls[0].function.arguments)["city"]


@call
def message_with_a_tool_streamed() -> Any:
    options: Any = {"tools": TOOLS, "tool_choice": "required", "stream": True}
    chunks = list(litellm.completion(f"anthropic/{MODEL}", ASKED, **options, **ANTHROPIC))
    whole = litellm.stream_chunk_builder(chunks).choices[0].message
    return json.loads(whole.tool_calls[0].function.arguments)["city"]


@call
async def message_passed_on() -> Any:
    asked = await litellm.anthropic.messages.acreate(
        max_tokens=LIMIT, messages=ASKED, model=f"anthropic/{MODEL}", **ANTHROPIC
    )
    return asked["content"][0]["text"]


@call
def proxy() -> Any:
    row = {"model_name": "ours", "litellm_params": {"model": f"openai/{MODEL}", **SHARED}}
    other = {"model_name": "anthropic", "litellm_params": {"model": f"anthropic/{MODEL}", **ANTHROPIC}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps({"model_list": [row, other]}))  # JSON is YAML
        program = Path(sys.executable).with_name("litellm")
        command = [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", str(PORT)]
        environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": PROXY_KEY}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=sys.stderr)
        try:
            wait_until_ready(process)
            chat = json.loads(ask("chat/completions", messages=ASKED))["choices"][0]["message"]["content"]
            assert ask("chat/completions", messages=ASKED, stream=True).rstrip().endswith("[DONE]")
            assert json.loads(ask("responses", input=SAY))["output"]
            assert "response.completed" in ask("responses", input=SAY, stream=True)
            assert json.loads(ask("messages", model="anthropic", messages=ASKED))["content"]
            assert "message_stop" in ask("messages", model="anthropic", messages=ASKED, stream=True)
            return chat
        finally:
            process.terminate()
            process.wait(20)


def wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """Until the proxy answers; raises if it ends."""
    for _ in range(600):
        assert process.poll() is None, "the proxy has ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/liveliness", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the proxy does not answer")


def ask(path: str, **body: Any) -> str:
    """What the proxy answers."""
    limit = {"max_output_tokens" if path == "responses" else "max_tokens": LIMIT}
    asked = json.dumps({"model": "ours", **limit, **body}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {PROXY_KEY}"}
    url = f"http://127.0.0.1:{PORT}/v1/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, asked, headers), timeout=60) as answer:
        return str(answer.read().decode())


run()
