"""Bare `AsyncLLM.generate`, with all requests submitted at once: the limit for everything built around it.

This module is also the process that holds the engine: `python -m bench.engine.bare MODEL ARGUMENT…` reads bodies, one
JSON list a line, and writes the answers' rows in the same form. Prompts are given in tokens: no front end at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from bench.core.processes import Child, started
from bench.engine.batch import Batch, Row, between_ms, timed
from bench.engine.setup import EngineSetup
from bench.engine.work import Body
from streamfleet.worker.engine import vllm_host
from streamfleet.worker.engine.orphan_guard import OWNER_VARIABLE
from streamfleet.worker.engine.vllm_setup import is_cpu_build, prepare_environment

READY = "ready"


class Bare:
    """An engine in a process of its own."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def run(self, asked: Sequence[Body]) -> Batch:
        """Submit all requests at once."""

        async def ask() -> list[Row]:
            answer = await asyncio.to_thread(self._child.ask, json.dumps(asked))
            return [Row(**row) for row in json.loads(answer)]

        return await timed(self._child.pid, ask)


@contextmanager
def bare(setup: EngineSetup) -> Iterator[Bare]:
    """Start a bare engine and wait until it is ready."""
    with started(["-m", "bench.engine.bare", str(setup.folder), *setup.argv], talks=True) as child:
        child.wait_for(READY)
        yield Bare(child)


# -- in the engine's process -------------------------------------------------------------------------------


async def serve(engine: Any, tokenizer: Any, asks: IO[str], answers: IO[str]) -> None:
    """Answer lines until the input ends."""
    print(READY, file=answers, flush=True)
    number = 0
    while line := await asyncio.to_thread(asks.readline):
        bodies = json.loads(line)
        prompts = [tokens_of(tokenizer, body) for body in bodies]
        number += 1
        rows = await asyncio.gather(
            *(
                generate(engine, f"{number}-{index}", tokens, body["max_tokens"])
                for index, (tokens, body) in enumerate(zip(prompts, bodies, strict=True))
            )
        )
        print(json.dumps(rows), file=answers, flush=True)


def tokens_of(tokenizer: Any, body: Body) -> list[int]:
    """A chat as the server would render it, in tokens."""
    text = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


async def generate(engine: Any, request_id: str, prompt: list[int], output_tokens: int) -> dict[str, Any]:
    """Run one request; returns a Row as a mapping."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    wanted = SamplingParams(
        max_tokens=output_tokens, ignore_eos=True, temperature=0, output_kind=RequestOutputKind.FINAL_ONLY
    )
    began, last = time.perf_counter(), None
    async for output in engine.generate({"prompt_token_ids": prompt}, wanted, request_id):
        last = output
    total_ms = (time.perf_counter() - began) * 1000
    if last is None:
        raise RuntimeError("the engine gave no answer")
    first_ms, written = last.metrics.first_token_latency * 1000, len(last.outputs[0].token_ids)
    return {
        "prompt_tokens": len(last.prompt_token_ids),
        "output_tokens": written,
        "first_ms": first_ms,
        "between_ms": between_ms(total_ms, first_ms, written),
        "total_ms": total_ms,
    }


def main() -> None:
    """Hold an engine until standard input ends."""
    model, *argv = sys.argv[1:]
    # Keeps vLLM's own prints out of the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    prepare_environment(model, cpu=is_cpu_build())
    names = vllm_host.find_names()
    import uvloop
    from transformers import AutoTokenizer

    args = names.make_arg_parser(names.FlexibleArgumentParser()).parse_args([model, *argv])
    args.model = args.model_tag
    os.environ[OWNER_VARIABLE] = str(os.getpid())  # its processes end with this one
    engine = names.AsyncLLM.from_engine_args(names.AsyncEngineArgs.from_cli_args(args))
    try:
        uvloop.run(serve(engine, AutoTokenizer.from_pretrained(model), sys.stdin, answers))
    finally:
        engine.shutdown(timeout=0)


if __name__ == "__main__":
    main()
