"""The simulated engine's prefix cache: what is found, what goes, and what it saves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from streamfleet.common.protocol import CHAT, COMPLETIONS, RESPONSES, Lane
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.simulated import BLOCK_TOKENS, PrefixCache, SimulatedEngine
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU
from tests.clocks import HandClock

SHARED = "You are a helpful assistant of a library. " * 20


def numbered(number: int) -> str:
    """64 bytes, so one block."""
    return f"{number:064d}"


def test_a_text_is_found_up_to_where_it_differs() -> None:
    cache = PrefixCache()
    cache.add("m", numbered(1) + numbered(2) + numbered(3))
    assert cache.found("m", numbered(1) + numbered(2) + numbered(4)) == 2 * BLOCK_TOKENS
    assert cache.found("m", numbered(1) + numbered(2) + "short") == 2 * BLOCK_TOKENS
    assert cache.found("m", numbered(2) + numbered(3)) == 0, "a block is found by all before it"
    assert cache.found("another", numbered(1)) == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    cache = PrefixCache()
    cache.add("m", numbered(1) + numbered(2))
    assert cache.found("m", numbered(1) + numbered(2)) == BLOCK_TOKENS
    assert cache.found("m", numbered(1) + numbered(2) + ".") == 2 * BLOCK_TOKENS


def test_what_was_not_used_for_longest_goes_and_ends_before_beginnings() -> None:
    cache = PrefixCache()
    for first in (1, 2, 3):
        cache.add("m", numbered(first) + numbered(9))
    assert cache.found("m", numbered(1) + ".") == BLOCK_TOKENS  # used again
    cache.shrink(3 * BLOCK_TOKENS)
    found = [cache.found("m", numbered(first) + numbered(9) + ".") // BLOCK_TOKENS for first in (1, 2, 3)]
    assert found == [1, 0, 2]


async def ask(engine: SimulatedEngine, identity: str, endpoint: str = CHAT, **body: Any) -> EngineReply:
    body.setdefault("max_tokens", 8)
    return await engine.run(EngineRequest(identity, endpoint, {"ignore_eos": True, **body}, Lane.NORMAL))


def cached(reply: EngineReply) -> int:
    usage = json.loads(reply.body)["usage"]
    return int((usage.get("prompt_tokens_details") or usage["input_tokens_details"])["cached_tokens"])


async def test_a_prompt_that_begins_alike_is_read_sooner_and_says_so() -> None:
    engine = SimulatedEngine(replace(SMOLLM2_135M_CPU, jitter=0.0), models=("m", "lora"), clock=HandClock())
    await engine.start()
    try:
        first = await ask(engine, "a", COMPLETIONS, prompt=f"{SHARED}What is a book?")
        second = await ask(engine, "b", COMPLETIONS, prompt=f"{SHARED}What is a shelf?")
        assert cached(first) == 0
        assert cached(second) == len(SHARED) // 64 * BLOCK_TOKENS
        assert first.first_token_ms is not None
        assert second.first_token_ms is not None
        assert second.first_token_ms < first.first_token_ms / 4
        other = await ask(engine, "c", COMPLETIONS, prompt=f"{SHARED}What is a door?", model="lora")
        assert cached(other) == 0, "an adapter shares nothing with its base"
        body = {"input": f"{SHARED}What is a roof?", "max_output_tokens": 8}
        assert cached(await ask(engine, "d", RESPONSES, **body)) == cached(second)
    finally:
        await engine.stop()


async def test_the_next_turn_of_a_session_finds_the_answer_too() -> None:
    engine = SimulatedEngine(SMOLLM2_135M_CPU, speed=float("inf"))
    await engine.start()
    try:
        turns = [{"role": "user", "content": SHARED}]
        answer = json.loads((await ask(engine, "a", messages=turns, max_tokens=100)).body)
        said = answer["choices"][0]["message"]["content"]
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
        again = await ask(engine, "b", messages=turns)
        assert cached(again) == len(f"{SHARED} {said}") // 64 * BLOCK_TOKENS > len(SHARED) // 64 * BLOCK_TOKENS
    finally:
        await engine.stop()


async def test_the_cache_is_as_large_as_the_profile_says() -> None:
    small = replace(SMOLLM2_135M_CPU, kv_tokens=len(SHARED) // 4 + 40)
    engine = SimulatedEngine(small, speed=float("inf"))
    await engine.start()
    try:
        await ask(engine, "a", COMPLETIONS, prompt=SHARED)
        await ask(engine, "b", COMPLETIONS, prompt=SHARED[::-1])
        assert cached(await ask(engine, "c", COMPLETIONS, prompt=SHARED)) == 2 * BLOCK_TOKENS, "13 of 28 went"
    finally:
        await engine.stop()
