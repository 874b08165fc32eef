"""OpenAI's Python SDK and langchain-openai ask the gateway by the Responses API: a line for each answer.

Runs with the Python of build/clients, which has these clients and nothing of streamfleet.
"""

from __future__ import annotations

import os
from importlib.metadata import version

import openai
from langchain_openai import ChatOpenAI

BASE_URL, KEY, MODEL = (os.environ[name] for name in ("CLIENTS_URL", "CLIENTS_KEY", "CLIENTS_MODEL"))
FIRST, SECOND = "Say hi", "And again"


def openai_sdk() -> str:
    """A response, and the next one of a conversation that the caller keeps."""
    client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    one = client.responses.create(model=MODEL, input=FIRST)
    turns = [{"role": "user", "content": FIRST}, *one.output, {"role": "user", "content": SECOND}]
    two = client.responses.create(model=MODEL, input=turns)  # type: ignore[arg-type]
    return checked(one.output_text, two.output_text)


def langchain() -> str:
    """The same by langchain's chat model."""
    model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, use_responses_api=True, max_retries=0)
    one = model.invoke(FIRST)
    two = model.invoke([("user", FIRST), one, ("user", SECOND)])
    return checked(one.text, two.text)


def checked(one: str, two: str) -> str:
    """The first answer, which repeats what was said, as the second does with all that was said before."""
    assert one.startswith(f"[simulated] {FIRST}"), one
    assert two.startswith(f"[simulated] {FIRST} [simulated]"), two
    return one[:60]


if __name__ == "__main__":
    for package, ask in (("openai", openai_sdk), ("langchain-openai", langchain)):
        print(f"{package} {version(package)} (Python): {ask()}", flush=True)
