"""instructor, in its default mode and with a schema."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from calls import KEY, MODEL, SAY, URL, call, run
from pydantic import BaseModel

client = openai.OpenAI(base_url=URL, api_key=KEY)
ASKED: Any = [{"role": "user", "content": SAY}]


class Place(BaseModel):
    """Shape that an answer must have."""

    warm: bool


def asked(mode: instructor.Mode) -> Any:
    """The answer in a mode."""
    return instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL, messages=ASKED, response_model=Place
    )


@call
def tools() -> Any:
    return asked(instructor.Mode.TOOLS)


@call
def schema() -> Any:
    return asked(instructor.Mode.JSON_SCHEMA)


@call
def response() -> Any:
    responding = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
    return responding.responses.create(model=MODEL, input=SAY, response_model=Place)


run()
