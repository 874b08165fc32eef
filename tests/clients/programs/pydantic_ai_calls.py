"""pydantic-ai."""

from __future__ import annotations

from typing import Any

from calls import KEY, LIMIT, MODEL, SAY, URL, call, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=URL, api_key=KEY)
model, responding = OpenAIChatModel(MODEL, provider=provider), OpenAIResponsesModel(MODEL, provider=provider)


class Place(BaseModel):
    """Shape that an answer must have."""

    warm: bool


@call
def chat() -> Any:
    return Agent(model).run_sync(SAY, model_settings={"max_tokens": LIMIT}).output


@call
async def chat_streamed() -> Any:
    async with Agent(model).run_stream(SAY, model_settings={"max_tokens": LIMIT}) as stream:
        return [text async for text in stream.stream_text()][-1]


@call
def output_by_a_tool() -> Any:
    return Agent(model, output_type=Place).run_sync(SAY).output


@call
def output_by_a_schema() -> Any:
    return Agent(model, output_type=NativeOutput(Place)).run_sync(SAY).output


@call
def response() -> Any:
    return Agent(responding).run_sync(SAY, model_settings={"max_tokens": LIMIT}).output


@call
async def response_streamed() -> Any:
    async with Agent(responding).run_stream(SAY, model_settings={"max_tokens": LIMIT}) as stream:
        return [text async for text in stream.stream_text()][-1]


@call
async def response_by_a_tool() -> Any:
    async with Agent(responding, output_type=Place).run_stream(SAY) as stream:
        return await stream.get_output()


run()
