"""The OpenAI surface of the simulated engine: reads a body, and makes an answer of its shape.

It refuses requests that a real server refuses, with the field named, and marks every answer as simulated. It also
refuses features that it lacks (tools, schemas, logprobs, …): ignoring a field would let a wrong test pass.
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

from streamfleet.common.numbers import BYTES_PER_TOKEN, DEFAULT_COMPLETION, LIMIT_FIELDS
from streamfleet.common.protocol import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from streamfleet.worker.engine.replies import error_reply

MODEL = "simulated"
SERVED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS)
_EMBEDDING_SIZE = 32
_MOST_STOPS = 4
# Field: values that ask for nothing, besides null, false and empty ones.
_NOT_SIMULATED: dict[str, tuple[object, ...]] = {
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logprobs": (),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logit_bias": (),
    "echo": (),
    "suffix": (),
    "best_of": (1,),
    "min_tokens": (0,),
    "stop_token_ids": (),
    "include_stop_str_in_output": (),
    "include": (["reasoning.encrypted_content"],),
    "background": (),
    "conversation": (),
    "previous_response_id": (),
}
# Field: accepted types, smallest and largest value (None for no bound).
_NUMBERS: dict[str, tuple[tuple[type, ...], int | None, int | None]] = {
    "max_tokens": ((int,), 1, None),
    "max_completion_tokens": ((int,), 1, None),
    "max_output_tokens": ((int,), 1, None),
    "n": ((int,), 1, 128),
    "seed": ((int,), None, None),
    "dimensions": ((int,), 1, 4096),
    "temperature": ((int, float), 0, 2),
    "top_p": ((int, float), 0, 1),
    "presence_penalty": ((int, float), -2, 2),
    "frequency_penalty": ((int, float), -2, 2),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Demand of one request on the engine.

    Attributes:
        request: the request itself.
        prompts: the text of each prompt.
        prompt_tokens: sum over all prompts.
        lengths: output tokens of each sequence; empty for embeddings.
        finish_reasons: why each sequence ends.
        stops: texts that end a sequence, and are not a part of it.
    """

    request: EngineRequest
    prompts: tuple[str, ...]
    prompt_tokens: int
    lengths: tuple[int, ...]
    finish_reasons: tuple[str, ...]
    stops: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        """Number of slots that it takes."""
        return max(1, len(self.lengths))

    @property
    def steps(self) -> int:
        """Decoding steps until the longest sequence is done."""
        return max(self.lengths, default=1)

    @property
    def kv_tokens(self) -> int:
        """KV-cache tokens at its end."""
        return self.prompt_tokens + sum(self.lengths)

    def tokens_after(self, steps: int) -> int:
        """Output tokens of all sequences after so many steps."""
        return sum(min(length, steps) for length in self.lengths)


def plan(request: EngineRequest, models: Sequence[str], max_model_len: int, seed: int) -> Plan | EngineReply:
    """Returns the plan of a request, or the error reply that it gets."""
    body = request.body
    refusal = _check_model(body, models) or _check_numbers(body) or _check_simulated(body) or _check_stop(body)
    if refusal is not None:
        return refusal
    prompts = _prompts(request)
    if isinstance(prompts, EngineReply):
        return prompts
    tokens = [_count_tokens(prompt) for prompt in prompts]
    if request.endpoint in (EMBEDDINGS, COUNT_TOKENS):
        if max(tokens) > max_model_len:
            return _too_long(max(tokens), 0, max_model_len)
        return Plan(request, prompts, sum(tokens), (), ())
    asked = next((body[name] for name in LIMIT_FIELDS[request.endpoint] if body.get(name)), None)
    if asked is None and request.endpoint == COMPLETIONS:
        asked = DEFAULT_COMPLETION
    if max(tokens) + (asked or 1) > max_model_len:
        return _too_long(max(tokens), asked, max_model_len)
    room = asked or max_model_len - max(tokens)
    natural = room if body.get("ignore_eos") is True else _natural_length(seed, request.id)
    length, reason = (room, "length") if natural >= room else (natural, "stop")
    choices = 1 if request.endpoint in (RESPONSES, MESSAGES) else body.get("n") or 1
    stops = _stops(request)
    ends = [_stopped(prompt, length, stops) or (length, reason) for prompt in prompts for _ in range(choices)]
    lengths, reasons = zip(*ends, strict=True)
    return Plan(request, prompts, sum(tokens), lengths, reasons, stops)


