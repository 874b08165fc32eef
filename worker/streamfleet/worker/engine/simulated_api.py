"""The OpenAI surface of the simulated engine: what a body asks for, and an answer of that shape.

Refuses what a real server refuses, with the field named, and marks every answer as simulated.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.replies import error_reply

MODEL = "simulated"
_EMBEDDING_SIZE = 32
# Field: accepted types, smallest and largest value (None for no bound).
_NUMBERS: dict[str, tuple[tuple[type, ...], int | None, int | None]] = {
    "max_tokens": ((int,), 1, None),
    "max_completion_tokens": ((int,), 1, None),
    "n": ((int,), 1, 16),
    "seed": ((int,), None, None),
    "dimensions": ((int,), 1, 4096),
    "temperature": ((int, float), 0, 2),
    "top_p": ((int, float), 0, 1),
    "presence_penalty": ((int, float), -2, 2),
    "frequency_penalty": ((int, float), -2, 2),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks of the engine.

    Attributes:
        request: the request itself.
        prompts: the text of each prompt.
        prompt_tokens: all prompts together.
        lengths: output tokens of each sequence; empty for embeddings.
        finish_reason: why the sequences end.
    """

    request: EngineRequest
    prompts: tuple[str, ...]
    prompt_tokens: int
    lengths: tuple[int, ...]
    finish_reason: str

    @property
    def sequences(self) -> int:
        """Slots that it takes."""
        return max(1, len(self.lengths))

    @property
    def steps(self) -> int:
        """Decoding steps until the longest sequence is done."""
        return max(self.lengths, default=1)

    @property
    def kv_tokens(self) -> int:
        """KV-cache tokens when it is done."""
        return self.prompt_tokens + sum(self.lengths)


def plan(request: EngineRequest, models: Sequence[str], max_model_len: int, seed: int) -> Plan | EngineReply:
    """What to do for a request, or the error that it gets."""
    body = request.body
    refusal = _check_model(body, models) or _check_numbers(body)
    if refusal is not None:
        return refusal
    prompts = _prompts(request)
    if isinstance(prompts, EngineReply):
        return prompts
    tokens = [count_tokens(prompt) for prompt in prompts]
    if request.endpoint == EMBEDDINGS:
        if max(tokens) > max_model_len:
            return _too_long(max(tokens), 0, max_model_len)
        return Plan(request, prompts, sum(tokens), (), "stop")
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    if asked is None and request.endpoint == COMPLETIONS:
        asked = 16  # the API's own default
    if max(tokens) + (asked or 1) > max_model_len:
        return _too_long(max(tokens), asked, max_model_len)
    room = asked or max_model_len - max(tokens)
    natural = room if body.get("ignore_eos") is True else _natural_length(seed, request.id)
    length, reason = (room, "length") if natural >= room else (natural, "stop")
    return Plan(request, prompts, sum(tokens), (length,) * (len(prompts) * (body.get("n") or 1)), reason)


def answer(done: Plan, created_s: int) -> bytes:
    """The response body of a request that ran to its end."""
    if done.request.endpoint == EMBEDDINGS:
        return _embeddings(done)
    chat = done.request.endpoint == CHAT
    choices = [
        {
            "index": index,
            **({"message": {"role": "assistant", "content": text}} if chat else {"text": text}),
            "logprobs": None,
            "finish_reason": done.finish_reason,
        }
        for index, text in enumerate(texts(done))
    ]
    return _json(
        {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{done.request.id}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created_s,
            "model": MODEL,
            "system_fingerprint": MODEL,
            "choices": choices,
            "usage": usage_of(done),
        }
    )


