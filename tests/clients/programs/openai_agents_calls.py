"""openai-agents: the Responses API by default, and chat completions."""

from __future__ import annotations

import os
from typing import Any

from calls import KEY, LIMIT, MODEL, SAY, URL, call, run

os.environ |= {"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": KEY, "OPENAI_AGENTS_DISABLE_TRACING": "1"}

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_default_openai_client
from openai import AsyncOpenAI

SETTINGS = ModelSettings(max_tokens=LIMIT)
COOL, FORCED = ModelSettings(temperature=0), ModelSettings(temperature=0, tool_choice="required")


@function_tool
def weather(warm: bool) -> str:
    """The weather."""
    return f"warm: {warm}"


def chatting(**more: Any) -> Agent:
    """An agent that uses chat completions."""
    return Agent("a", model=OpenAIChatCompletionsModel(MODEL, AsyncOpenAI()), **({"model_settings": SETTINGS} | more))


def responding(**more: Any) -> Agent:
    """An agent that uses responses, as by default."""
    set_default_openai_client(AsyncOpenAI())  # the one of the call before belongs to the loop of that
    return Agent("a", model=MODEL, **({"model_settings": COOL} | more))


async def streamed(agent: Agent) -> Any:
    """A run, streamed to its end."""
    running = Runner.run_streamed(agent, SAY)
    assert [event async for event in running.stream_events()]
    return running


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
    return (await Runner.run(responding(), SAY)).final_output


@call
async def responses_streamed() -> Any:
    return (await streamed(responding())).final_output


@call
async def responses_with_a_tool() -> Any:
    running = await streamed(responding(tools=[weather], model_settings=FORCED))
    assert "tool_call_output_item" in {item.type for item in running.new_items}, running.new_items
    return running.final_output


@call
async def responses_with_a_hand_off() -> Any:
    running = await streamed(responding(handoffs=[Agent("b", model=MODEL, model_settings=COOL)], model_settings=FORCED))
    return running.last_agent.name == "b" and running.final_output


run()
