"""Outlines."""

from __future__ import annotations

from typing import Any

import openai
import outlines
from calls import KEY, LIMIT, MODEL, SAY, URL, call, run
from pydantic import BaseModel

model = outlines.from_openai(openai.OpenAI(base_url=URL, api_key=KEY), MODEL)


class Place(BaseModel):
    """Shape that an answer must have."""

    warm: bool


@call
def chat() -> Any:
    return model(SAY, max_tokens=LIMIT)


@call
def chat_streamed() -> Any:
    return "".join(model.stream(SAY, max_tokens=LIMIT))


@call
def schema() -> Any:
    return Place.model_validate_json(model(SAY, Place))


run()
