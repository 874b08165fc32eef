"""Haystack."""

from __future__ import annotations

import os
from typing import Any

from calls import EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run

os.environ |= {"OPENAI_API_KEY": KEY, "HAYSTACK_TELEMETRY_ENABLED": "False"}

from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage

SHARED: dict[str, Any] = {"api_base_url": URL}


def asked(**more: Any) -> Any:
    """The text of a chat."""
    made = OpenAIChatGenerator(model=MODEL, generation_kwargs={"max_tokens": LIMIT}, **SHARED, **more)
    return made.run([ChatMessage.from_user(SAY)])["replies"][0].text


@call
def chat() -> Any:
    return asked()


@call
def chat_streamed() -> Any:
    chunks: list[Any] = []
    return asked(streaming_callback=chunks.append) and chunks


@call
def embeddings() -> Any:
    return OpenAITextEmbedder(model=EMBEDDER, **SHARED).run("a cat")["embedding"]


run()
