"""`streamfleet bench`."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamfleet.common.errors import InvalidRequest, SettingsError
from streamfleet.common.protocol import Lane
from streamfleet.operator.commands.common import AsJson, QueueName, RedisUrl, out, queue_settings, run, say

if TYPE_CHECKING:
    from streamfleet.cli.requests.bench_load import Ask, Body, Step

MOST_AT_ONCE, EACH = 10_000, 8


def bench(  # noqa: PLR0913, PLR0917 - each parameter is an option
    concurrency: Annotated[
        str, typer.Option("--concurrency", "-c", metavar="N,N,…", help="Requests at once: a step for each number.")
    ] = "1,4,8,16,32",
    requests: Annotated[int | None, typer.Option(min=1, help="Of a step. Default: 8 for each one at once.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=86_400, help="After so long, a step sends no more.")] = 60.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds after which an answer is missing.")
    ] = 120.0,
    prompts: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Lines of text, a prompt each.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Without --prompts: their length, about.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="max_tokens; without --prompts, the exact length.")] = 64,
    seed: Annotated[int, typer.Option(help="Without --prompts: the same seed, the same prompts.")] = 0,
    url: Annotated[str | None, typer.Option(help="An OpenAI server in place of a queue. Needs httpx.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Default: the body's, then the first.")] = None,
    api_key_variable: Annotated[str | None, typer.Option(help="Environment variable with the server's key.")] = None,
    lane: Annotated[Lane, typer.Option("--lane", "-l", help="Priority, on a queue.")] = Lane.NORMAL,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw it, too. Needs matplotlib.")] = None,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    queue: QueueName = None,
) -> None:
    """Measure throughput and latency with so many requests at once, on a queue or an OpenAI server.

    Warms up with as many requests as the largest step has at once. Then each step keeps so many streamed requests
    running. "in engine" is the mean number of them in the engines, which is the batch size (queues tell, servers do
    not). Says where this client was the limit. A failed request ends it with status 1, after the steps until then.

    Without --prompts, prompts are random words, and answers have the exact length (ignore_eos, which vLLM and others
    know). A server with a prefix cache may know the prompts of an earlier run with the same seed.

    ```text
    streamfleet bench --concurrency 1,4,8,16,32
    streamfleet bench --queue chat -c 8,64 --seconds 30 --prompts prompts.txt --plot chat.svg
    streamfleet bench --url http://localhost:8000/v1 --prompt-tokens 512 --output-tokens 128 --json
    streamfleet bench --url https://llm.example.com/v1 --model llama --api-key-variable LLM_KEY
    ```
    """
    from streamfleet.cli.requests.bench_load import queue_asker, server_asker

    steps = _steps(concurrency, requests)
    if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
        raise typer.BadParameter(f"--plot: {plot} must end with .svg, and its folder must be there")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib, which is not installed: pip install matplotlib")
    bodies = _from_file(prompts, output_tokens) if prompts else _made_up(prompt_tokens, output_tokens, seed)
    if model is not None:
        bodies = ({**body, "model": model} for body in bodies)
    if url is None:
        target = queue_asker(queue_settings(redis_url, queue), lane)
    elif redis_url is None and queue is None:
        target = server_asker(url, _key(api_key_variable), max(steps))
    else:
        raise typer.BadParameter("give --url, or --queue and --redis-url, not both")
    found: list[Step] = []
    try:
        run(_bench(target, steps, bodies, requests, (seconds, timeout), found))
    finally:
        if found:
            _show(found, as_json, plot)


async def _bench(
    target: AbstractAsyncContextManager[Ask],
    steps: list[int],
    bodies: Iterator[Body],
    requests: int | None,
    spans_s: tuple[float, float],
    found: list[Step],
) -> None:
    from streamfleet.cli.requests.bench_load import run_step

    async with target as ask:
        say(f"warming up with {max(steps)} requests")
        await run_step(ask, max(steps), bodies, max(steps), *spans_s)
        for at_once in steps:
            found.append(step := await run_step(ask, at_once, bodies, requests or EACH * at_once, *spans_s))
            say(f"{at_once} at once: {step['requests']} answers in {step['seconds']:.1f} s")


def _show(found: list[Step], as_json: bool, plot: Path | None) -> None:
    from streamfleet.cli.requests.bench_load import draw, render
    from streamfleet.operator.commands.fitted_table import screen

    out(json.dumps(found, indent=2)) if as_json else screen().print(render(found))
    if plot is not None:
        draw(found, plot)


def _steps(text: str, requests: int | None) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) <= MOST_AT_ONCE for word in words):
        raise typer.BadParameter(f"--concurrency: must be numbers of 1 to {MOST_AT_ONCE} with commas between, as 1,4,8")
    steps = list(map(int, words))
    if requests is not None and requests < max(steps):
        raise typer.BadParameter(f"--requests: {requests} requests are never {max(steps)} at once: ask for more")
    return steps


def _key(variable: str | None) -> str | None:
    if variable is not None and not os.environ.get(variable, "").strip():
        raise SettingsError(f"--api-key-variable: the environment has no {variable}, or it is empty")
    return os.environ[variable].strip() if variable is not None else None


def _made_up(prompt_tokens: int, output_tokens: int, seed: int) -> Iterator[Body]:
    from streamfleet.operator.plan.measure import WORDS

    chance = random.Random(seed)  # noqa: S311 - not for secrets
    more = {"max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    while True:
        words = " ".join(chance.choices(WORDS, k=prompt_tokens))
        yield {"messages": [{"role": "user", "content": words}], **more}


def _from_file(path: Path, output_tokens: int) -> Iterator[Body]:
    """Bodies of a file's lines, again and again."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not UTF-8", "--prompts") from None
    if not lines:
        raise InvalidRequest(f"{path} has no line with a prompt", "--prompts")
    return itertools.cycle(
        {"messages": [{"role": "user", "content": line}], "max_tokens": output_tokens} for line in lines
    )
