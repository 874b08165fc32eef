"""langchain-anthropic: chat models."""

from __future__ import annotations

from typing import Any

from calls import CITY, KEY, LIMIT, MODEL, SAY, URL, call, run
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage

SHARED: dict[str, Any] = {"model": MODEL, "base_url": URL.removesuffix("/v1"), "api_key": KEY}
WEATHER = {"title": "weather", "description": "weather of a city", **CITY}
model, unlimited = ChatAnthropic(**SHARED, max_tokens=LIMIT), ChatAnthropic(**SHARED)


@call
def message() -> Any:
    return model.invoke([("system", "Be kind"), ("user", SAY)]).text


@call
def message_without_a_limit() -> Any:
    return unlimited.invoke(SAY, stop=["a", "e", "i", "o"]).response_metadata["stop_reason"]


@call
def message_streamed() -> Any:
    return "".join(chunk.text for chunk in model.stream(SAY))


@call
def conversation() -> Any:
    return model.invoke([("user", SAY), model.invoke(SAY), ("user", "And again")]).text


@call
def tool_and_its_result() -> Any:
    bound = unlimited.bind_tools([WEATHER], tool_choice="any")
    asked = bound.invoke(SAY)
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0]["id"], "content": "It is warm"}
    return model.bind_tools([WEATHER]).invoke([("user", SAY), asked, result]).content


@call
def tool_streamed() -> Any:
    (first, *rest) = unlimited.bind_tools([WEATHER], tool_choice="any").stream(SAY)
    return sum(rest, first).tool_calls[0]["args"]["city"]


@call
def structured() -> Any:
    return unlimited.with_structured_output(WEATHER).invoke("Is it warm in Rome?")["city"]


@call
def tokens_counted() -> Any:
    return model.get_num_tokens_from_messages([HumanMessage(SAY)])


run()
