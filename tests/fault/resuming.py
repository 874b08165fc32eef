"""Answers of real vLLM are interrupted at random tokens: `python -m tests.fault.resuming` (see --help).

One worker answers patient requests. Urgent requests come, and the worker gets SIGTERM or SIGKILL and is started again.
Each answer is compared with what its earlier runs had published, and with its own tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from streamfleet.cli.demo.model import model_folder
from streamfleet.common.results import Result
from tests.integration.worker_process import Fleet, fleet_on
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers

SECRET = "SECRET-7431"
WORLD = "🌍日本🎉語é한"
CHECKPOINT = 16
SETTINGS: Mapping[str, Any] = {
    "engine": "vllm",
    "engine_args": "--max-model-len 512 --max-num-seqs 20 --gpu-memory-utilization 0.3",
    "checkpoint_tokens": CHECKPOINT,
    "lease_ms": 3_000,
    "drain_ms": 200,
    "max_deliveries": 20,
    "log_level": "info",
}
START_S, STALLED_S = 240.0, 240.0
RUNS_S = (8.0, 20.0)
"""Shortest and longest time from one start of the worker to its end."""


@dataclass
class Found:
    """Findings of a run.

    Attributes:
        resumed: number of answers that went on from kept tokens.
        repeated: tokens that were published and generated again, of each answer whose worker was killed.
        violations: broken promises, a line each.
        events: number of interruptions, and of signals by name.
    """

    resumed: int = 0
    repeated: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)


def bodies(count: int, chance: random.Random, tokenizer: Tokenizer) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many endpoints and bodies: plain text, emoji and CJK, and their bytes in any order."""
    pieces = tokenizer.encode(WORLD).ids
    system = {"role": "system", "content": f"You are {SECRET}."}
    for number in range(count):
        tokens = chance.randint(24, 96)
        body: dict[str, Any] = {
            "max_tokens": tokens,
            "temperature": chance.choice((0.0, 0.8)),
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if number % 3 == 0:
            yield "/v1/completions", {"prompt": f"{SECRET} {WORLD * 8}", **body}
            continue
        if number % 3 == 1:
            body["allowed_token_ids"] = pieces
        story = {"role": "user", "content": f"Tell me story {number}."}
        yield "/v1/chat/completions", {"messages": [system, story], **body}


async def play(fleet: Fleet, count: int, seed: int, found: Found, tokenizer: Tokenizer) -> None:
    """Enqueue, interrupt until all answers are there, and look at each."""
    chance = random.Random(seed)
    asked = dict(zip((f"a-{number}" for number in range(count)), bodies(count, chance, tokenizer), strict=True))
    for request_id, (endpoint, body) in asked.items():
        await fleet.add(request_id, "low", body, endpoint=endpoint, stream="1")
    names, signals = (f"w{number}" for number in range(1, 1_000)), [signal.SIGTERM, signal.SIGKILL]
    left, came = count, time.monotonic()
    while left and time.monotonic() < came + STALLED_S:
        before = left
        worker = fleet.start(next(names), model=model_folder(), **SETTINGS)
        await worker.logged("worker_ready", START_S)
        ends_at = time.monotonic() + chance.uniform(*RUNS_S)
        while (left := await _left(fleet, asked)) and time.monotonic() < ends_at:
            await _urgent(fleet, chance.randint(6, 10))
            found.events["urgent bursts"] += 1
            await asyncio.sleep(chance.uniform(0.3, 1.5))
        signum = signals[found.events["SIGTERM"] > found.events["SIGKILL"]] if left else signal.SIGTERM
        found.events[signum.name] += 1
        worker.send(signum)
        await worker.ended(60)
        came = time.monotonic() if left < before else came
        found.events["gave way"] += len(worker.events("gave_way"))
        print(f"  {count - left} of {count} answered; {dict(found.events)}", flush=True)
    results = dict(zip(asked, await fleet.broker.results([*asked]), strict=True))
    for request_id, (_, body) in asked.items():
        entries = await fleet.redis.xrange(f"{{default}}:tokens:{request_id}")
        found.violations += look(
            request_id, body, results[request_id], [fields for _, fields in entries], found, tokenizer
        )
    found.violations += (await fleet.broker.audit()).problems()


async def _left(fleet: Fleet, ids: Sequence[str] | Mapping[str, Any]) -> int:
    return sum(result is None for result in await fleet.broker.results([*ids]))


async def _urgent(fleet: Fleet, count: int) -> None:
    for _ in range(count):
        await fleet.add("", "critical", {"prompt": "Hi", "max_tokens": 6, "ignore_eos": True})


def look(
    request_id: str,
    body: Mapping[str, Any],
    result: Result | None,
    entries: Sequence[Mapping[str, str]],
    found: Found,
    tokenizer: Tokenizer,
) -> list[str]:
    """Returns what is wrong with one answer and its published chunks; empty if nothing is."""
    if result is None or result.status != "succeeded" or result.response is None:
        return [f"{request_id}: {'no result' if result is None else (result.status, result.fields.get('error'))}"]
    runs, resumed = published(entries), int(result.fields.get("resumed_tokens", "0"))
    text, ids, wrong = result.text, list(result.response["choices"][0]["token_ids"]), list[str]()
    if SECRET in text or any(SECRET in entry.get("chunks", "") for entry in entries):
        wrong.append("the prompt is in the answer")
    if (result.usage or {}).get("completion_tokens") != body["max_tokens"] or len(ids) != body["max_tokens"]:
        wrong.append(f"{len(ids)} tokens, usage {result.usage}; asked for {body['max_tokens']}")
    decoded = tokenizer.decode(ids)
    if _whole(decoded) != _whole(text):
        wrong.append(f"its text is not that of its tokens: {text!r}, {decoded!r}, resumed at {resumed}")
    if sum("end" in entry for entry in entries) != 1:
        wrong.append("its stream has not one end")
    found.resumed += resumed > 0
    if len(runs) > 1:
        (before_attempt, before), (attempt, _) = runs[-2:]
        common = min(len(before), resumed)
        if before[:common] != ids[:common]:
            wrong.append("a kept token has changed")
        if attempt > before_attempt:
            found.repeated.append(max(0, len(before) - resumed))
    if not runs or runs[-1][1] != ids:
        wrong.append("its last run published other tokens than the result has")
    return [f"{request_id}: {each}" for each in wrong]


def _whole(text: str) -> str:
    """The text without half a character at its end: vLLM holds back the space before it as well."""
    return text.rstrip("\ufffd").rstrip()


def published(entries: Sequence[Mapping[str, str]]) -> list[tuple[int, list[int]]]:
    """Attempt and token ids of each run, in order, from the stream of a request."""
    runs: dict[str, tuple[int, list[int]]] = {}
    for entry in entries:
        if "chunks" not in entry or "run" not in entry:
            continue
        _, ids = runs.setdefault(entry["run"], (int(entry["attempt"]), []))
        for chunk in map(json.loads, entry["chunks"].split("\n")):
            for choice in chunk.get("choices", ()):
                ids += choice.get("token_ids") or ()
    return list(runs.values())


async def measure(count: int, seed: int) -> Found:
    found, tokenizer = Found(), Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    with RedisServer(newest(find_servers())) as server, tempfile.TemporaryDirectory() as folder:
        async with fleet_on(server.url, Path(folder)) as fleet:
            await play(fleet, count, seed, found, tokenizer)
    if found.repeated and max(found.repeated) > CHECKPOINT:
        found.violations.append(f"{max(found.repeated)} tokens twice after SIGKILL; at most {CHECKPOINT} are promised")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.resuming", description=__doc__)
    parser.add_argument("--answers", type=int, default=500, help="number of answers (default 500: 10 to 18 minutes)")
    parser.add_argument("--seed", type=int, default=1, help="of bodies and moments")
    args = parser.parse_args()
    found = asyncio.run(measure(args.answers, args.seed))
    for line in found.violations:
        print(f"  {line}")
    twice = f"at most {max(found.repeated, default=0)} tokens twice after SIGKILL"
    print(f"{args.answers} answers, {found.resumed} went on; {twice}; {len(found.violations)} violations")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
