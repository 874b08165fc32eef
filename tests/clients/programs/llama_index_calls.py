"""LlamaIndex with its classes for servers that speak as OpenAI's."""

from __future__ import annotations

from typing import Any

from calls import EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

shared: dict[str, Any] = {"model": MODEL, "api_base": URL, "api_key": KEY, "max_tokens": LIMIT}
completing, chatting = OpenAILike(**shared), OpenAILike(**shared, is_chat_model=True)


@call
def complete() -> Any:
    return completing.complete(SAY).text


@call
def complete_streamed() -> Any:
    return list(completing.stream_complete(SAY))[-1].text


@call
def chat() -> Any:
    return chatting.chat([ChatMessage(role="user", content=SAY)]).message.content


@call
def chat_streamed() -> Any:
    return list(chatting.stream_chat([ChatMessage(role="user", content=SAY)]))[-1].message.content


@call
def embeddings() -> Any:
    model = OpenAILikeEmbedding(model_name=EMBEDDER, api_base=URL, api_key=KEY)
    return model.get_text_embedding_batch(["a cat", "a dog"])


run()
