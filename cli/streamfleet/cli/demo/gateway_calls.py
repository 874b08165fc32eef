"""Chat and streaming calls with curl and OpenAI's Python SDK: shows, runs and checks each."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

from streamfleet.cli.demo.prompts import chat
from streamfleet.cli.demo.shell import Shell

AUTHORISED = '-H "Authorization: Bearer $OPENAI_API_KEY"'
POST_JSON = f"{AUTHORISED} \\\n  -H 'Content-Type: application/json' -d "
CAPITAL = "What is the capital of France? Answer in one word."
SEA = "Write a sentence about the sea."
SDK = """\
from openai import OpenAI

client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
chat = client.chat.completions
question = [{{"role": "user", "content": "{capital}"}}]
answer = chat.create(model="{model}", messages=question, service_tier="priority", max_tokens=16, temperature=0)
print("answer:", answer.choices[0].message.content, f"({{answer.usage.total_tokens}} tokens)")

question = [{{"role": "user", "content": "{sea}"}}]
chunks = chat.create(model="{model}", messages=question, stream=True, max_tokens=24, temperature=0)
print("stream:", "|".join(chunk.choices[0].delta.content or "" for chunk in chunks))
"""


async def first_model(shell: Shell) -> str:
    """The first model of `GET /v1/models`; empty if there is none."""
    answer = await shell.run(f"curl -sS $OPENAI_BASE_URL/models {AUTHORISED}")
    models = parsed(answer).get("data") or [{}]
    return str(models[0].get("id", ""))


async def ask(shell: Shell, model: str, expected: str) -> list[str]:
    """Send a chat request with curl. Returns the problems.

    Args:
        expected: text that the answer must contain.
    """
    body = {"model": model, **chat(CAPITAL, 16)}
    answer = await shell.run(
        f"curl -sS $OPENAI_BASE_URL/chat/completions {POST_JSON}{quoted(body)}",
        shown=lambda line: shell.short(from_choices(line)),
    )
    text = _text(parsed(answer), "message")
    if not text or expected not in text:
        return [f"curl: the answer to {CAPITAL!r} should have {expected or 'a text'}, not {text!r}"]
    shell.say(f"→ {text}")
    return []


async def ask_for_stream(shell: Shell, model: str) -> list[str]:
    """Send a streamed chat request with curl. Returns the problems."""
    body = {"model": model, **chat(SEA, 24), "stream": True}
    answer = await shell.run(
        f"curl -sSN $OPENAI_BASE_URL/chat/completions {POST_JSON}{quoted(body)}",
        shown=lambda line: shell.short(from_choices(line)) if line else None,
    )
    events = [line.removeprefix("data: ") for line in answer.split("\n") if line.startswith("data: ")]
    text = "".join(_text(parsed(event), "delta") for event in events)
    problems = []
    if not events or events[-1] != "[DONE]":
        problems.append("curl: the stream should end with data: [DONE]")
    if len(events) < 3 or not text:
        problems.append(f"curl: the stream should bring text in several events, not {text!r} in {len(events)}")
    shell.say(f"→ {text}")
    return problems


async def ask_with_sdk(shell: Shell, model: str, folder: Path, expected: str) -> list[str]:
    """Send both requests with OpenAI's Python SDK, if it is installed. Returns the problems."""
    if not sdk_installed():
        shell.say("OpenAI's Python SDK is not installed here, so this goes on with curl; pip install openai", "yellow")
        return []
    code = SDK.format(model=model, capital=CAPITAL, sea=SEA)
    (folder / "sdk.py").write_text(code, encoding="utf-8")
    shell.say(code, "cyan")
    answer = await shell.run("python sdk.py", shown=str)
    lines = {name: text for name, _, text in (line.partition(": ") for line in answer.splitlines())}
    problems = []
    if expected not in lines.get("answer", "") or "answer" not in lines:
        problems.append(f"SDK: the answer to {CAPITAL!r} should have {expected or 'a text'}")
    if lines.get("stream", "").count("|") < 2:
        problems.append("SDK: the stream should bring text in several chunks")
    return problems


def sdk_installed() -> bool:
    """True if OpenAI's Python SDK is installed."""
    return importlib.util.find_spec("openai") is not None


def parsed(answer: str) -> dict[str, Any]:
    """Parse an answer in JSON; empty if it is not an object."""
    try:
        value = json.loads(answer)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def quoted(body: dict[str, Any]) -> str:
    """A body in JSON as one word for the shell."""
    return shlex.quote(json.dumps(body))


def from_choices(line: str) -> str:
    """A line of an answer without the part before its text."""
    start = line.find('"choices"')
    head = "data: " if line.startswith("data: ") else ""
    return line if start < 0 else f"{head}{{… {line[start:]}"


def _text(answer: dict[str, Any], part: str) -> str:
    try:
        return str(answer["choices"][0][part].get("content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""
