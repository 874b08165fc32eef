"""A batch through OpenAI's Batch API with curl: a file in, its output file out, and a webhook when it has ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from streamfleet.cli.demo.gateway_calls import AUTHORISED, POST_JSON, parsed, quoted
from streamfleet.cli.demo.hook import Receiver
from streamfleet.cli.demo.prompts import chat
from streamfleet.cli.demo.shell import Shell

FILE = "requests.jsonl"
QUESTIONS = (
    "Name a colour.",
    "Name a fruit.",
    "Name an ocean.",
    "Name a planet.",
    "Name a metal.",
    "Is the sun a star?",
    "What is ice made of?",
    "Say hello in French.",
)
ENDED = ("completed", "failed", "expired", "cancelled")
BATCH_TIMEOUT_S = 300.0
WEBHOOK_TIMEOUT_S = 60.0


async def run_batch(shell: Shell, model: str, folder: Path, receiver: Receiver) -> list[str]:
    """Run a batch from its file to its output and the webhook. Returns the problems."""
    lines = batch_lines(model)
    (folder / FILE).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    shell.say(f"{folder / FILE} has {len(lines)} lines like this one:")
    shell.say(shell.short(lines[0]), "cyan")
    upload = f"curl -sS $OPENAI_BASE_URL/files {AUTHORISED} -F purpose=batch -F file=@{FILE}"
    file_id = parsed(await shell.run(upload)).get("id")
    if not file_id:
        return ["batch: the file should be taken"]
    wish = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "1h",
        "callback_url": receiver.url,
    }
    batch_id = parsed(await shell.run(f"curl -sS $OPENAI_BASE_URL/batches {POST_JSON}{quoted(wish)}")).get("id")
    if not batch_id:
        return ["batch: it should be taken"]
    return await _until_done(shell, str(batch_id)) + await _webhook(shell, str(batch_id), receiver)


def batch_lines(model: str) -> list[str]:
    """The lines of the batch's file."""
    return [
        json.dumps(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": model, **chat(question, 12)},
            }
        )
        for number, question in enumerate(QUESTIONS, start=1)
    ]


async def _until_done(shell: Shell, batch_id: str) -> list[str]:
    look = f"curl -sS $OPENAI_BASE_URL/batches/{batch_id} {AUTHORISED}"
    give_up = time.monotonic() + BATCH_TIMEOUT_S
    said = ""
    while True:
        batch = parsed(await shell.quietly(["/bin/sh", "-c", look]))
        counts = batch.get("request_counts") or {}
        now = f"{batch.get('status')}: {counts.get('completed', 0)} of {len(QUESTIONS)}"
        if now != said:
            said = now
            shell.say(now, "dim")
        if batch.get("status") in ENDED or time.monotonic() > give_up:
            break
        await asyncio.sleep(0.5)
    if batch.get("status") != "completed":
        return [f"batch: {batch_id} should be completed, and is {batch.get('status')}"]
    output = await shell.run(
        f"curl -sS $OPENAI_BASE_URL/files/{batch['output_file_id']}/content {AUTHORISED}",
        shown=lambda line: shell.short(_in_short(line)),
    )
    return output_problems(output)


def output_problems(output: str) -> list[str]:
    """Problems of the output file, one line each: it must hold each `custom_id` once, with an answer."""
    found = [parsed(line) for line in output.split("\n") if line]
    times = Counter(str(line.get("custom_id")) for line in found)
    wanted = Counter(f"line-{number}" for number in range(1, len(QUESTIONS) + 1))
    problems = []
    if times != wanted:
        problems.append(f"batch: the output file should have each custom_id once, not {dict(times)}")
    if any((line.get("response") or {}).get("status_code") != 200 for line in found):
        problems.append("batch: each line of the output file should have status_code 200")
    return problems


def _in_short(line: str) -> str:
    answer = parsed(line)
    try:
        text = answer["response"]["body"]["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return line
    return f'{{"custom_id": "{answer.get("custom_id")}", … "content": {json.dumps(text, ensure_ascii=False)} …}}'


async def _webhook(shell: Shell, batch_id: str, receiver: Receiver) -> list[str]:
    came = await receiver.about(batch_id, WEBHOOK_TIMEOUT_S)
    if came is None:
        return [f"webhook: none came about {batch_id} within {WEBHOOK_TIMEOUT_S:.0f} s"]
    shell.say(f"\nA webhook came to {receiver.url}: {came.id}", "bold")
    shell.say(shell.short(came.body.decode(errors="replace")))
    if not came.verified:
        return [f"webhook: the signature of {came.id} should be right"]
    shell.say("→ its signature is right")
    return []