def answer(done: Plan, created_s: int, cached_tokens: int = 0) -> bytes:
    """The response body of a request that ran to its end.

    Args:
        done: the request.
        created_s: epoch seconds.
        cached_tokens: tokens of its prompts that came from the prefix cache.
    """
    if done.request.endpoint == EMBEDDINGS:
        return _embeddings(done)
    if done.request.endpoint == COUNT_TOKENS:
        return _json({"input_tokens": done.prompt_tokens})
    if done.request.endpoint == MESSAGES:
        return _json(message(done, cached_tokens))
    if done.request.endpoint == RESPONSES:
        return _json(response(done, created_s, cached_tokens))
    chat = done.request.endpoint == CHAT
    choices = [
        {
            "index": index,
            **({"message": {"role": "assistant", "content": text}} if chat else {"text": text}),
            "logprobs": None,
            "finish_reason": done.finish_reasons[index],
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
            "usage": usage_of(done, cached_tokens),
        }
    )


def texts(done: Plan) -> list[str]:
    """Text of each choice; one word is one token."""
    per_prompt = len(done.lengths) // len(done.prompts)
    whole = (_text(done.prompts[index // per_prompt], length) for index, length in enumerate(done.lengths))
    return [text[: min(_starts(text, done.stops), default=None)] for text in whole]


def texts_after(done: Plan, steps: int) -> list[str]:
    """Each prompt, with so many tokens of its first answer."""
    per_prompt = len(done.lengths) // len(done.prompts)
    lengths = done.lengths[:: per_prompt or 1] or [0] * len(done.prompts)
    made = [min(length, steps) for length in lengths]
    return [f"{text} {_text(text, most)}" if most else text for text, most in zip(done.prompts, made, strict=True)]


def usage_of(done: Plan, cached_tokens: int) -> dict[str, Any]:
    """Usage in tokens."""
    usage = _usage(done.prompt_tokens, sum(done.lengths))
    return {**usage, "prompt_tokens_details": {"cached_tokens": cached_tokens}}


def usage_so_far(done: Plan, index: int, steps: int) -> dict[str, Any]:
    """Usage of one choice after so many steps."""
    prompt = done.prompts[index * len(done.prompts) // len(done.lengths)]
    return _usage(_count_tokens(prompt), min(done.lengths[index], steps))


def _count_tokens(text: str) -> int:
    """Tokens of a text by the rule of thumb."""
    return max(1, math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN))


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


def _check_simulated(body: Mapping[str, Any]) -> EngineReply | None:
    for name, harmless in _NOT_SIMULATED.items():
        value = body.get(name)
        if value is not None and value is not False and value not in ("", [], {}, *harmless):
            return _not_simulated(name)
    text = body.get("text")  # where the Responses API has its schema
    if isinstance(text, dict) and text.get("format") not in (None, {"type": "text"}):
        return _not_simulated("text.format")
    return None


def _not_simulated(name: str) -> EngineReply:
    return error_reply(400, "is nothing that the simulated engine can do", name, "unsupported_parameter")


def _check_stop(body: Mapping[str, Any]) -> EngineReply | None:
    given = body.get("stop")
    stops = given if isinstance(given, list) else [given or ""]
    if not all(isinstance(stop, str) for stop in stops):
        return error_reply(400, "must be a string or an array of strings", "stop", "invalid_type")
    if len(stops) > _MOST_STOPS:
        return error_reply(400, f"must have at most {_MOST_STOPS} strings", "stop", "invalid_value")
    return None


def _stops(request: EngineRequest) -> tuple[str, ...]:
    """Texts that end an answer; empty for endpoints without the field."""
    name = {CHAT: "stop", COMPLETIONS: "stop", MESSAGES: "stop_sequences"}.get(request.endpoint, "")
    given = request.body.get(name)
    return tuple(filter(None, given if isinstance(given, list) else [given]))


def _stopped(prompt: str, length: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """Tokens up to the end of the first stop, and the finish reason; None if there is no stop so far."""
    text = _text(prompt, length) if stops else ""
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    return (len(text[: min(ends)].split(" ")), "stop") if ends else None


def _starts(text: str, stops: Sequence[str]) -> list[int]:
    return [text.index(stop) for stop in stops if stop in text]


def _prompts(request: EngineRequest) -> tuple[str, ...] | EngineReply:
    if request.endpoint == CHAT:
        return _chat_prompt(request.body.get("messages"))
    if request.endpoint == RESPONSES:
        return _input_prompt(request.body)
    if request.endpoint in (MESSAGES, COUNT_TOKENS):
        system = request.body.get("system")
        first = [{"role": "system", "content": system}] if system else []
        messages = request.body.get("messages")
        return _chat_prompt([*first, *messages] if isinstance(messages, list) else messages)
    if request.endpoint in {COMPLETIONS, EMBEDDINGS}:
        name = "prompt" if request.endpoint == COMPLETIONS else "input"
        return _plain_prompts(request.body.get(name), name)
    text = f"{request.endpoint} is not among what the simulated engine answers"
    return error_reply(404, text, "endpoint", "unknown_endpoint")


def _input_prompt(body: Mapping[str, Any]) -> tuple[str, ...] | EngineReply:
    """The prompt of the Responses API: instructions, and a text or messages."""
    given, instructions = body.get("input"), body.get("instructions")
    if not isinstance(instructions, str | None):
        return error_reply(400, "must be a string", "instructions", "invalid_type")
    found = (given,) if isinstance(given, str) else _chat_prompt(given, "input")
    return (" ".join(filter(None, (instructions, *found))),) if isinstance(found, tuple) else found


def _chat_prompt(messages: object, name: str = "messages") -> tuple[str, ...] | EngineReply:
    if not isinstance(messages, list) or not messages:
        return error_reply(400, "must be an array with at least one message", name, "invalid_type")
    texts = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return error_reply(400, "must be an object with a role", f"{name}.{index}.role", "invalid_type")
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if not isinstance(content, (str, type(None))):
            text = "must be a string or an array of parts"
            return error_reply(400, text, f"{name}.{index}.content", "invalid_type")
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
    """Length at which the answer would end without a limit: the same for the same seed and id."""
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


def response(done: Plan, created_s: int, cached_tokens: int = 0) -> dict[str, Any]:
    """The object of a response. Arguments as of `answer`."""
    body, (text,), (reason,) = done.request.body, texts(done), done.finish_reasons
    status = "completed" if reason == "stop" else "incomplete"
    message = {
        "id": f"msg_{done.request.id}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    used = sum(done.lengths)
    return {
        "id": f"resp_{done.request.id}",
        "object": "response",
        "created_at": created_s,
        "status": status,
        "error": None,
        "incomplete_details": None if reason == "stop" else {"reason": "max_output_tokens"},
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": MODEL,
        "output": [message],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": body.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": body.get("top_p"),
        "usage": {
            "input_tokens": done.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens},
            "output_tokens": used,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": done.prompt_tokens + used,
        },
    }


def message(done: Plan, cached_tokens: int = 0) -> dict[str, Any]:
    """The message of a request in Anthropic's terms. Arguments as of `answer`."""
    (text,), (reason,), whole = texts(done), done.finish_reasons, _text(done.prompts[0], done.lengths[0])
    stop = next((stop for stop in done.stops if whole[len(text) :].startswith(stop)), None)
    ends = {"stop_reason": "max_tokens"} if reason == "length" else {"stop_reason": "end_turn"}
    return {
        "id": f"msg_{done.request.id}",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": MODEL,
        **(ends if stop is None else {"stop_reason": "stop_sequence", "stop_sequence": stop}),
        "usage": {
            "input_tokens": done.prompt_tokens - cached_tokens,
            "output_tokens": sum(done.lengths),
            "cache_read_input_tokens": cached_tokens,
        },
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