def texts(done: Plan) -> list[str]:
    """What each choice says; one word, one token."""
    per_prompt = len(done.lengths) // len(done.prompts)
    return [_text(done.prompts[index // per_prompt], length) for index, length in enumerate(done.lengths)]


def usage_of(done: Plan) -> dict[str, int]:
    """The tokens that it took."""
    return _usage(done.prompt_tokens, sum(done.lengths))


def count_tokens(text: str) -> int:
    """Tokens of a text by the rule of thumb of four bytes each."""
    return max(1, math.ceil(len(text.encode("utf-8", "surrogatepass")) / 4))


def _check_model(body: Mapping[str, Any], models: Sequence[str]) -> EngineReply | None:
    model = body.get("model")
    if model is None or model in models:
        return None
    if not isinstance(model, str):
        return error_reply(400, "must be a string", "model", "invalid_type")
    text = f"The model {model[:80]!r} does not exist; use {' or '.join(models)}"
    return error_reply(404, text, "model", "model_not_found")


def _check_numbers(body: Mapping[str, Any]) -> EngineReply | None:
    for name, (types, low, high) in _NUMBERS.items():
        value: Any = body.get(name)
        if value is None:
            continue
        wrong_type = isinstance(value, bool) or not isinstance(value, types)
        if wrong_type:
            kind = "an integer" if types == (int,) else "a number"
            return error_reply(400, f"must be {kind}", name, "invalid_type")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            return error_reply(400, f"must be {bounds}, not {value}", name, "invalid_value")
    return None


def _prompts(request: EngineRequest) -> tuple[str, ...] | EngineReply:
    if request.endpoint == CHAT:
        return _chat_prompt(request.body.get("messages"))
    if request.endpoint in {COMPLETIONS, EMBEDDINGS}:
        name = "prompt" if request.endpoint == COMPLETIONS else "input"
        return _plain_prompts(request.body.get(name), name)
    text = f"{request.endpoint} is not among what the simulated engine answers"
    return error_reply(404, text, "endpoint", "unknown_endpoint")


def _chat_prompt(messages: object) -> tuple[str, ...] | EngineReply:
    if not isinstance(messages, list) or not messages:
        return error_reply(400, "must be an array with at least one message", "messages", "invalid_type")
    texts = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return error_reply(400, "must be an object with a role", f"messages.{index}.role", "invalid_type")
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if not isinstance(content, (str, type(None))):
            text = "must be a string or an array of parts"
            return error_reply(400, text, f"messages.{index}.content", "invalid_type")
        texts.append(content or "")
    return (" ".join(texts),)


def _plain_prompts(value: object, name: str) -> tuple[str, ...] | EngineReply:
    if isinstance(value, str):
        return (value,)
    items = value if isinstance(value, list) else []
    if items and all(_is_token(item) for item in items):
        items = [items]
    texts = [_plain_prompt(item) for item in items]
    if not texts or None in texts:
        return error_reply(400, "must be a string, an array of strings, or token ids", name, "invalid_type")
    return tuple(text for text in texts if text is not None)


def _plain_prompt(item: object) -> str | None:
    if isinstance(item, list) and item and all(_is_token(token) for token in item):
        return " ".join(f"{token % 1000:03d}" for token in item)  # four bytes, so one token, each
    return item if isinstance(item, str) else None


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _too_long(prompt_tokens: int, asked: int | None, max_model_len: int) -> EngineReply:
    text = (
        f"This model's maximum context length is {max_model_len} tokens; the prompt has {prompt_tokens}"
        f"{f' and {asked} more are asked for' if asked else ''}. Shorten one of them"
    )
    return error_reply(400, text, "max_tokens" if asked and prompt_tokens < max_model_len else "input_tokens")


def _natural_length(seed: int, request_id: str) -> int:
    """Where the answer would end by itself: the same for the same seed and id."""
    chance = random.Random(f"{seed}:{request_id}")  # noqa: S311 - not for secrets
    return min(1024, max(4, round(chance.lognormvariate(4.0, 0.6))))


def _text(prompt: str, length: int) -> str:
    return " ".join(["[simulated]", *islice(cycle(prompt.split() or ["…"]), length - 1)])


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _embeddings(done: Plan) -> bytes:
    size = done.request.body.get("dimensions") or _EMBEDDING_SIZE
    data: list[dict[str, Any]] = []
    for index, prompt in enumerate(done.prompts):
        vector: Any = _vector(prompt, size)
        if done.request.body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    usage = {"prompt_tokens": done.prompt_tokens, "total_tokens": done.prompt_tokens}
    return _json({"object": "list", "model": MODEL, "data": data, "usage": usage})


def _vector(text: str, size: int) -> list[float]:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    chance = random.Random(digest)  # noqa: S311 - not for secrets
    raw = [chance.gauss(0, 1) for _ in range(size)]
    norm = math.sqrt(sum(value * value for value in raw))
    return [round(value / norm, 6) for value in raw]


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
