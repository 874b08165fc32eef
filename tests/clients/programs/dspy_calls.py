"""DSPy."""

from __future__ import annotations

from typing import Any

import dspy
from calls import EMBEDDER, KEY, LIMIT, MODEL, SAY, URL, call, run

model = dspy.LM(f"openai/{MODEL}", api_base=URL, api_key=KEY, cache=False, max_tokens=LIMIT)


@call
def chat() -> Any:
    return model(SAY)[0]


@call
def completion() -> Any:
    texts = dspy.LM(f"openai/{MODEL}", model_type="text", api_base=URL, api_key=KEY, cache=False, max_tokens=LIMIT)
    return texts(SAY)[0]


@call
def embeddings() -> Any:
    return len(dspy.Embedder(f"openai/{EMBEDDER}", api_base=URL, api_key=KEY, caching=False)(["a cat", "a dog"]))


run()
