"""The ways to answer chats with one engine in this process, and the cost of a burst by one of them."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeAlias

from bench.core.rounds import Sample
from bench.engine.bare import tokens_of
from bench.engine.batch import OtherWork
from bench.engine.work import Body
from streamfleet.common.protocol import CHAT, Lane
from streamfleet.worker.engine import asgi
from streamfleet.worker.engine.base import EngineRequest

BARE, ENGINE, ASGI, SERVE = "bare AsyncLLM", "a worker's engine", "the same over ASGI", "vLLM's own application"
Answer: TypeAlias = Callable[[str, Body], Awaitable[bytes | int]]
"""Answers a chat, given an id and its body; returns the number of tokens, or JSON that tells it."""
DIRECT = "_direct"
"""Attribute of `VllmEngine`: its direct calls of vLLM. All requests go over ASGI while this is None."""
TAPPED = ("generate", "encode")
"""Methods of vLLM's engine around which a worker counts requests and tokens."""
COUNTED = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement.

    Attributes:
        rounds: rounds; in each, every way answers every burst.
        at_once: numbers of requests in a burst, unstreamed.
        streamed_at_once: the same, streamed.
        paced: number of streams at once, at the pace of a reader.
        paced_tokens: tokens of each of these.
        tokens: tokens of an answer.
        parts_at: number of requests at once, one of those above, whose parts are told.
        least: requests of a sample; of fewer at once, it is the mean of several bursts.
    """

    rounds: int
    at_once: tuple[int, ...]
    streamed_at_once: tuple[int, ...]
    paced: int = 1000
    paced_tokens: int = 200
    tokens: int = 64
    parts_at: int = 256
    least: int = 256


QUICK_SIZES = Sizes(rounds=3, at_once=(256,), streamed_at_once=(256,), paced_tokens=100)
FULL_SIZES = Sizes(rounds=7, at_once=(64, 256, 1024), streamed_at_once=(256, 512))


@dataclass(frozen=True)
class Way:
    """One way to answer.

    Attributes:
        answer: answers one chat.
        off: takes what does not belong to this way out of the engine, and returns the function that puts it back.
    """

    answer: Answer
    off: Callable[[], Callable[[], None]]


def ways(engine: Any, *, streamed: bool) -> dict[str, Way]:
    """The ways by name; the one over ASGI only where the worker's engine goes directly otherwise."""
    hosted = engine._running()[0]  # noqa: SLF001
    by_engine, untapped = partial(_by_engine, engine, streamed), partial(switch_off, engine, tap=True)
    over_asgi = {ASGI: Way(by_engine, partial(switch_off, engine))} if goes_directly(engine) else {}
    return {
        BARE: Way(partial(_bare, hosted.engine, _tokenizer(engine), streamed), untapped),
        ENGINE: Way(by_engine, lambda: lambda: None),
        **over_asgi,
        SERVE: Way(partial(_by_application, engine, streamed), untapped),
    }


def goes_directly(engine: Any) -> bool:
    """True if a started `VllmEngine` calls vLLM directly."""
    return getattr(engine, DIRECT, None) is not None


def switch_off(engine: Any, *, tap: bool = False) -> Callable[[], None]:
    """Take what direct calls need out of a started `VllmEngine`; returns the function that puts it back.

    Args:
        engine: the engine.
        tap: also take the worker's own methods from around `TAPPED`, so that nothing but vLLM is left.
    """
    llm, envs = engine._hosted.engine, importlib.import_module("vllm.envs")  # noqa: SLF001
    taken = [(engine, DIRECT), (llm.renderer, "render_chat_async"), *((llm, name) for name in TAPPED if tap)]
    found = [(of, name, vars(of)[name]) for of, name in taken if name in vars(of)]
    cached = hasattr(envs.__getattr__, "cache_clear")
    for of, name, _ in found:
        if of is engine:
            setattr(of, name, None)
        else:
            delattr(of, name)  # the class has vLLM's own
    if cached:
        envs.disable_envs_cache()

    def put_back() -> None:
        for of, name, value in found:
            setattr(of, name, value)
        if cached:
            envs.enable_envs_cache()

    return put_back


def rendering(engine: Any, asked: Sequence[Body]) -> Sample:
    """Cost of template and tokenizer alone, as bare AsyncLLM is given its prompts."""
    tokenizer = _tokenizer(engine)
    began_s = time.thread_time()
    for body in asked:
        tokens_of(tokenizer, body)
    return {"main_us": (time.thread_time() - began_s) / len(asked) * 1e6}


async def burst(engine: Any, way: Way, asked: Sequence[Body]) -> Sample:
    """Answer chats that all come at once; returns the cost of one, and when they reached the engine core.

    Raises:
        OtherWork: an answer has not the number of tokens that was asked for.
    """
    core, reached = engine._running()[0].engine.engine_core, []  # noqa: SLF001
    hand_over = core.add_request_async

    async def add_request_async(request: Any) -> None:
        await hand_over(request)
        reached.append(time.perf_counter())

    put_back = way.off()
    core.add_request_async = add_request_async
    try:
        gc.collect()  # no way pays for what the one before it left
        main_s, process_s, began = time.thread_time(), time.process_time(), time.perf_counter()
        answers = await asyncio.gather(*(way.answer(f"{began}-{number}", body) for number, body in enumerate(asked)))
        main_s, process_s = time.thread_time() - main_s, time.process_time() - process_s
        wall_s = time.perf_counter() - began
    finally:
        put_back()
        core.add_request_async = hand_over
    if [_tokens(answer) for answer in answers] != [body["max_tokens"] for body in asked]:
        raise OtherWork("answers of other lengths than were asked for")
    reached_ms = [(at - began) * 1000 for at in reached]
    return {
        "main_us": main_s / len(asked) * 1e6,
        "process_us": process_s / len(asked) * 1e6,
        "core_first_ms": min(reached_ms),
        "core_median_ms": median(reached_ms),
        "core_last_ms": max(reached_ms),
        "wall_s": wall_s,
    }


def _tokenizer(engine: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(engine._running()[0].args.model)  # noqa: SLF001


def _tokens(answer: bytes | int) -> int:
    return answer if isinstance(answer, int) else int(COUNTED.findall(answer)[-1])


async def _bare(llm: Any, tokenizer: Any, streamed: bool, request_id: str, body: Body) -> int:
    """Template, tokenizer, and `AsyncLLM.generate`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY
    wanted = SamplingParams(max_tokens=body["max_tokens"], ignore_eos=True, temperature=0, output_kind=kind)
    written = 0
    async for output in llm.generate({"prompt_token_ids": tokens_of(tokenizer, body)}, wanted, request_id):
        written += len(output.outputs[0].token_ids)
    return written


async def _by_engine(engine: Any, streamed: bool, request_id: str, body: Mapping[str, Any]) -> bytes:
    """`VllmEngine.run`."""
    chunks: list[bytes] = []
    on_chunk = (lambda chunk: chunks.append(bytes(chunk))) if streamed else None
    reply = await engine.run(EngineRequest(request_id, CHAT, body, Lane.NORMAL, on_chunk=on_chunk))
    content: bytes = reply.body
    return content


async def _by_application(engine: Any, streamed: bool, request_id: str, body: Mapping[str, Any]) -> bytes:
    """vLLM's own application, asked as `asgi` does."""
    parts: list[bytes] = []
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}} if streamed else body
    app, headers = engine._running()[1], {"X-Request-Id": request_id}  # noqa: SLF001
    response = await asgi.post(app, CHAT, headers, json.dumps(asked).encode(), parts.append if streamed else None)
    return b"".join(parts) or response.body
