"""langchain-openai: chat models, completions, embeddings."""

from __future__ import annotations

from typing import Any

from calls import CITY, EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

model = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_tokens=LIMIT)


@call
def chat() -> Any:
    return model.invoke(SAY).text


@call
def chat_streamed() -> Any:
    return "".join(chunk.text for chunk in model.stream(SAY))


@call
def structured() -> Any:
    schema = {"title": "place", "description": "a place", **CITY}
    unlimited = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY)  # a name may be long
    return unlimited.with_structured_output(schema).invoke("Is it warm in Rome?")


@call
def tool() -> Any:
    described = {"title": "weather", "description": "weather of a city", **CITY}
    unlimited = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY)
    return unlimited.bind_tools([described], tool_choice="any").invoke(SAY).tool_calls


@call
def completions_of_40_prompts() -> Any:
    asked = OpenAI(model=MODEL, base_url=URL, api_key=KEY, max_tokens=4).generate([f"{n} and" for n in range(40)])
    return len(asked.generations) == 40


@call
def embeddings() -> Any:
    asked = OpenAIEmbeddings(model=EMBEDDER, base_url=URL, api_key=KEY).embed_documents(["a cat", "a dog"])
    return len(asked) == 2 and asked[0]


@call
def responses() -> Any:
    asked = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_tokens=LIMIT, use_responses_api=True)
    one = asked.invoke(SAY)
    return asked.invoke([("user", SAY), one, ("user", "And again")]).text


@call
def responses_streamed() -> Any:
    asked = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, max_tokens=LIMIT, use_responses_api=True)
    return "".join(chunk.text for chunk in asked.stream(SAY))


@call
def responses_with_a_tool() -> Any:
    described = {"title": "weather", "description": "weather of a city", **CITY}
    asked = ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, use_responses_api=True)
    (first, *rest) = asked.bind_tools([described], tool_choice="any").stream(SAY)
    return sum(rest, first).tool_calls


run()
