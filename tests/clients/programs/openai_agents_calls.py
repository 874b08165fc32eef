"""openai-agents: the Responses API by default, and chat completions."""

from __future__ import annotations

import os
from typing import Any

from calls import KEY, LIMIT, MODEL, SAY, URL, call, run

os.environ |= {"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": KEY, "OPENAI_AGENTS_DISABLE_TRACING": "1"}

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_default_openai_client
from openai import AsyncOpenAI

SETTINGS = ModelSettings(max_tokens=LIMIT)


@function_tool
def weather(warm: bool) -> str:
    """The weather."""
    return f"warm: {warm}"


def chatting(**more: Any) -> Agent:
    """An agent that uses chat completions."""
    return Agent("a", model=OpenAIChatCompletionsModel(MODEL, AsyncOpenAI()), **({"model_settings": SETTINGS} | more))


@call
async def chat() -> Any:
    return (await Runner.run(chatting(), SAY)).final_output


@call
async def chat_streamed() -> Any:
    running = Runner.run_streamed(chatting(), SAY)
    return [event async for event in running.stream_events()] and running.final_output


@call
async def tool() -> Any:
    settings = ModelSettings(tool_choice="required")
    agent = chatting(tools=[weather], model_settings=settings, tool_use_behavior="stop_on_first_tool")
    return (await Runner.run(agent, SAY)).final_output


@call
async def responses() -> Any:
    return (await Runner.run(Agent("a", model=MODEL, model_settings=ModelSettings(temperature=0)), SAY)).final_output


@call
async def responses_streamed() -> Any:
    set_default_openai_client(AsyncOpenAI())  # the one of the call before belongs to the loop of that
    running = Runner.run_streamed(Agent("a", model=MODEL, model_settings=ModelSettings(temperature=0)), SAY)
    return [event async for event in running.stream_events()] and running.final_output


run()
