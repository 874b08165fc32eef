"""OpenAI's Python SDK."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import openai
from calls import CITY, EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run
from pydantic import BaseModel

client = openai.OpenAI(base_url=URL, api_key=KEY)
ASKED: list[Any] = [{"role": "user", "content": SAY}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


class Place(BaseModel):
    """Shape that an answer must have."""

    warm: bool


@call
def models() -> Any:
    return [each.id for each in client.models.list() if each.id == MODEL]


@call
def chat() -> Any:
    return client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=LIMIT).choices[0].message.content


@call
def chat_streamed() -> Any:
    chunks = list(client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=LIMIT, stream=True))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@call
def chat_streamed_with_usage() -> Any:
    options: Any = {"include_usage": True}
    asked = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=LIMIT, stream=True, stream_options=options
    )
    usage = list(asked)[-1].usage
    return usage and usage.completion_tokens


@call
def tool() -> Any:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    asked = client.chat.completions.create(model=MODEL, messages=ASKED, tools=TOOLS, tool_choice=choice)
    (made,) = asked.choices[0].message.tool_calls or ()
    return json.loads(made.function.arguments)  # type: ignore[union-attr]


@call
def tool_streamed() -> Any:
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=TOOLS, tool_choice="required") as stream:
        (made,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    return json.loads(made.function.arguments)


@call
def parsed() -> Any:
    answer = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Place)
    return answer.choices[0].message.parsed


@call
def completions_of_20_prompts() -> Any:
    answer = client.completions.create(model=MODEL, prompt=[f"{number} and" for number in range(20)], max_tokens=4)
    assert len(answer.choices) == 20
    return answer.choices


@call
def completion_streamed() -> Any:
    asked = client.completions.create(model=MODEL, prompt=SAY, max_tokens=8, stream=True)
    return "".join(chunk.choices[0].text for chunk in asked)


@call
def embeddings_of_tokens() -> Any:
    answer = client.embeddings.create(model=EMBEDDER, input=[[1, 2, 3], [4, 5]])
    return len(answer.data) == 2 and answer.data[0].embedding


@call
def error_of_the_model() -> Any:
    try:
        client.chat.completions.create(model="none", messages=ASKED)
    except openai.NotFoundError as error:
        return "none" in str(error) and error.code
    return None


@call
def error_of_the_context() -> Any:
    try:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi " * 9000}])
    except openai.BadRequestError as error:
        return error.code == "context_length_exceeded"
    return None


@call
def batch() -> Any:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
    body = {"model": MODEL, "messages": ASKED, "max_tokens": 4}
    file = client.files.create(file=io.BytesIO(json.dumps(line | {"body": body}).encode()), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for _ in range(300):
        made = client.batches.retrieve(made.id)
        if made.status in ("completed", "failed", "expired", "cancelled"):
            break
        time.sleep(0.2)
    return made.output_file_id and client.files.content(made.output_file_id).text


@call
def response() -> Any:
    return client.responses.create(model=MODEL, input=SAY, max_output_tokens=LIMIT).output_text


@call
def response_of_a_conversation() -> Any:
    one = client.responses.create(model=MODEL, input=SAY, max_output_tokens=LIMIT)
    turns: Any = [{"role": "user", "content": SAY}, *one.output, {"role": "user", "content": "And again"}]
    return client.responses.create(model=MODEL, input=turns, max_output_tokens=LIMIT).output_text


@call
def response_streamed() -> Any:
    events = list(client.responses.create(model=MODEL, input=SAY, max_output_tokens=LIMIT, stream=True))
    return events[-1].type == "response.completed"


@call
def response_parsed() -> Any:
    return client.responses.parse(model=MODEL, input=SAY, text_format=Place).output_parsed


@call
def response_with_a_tool() -> Any:
    tools: list[Any] = [{"type": "function", "name": "weather", "parameters": CITY, "strict": True}]
    with client.responses.stream(model=MODEL, input=SAY, tools=tools, tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        (made,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in kinds, kinds
    return json.loads(made.arguments)  # type: ignore[union-attr]


@call
def response_continued() -> Any:
    one = client.responses.create(model=MODEL, input=SAY, max_output_tokens=LIMIT, store=True)
    return client.responses.create(model=MODEL, input=SAY, previous_response_id=one.id).output_text


@call
def response_in_the_background() -> Any:
    return client.responses.create(model=MODEL, input=SAY, max_output_tokens=LIMIT, background=True).id


run()
