"""Fits a message, a request in Anthropic's terms, to the engine that is to answer it.

Anthropic's API requires `max_tokens`, and its clients send more than most models can write: the engine would refuse
what the context does not leave. So the prompt is counted where it may be too long for both, which takes no slot.
"""

from __future__ import annotations

import json
import re

from streamfleet.common.numbers import BYTES_PER_TOKEN
from streamfleet.common.protocol import COUNT_TOKENS
from streamfleet.worker.cost.amounts import cut_output, without_budget
from streamfleet.worker.cost.limits import prompt_too_long
from streamfleet.worker.engine.base import Engine, EngineReply, EngineRequest
from streamfleet.worker.engine.sse_parser import HIDDEN, named

_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "chat_template_kwargs")
_TEMPLATE_TOKENS = 512
"""A chat template seldom adds more; beyond that, a token has at least a byte of the body, but for images."""
_IMAGE = '"type": "image"'
"""Part of every body with an image, as text; within a string it has other quotes."""
_PROMPT = re.compile(r"contains (?:at least )?([0-9]{1,12}) input tokens")
_CONTEXT = re.compile(r"context length")
_BUDGET = b"thinking_token_budget"
"""Part of vLLM's refusal of a budget that it cannot keep."""


async def ask(engine: Engine, request: EngineRequest) -> EngineReply:
    """Returns the engine's answer to a message that is fitted to its context. Raises as `Engine.run`."""
    refused = await fit(engine, request)
    reply, take = refused or await engine.run(request), request.on_chunk
    if request.streams and reply.status >= 400 and HIDDEN.encode() in reply.body:
        request.on_chunk = None  # unstreamed, the same request says what is wrong with it
        reply = await engine.run(request)
    if reply.status == 400 and _BUDGET in reply.body and (without := without_budget(request.body)) != request.body:
        request.body, request.on_chunk = without, take  # a server does not tell whether it has a reasoning parser
        reply = await engine.run(request)
    reply.body = named(reply.body)
    return reply


async def fit(engine: Engine, request: EngineRequest) -> EngineReply | None:
    """Cut the `max_tokens` of a message to what its prompt leaves. Returns a refusal if that is nothing, else None.

    Raises:
        EngineError: as `Engine.run`.
    """
    body = request.body
    asked, longest = body.get("max_tokens"), engine.capacity().max_model_len
    text = json.dumps(body)
    size = len(text)
    if type(asked) is not int or not longest or (asked + size + _TEMPLATE_TOKENS <= longest and _IMAGE not in text):
        return None
    counted = {name: body[name] for name in _COUNTED if name in body}
    reply = await engine.run(EngineRequest(request.id, COUNT_TOKENS, counted, request.lane, request.deadline_ms))
    if reply.status == 404:  # a server that cannot count, or has no such model: its answer says so
        return None
    answer = json.loads(reply.body)
    if reply.status >= 400:
        return _too_long(str(answer), size, longest) or reply
    tokens = answer.get("input_tokens")
    if not isinstance(tokens, int):
        return None
    if tokens >= longest:
        return _refusal(tokens, longest)
    if asked > longest - tokens:
        request.body = cut_output(body, longest - tokens)
    return None


def _refusal(tokens: int, longest: int) -> EngineReply:
    return EngineReply(400, prompt_too_long(tokens, longest).to_openai().encode())


def _too_long(said: str, size: int, longest: int) -> EngineReply | None:
    """The refusal, where an engine counts no further than the context: with an estimate, if that is more."""
    if not _CONTEXT.search(said):
        return None
    told = _PROMPT.search(said)
    return _refusal(max(longest + 1, int(told[1]) if told else 0, size // BYTES_PER_TOKEN), longest)
