"""Haystack."""

from __future__ import annotations

import os
from typing import Any

from calls import CITY, EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run

os.environ |= {"OPENAI_API_KEY": KEY, "HAYSTACK_TELEMETRY_ENABLED": "False"}

from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool

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


def responding(**more: Any) -> Any:
    """The reply of a response."""
    made = OpenAIResponsesChatGenerator(model=MODEL, **SHARED, **more)
    return made.run([ChatMessage.from_user(SAY)])["replies"][0]


@call
def response() -> Any:
    return responding(generation_kwargs={"max_output_tokens": LIMIT}).text


@call
def response_streamed() -> Any:
    chunks: list[Any] = []
    said = responding(generation_kwargs={"max_output_tokens": LIMIT}, streaming_callback=chunks.append)
    return said.text and chunks


@call
def response_with_a_tool() -> Any:
    weather = Tool("weather", "weather of a city", CITY, function=str)
    chunks: list[Any] = []
    asked = {"tool_choice": "required"}
    return responding(generation_kwargs=asked, tools=[weather], streaming_callback=chunks.append).tool_calls


@call
def embeddings() -> Any:
    return OpenAITextEmbedder(model=EMBEDDER, **SHARED).run("a cat")["embedding"]


run()
