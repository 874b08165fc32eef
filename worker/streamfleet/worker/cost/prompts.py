"""Checks a body's prompt: amount of text, number of messages, and no reference that the engine would have to fetch.

A parsed body and the limits go in; a prompt that is too large raises InvalidRequest. `readable_bytes` estimates its
size for an engine, media included. Pure: nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.numbers import BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN
from streamfleet.common.protocol import COUNT_TOKENS, MESSAGES, RESPONSES
from streamfleet.worker.cost.amounts import INPUTS
from streamfleet.worker.cost.limits import CostLimits, Feature, prompt_too_long, too_expensive, too_long
from streamfleet.worker.cost.shape import is_ordinary, is_tokens

_TOKEN_BYTES = 4
# These fields are read together: as one prompt, or as prompts that share the engine's next step.
_TOGETHER = (
    "prompt",
    "tokens",
    "messages",
    "system",
    "instructions",
    "tools",
    "functions",
    "chat_template_kwargs",
    "previous_input_messages",
)
# These hold no media: a template prints what looks like one, so it counts as text.
_TEXT_ONLY = frozenset({"system", "instructions", "tools", "functions", "chat_template_kwargs"})
_EACH = ("query", "suffix", *INPUTS)
_MESSAGES = ("messages", "previous_input_messages", "input")
_MEDIA = frozenset({"image", "video", "audio", "file", "file_data", "image_pil"})
_MEDIA_URLS = frozenset({"image_url", "video_url", "audio_url", "file_url", "server_url"})
# Tokens of one medium, in the middle of the range of known models; `usage` corrects the estimate.
_MEDIUM_TOKENS = {
    "image": 1_300,  # a megapixel in patches of 28 x 28 (Qwen2.5-VL); Gemma 3 takes 256, Pixtral 4,096
    "audio": 750,  # 30 s at 25 tokens a second (Qwen2-Audio)
    "video": 6_272,  # vLLM's default of 32 frames, 196 tokens each (LLaVA-OneVision)
}
_TEMPLATES = ("chat_template", "default_chat_template")
_PROCESSING = ("mm_processor_kwargs", "media_io_kwargs")


def check_prompt(body: Mapping[str, Any], limits: CostLimits, longest: int | None = None, endpoint: str = "") -> None:
    """Raise if the prompt is too large, or refers to something outside the body.

    Args:
        body: no deeper than `shape.check_shape` allows.
        limits: the limits to check against.
        longest: most tokens of one sequence; None if the engine does not tell.
        endpoint: OpenAI path of the request.

    Raises:
        InvalidRequest: names the field that is too large, or that brings something that is not allowed.
    """
    _check_features(body, limits)
    _check_messages(body, limits, endpoint)
    for name in (*_TOGETHER, *_EACH):
        for key, value in _strings_and_parts(body.get(name)):
            _check_media(name, key, value, limits, endpoint)
    most = limits.max_prompt_bytes or (longest * MOST_BYTES_PER_TOKEN if longest else 0)
    if not most:
        return
    try:
        _check_bytes(body, most, None if limits.max_prompt_bytes else longest)
    except InvalidRequest as error:
        if endpoint in (MESSAGES, COUNT_TOKENS) and longest and error.code == "context_length_exceeded":
            size = sum(_text_bytes(body.get(name), media=name not in _TEXT_ONLY) for name in _TOGETHER)
            raise prompt_too_long(size // BYTES_PER_TOKEN, longest) from None
        raise


def readable_bytes(body: Mapping[str, Any], size: int) -> int:
    """A body's size in bytes, where each medium counts as text of the same number of tokens.

    Args:
        body: one that `check_prompt` let pass.
        size: its bytes as JSON text.
    """
    for name in (*_TOGETHER, *_EACH):
        for key, value in _strings_and_parts(body.get(name) if name not in _TEXT_ONLY else None):
            if given := _medium(key, value):
                kind = given[5:10].lower() if _is_data(given) else key.removeprefix("input_")[:5]
                size += _MEDIUM_TOKENS.get(kind, _MEDIUM_TOKENS["image"]) * BYTES_PER_TOKEN - len(given)
    return max(0, size)


def _medium(key: str, value: Any) -> str:
    """URL or base64 text of the medium that stands at a key; empty if none stands there."""
    # Only these two may hold base64 without `data:`.
    bare = key == "input_audio" or (key == "source" and isinstance(value, dict) and value.get("type") == "base64")
    if not bare and key not in _MEDIA and key not in _MEDIA_URLS:
        return ""
    if isinstance(value, dict):
        value = next((text for name in ("url", "data") if isinstance(text := value.get(name), str)), "")
    return value if isinstance(value, str) and (bare or _is_data(value) or "://" in value[:40]) else ""


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def _check_features(body: Mapping[str, Any], limits: CostLimits) -> None:
    template = next((name for name in _TEMPLATES if body.get(name) is not None), None)
    if _has(body.get("chat_template_kwargs"), *_TEMPLATES):
        template = "chat_template_kwargs"
    if template is not None:
        limits.require(Feature.CHAT_TEMPLATES, template, "brings a template of its own, which is a program to run")
    if body.get("prompt_embeds") is not None:
        limits.require(Feature.EMBEDS, "prompt_embeds", "brings tensors to load in place of a prompt")
    for name in _PROCESSING:
        if body.get(name):
            limits.require(Feature.PROCESSOR_KWARGS, name, "changes how media are loaded, at any cost")


def _has(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and any(value.get(name) is not None for name in names)


def _check_messages(body: Mapping[str, Any], limits: CostLimits, endpoint: str) -> None:
    for name in _MESSAGES:
        messages = body.get(name)
        if not isinstance(messages, list):
            continue
        inputs = name == "input" and endpoint != RESPONSES  # texts and prompts in tokens, each a prompt of its own
        talk = [item for item in messages if isinstance(item, dict)] if inputs else messages
        contents = (item.get("content") for item in talk if isinstance(item, dict))
        parts = sum(len(content) for content in contents if isinstance(content, list))
        most = limits.max_messages // 2 if name == "input" else limits.max_messages
        odd = sum(not is_ordinary(item) for item in talk) if name == "input" else 0
        for count, what, allowed in (
            (len(talk), "messages", most),
            (parts, "parts of messages", limits.max_messages),
            (odd, "items of unusual form", limits.max_odd_items),
        ):
            if count > allowed:
                raise too_expensive(name, f"has {count} {what}; at most {allowed} are allowed")


def _strings_and_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value that is not a list, with its key, from all levels of a value. The input of a call is one text."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        key, found = waiting.pop()
        if isinstance(found, list):
            if not is_tokens(found):
                waiting.extend((key, item) for item in found if not isinstance(item, int))
            continue
        yield key, found
        if isinstance(found, dict):
            if found.get("type") == "tool_use" and "input" in found:  # its keys are the tool's own
                found = {**found, "input": json.dumps(found["input"], ensure_ascii=False)}
            waiting.extend(found.items())


def _check_media(name: str, key: str, value: Any, limits: CostLimits, endpoint: str) -> None:
    if endpoint in (MESSAGES, COUNT_TOKENS):  # nothing else of a message is fetched
        if key == "source" and isinstance(value, dict) and value.get("type") == "url":
            limits.require(Feature.MEDIA_URLS, name, "has a source to fetch; send it as base64")
        return
    if key.endswith("_embeds") and value is not None:
        limits.require(Feature.EMBEDS, name, f"brings tensors to load, in {key[:80]!r}")
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or _is_data(url):
        return
    if key in _MEDIA_URLS or (key in _MEDIA and "://" in url[:40]):
        limits.require(Feature.MEDIA_URLS, name, f"has a {key[:80]} to fetch; send it as a data: URL")


def _check_bytes(body: Mapping[str, Any], most: int, longest: int | None) -> None:
    sizes = {
        name: sum(_prompt_bytes(item, media=name not in _TEXT_ONLY) for item in _items(body.get(name)))
        for name in _TOGETHER
    }
    each_prompt = longest is not None
    if each_prompt:  # each may be as long as the engine allows; the limit that an operator sets is of all together
        sizes["prompt"] = 0
    for name in (*_EACH, *(["prompt"] if each_prompt else [])):
        items = _items(body.get(name))
        if name == "documents" and "messages" in body:  # parts of one conversation
            sizes[name] = sum(map(_prompt_bytes, items))
            continue
        if name == "input":  # texts are separate inputs, objects are messages
            sizes[name] = sum(_prompt_bytes(item) for item in items if isinstance(item, dict))
            items = [item for item in items if not isinstance(item, dict)]
        for item in items:
            _check_size(name, _prompt_bytes(item), most, longest)
    _check_size(max(sizes, key=lambda name: sizes[name]), sum(sizes.values()), most, longest)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) and not is_tokens(value) else [value]


def _prompt_bytes(value: Any, *, media: bool = True) -> int:
    return (
        len(value) * _TOKEN_BYTES if isinstance(value, list) and is_tokens(value) else _text_bytes(value, media=media)
    )


def _check_size(name: str, size: int, most: int, longest: int | None) -> None:
    """`longest` if the limit follows from the model's context, None if it is a setting."""
    if size > most:
        message = f"brings what is to be read to {size} bytes; at most {most} are allowed"
        raise too_long(name, message, longest) if longest else too_expensive(name, message)


def _text_bytes(value: Any, *, media: bool) -> int:
    """Bytes of all text within a value: an upper bound of its tokens. With `media`, media are left out."""
    size = 0
    for key, found in _strings_and_parts(value):
        size += len(found.encode("utf-8", "replace")) if isinstance(found, str) else 0
        size -= len(_medium(key, found).encode("utf-8", "replace")) if media else 0
    return size
