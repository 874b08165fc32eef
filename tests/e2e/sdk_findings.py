"""Findings of OpenAI's Python client at a gateway, as one object; tests/e2e/node/findings.mjs is the same in Node.

Blocking, as most who use it: the asynchronous client is what tests/integration/test_gateway*.py use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import openai

ENDED = ("completed", "failed", "expired", "cancelled")
POLL_S = 0.05
GIVE_UP_S = 60.0
Json = dict[str, Any]
GOOD = [f"r{number}" for number in range(6)]
"""The lines of a batch that the engine takes, by their custom_id."""


class Findings:
    """One client's.

    Args:
        setup: "base_url", "key", "model", and what to send; see `SETUP` of the tests.
    """

    def __init__(self, setup: Json) -> None:
        self.setup = setup
        self.model: str = setup["model"]
        self.client = openai.OpenAI(base_url=setup["base_url"], api_key=setup["key"], max_retries=0, timeout=60)

    def generating(self) -> Json:
        """At a model that writes."""
        with self.client:
            return {
                "models": self._models(),
                "chat": self._chat(),
                "completion": self._completion(),
                "response": self._response(),
                "errors": self._errors(),
                "files": self._files(),
                "batch": self._batch(self.setup["batch"], "/v1/chat/completions"),
                "batches": self._batches(),
                "cancelled": self._batch(self.setup["long_batch"], "/v1/chat/completions", cancelled=True),
            }

    def embedding(self) -> Json:
        """At a model that embeds."""
        with self.client:
            batch = self._batch(self.setup["batch"], "/v1/embeddings")
            return {"vectors": self._vectors(), "batch": batch, "batches": self._batches()}

    def _models(self) -> Json:
        listed = sorted(each.id for each in self.client.models.list())
        return {"listed": listed, "one": self.client.models.retrieve(self.model).id}

    def _chat(self) -> Json:
        create: Any = self.client.chat.completions.create
        answer = create(model=self.model, **self.setup["chat"])
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(create(model=self.model, **self.setup["chat"], **options))
        choices = [choice for chunk in chunks for choice in chunk.choices]
        return {
            "text": answer.choices[0].message.content,
            "finish_reason": answer.choices[0].finish_reason,
            "tokens": answer.usage.completion_tokens,
            "request_id": answer._request_id,
            "streamed": {
                "chunks": len(choices),
                "text": "".join(choice.delta.content or "" for choice in choices),
                "finish_reason": choices[-1].finish_reason,
                "usages": [chunk.usage.completion_tokens for chunk in chunks if chunk.usage],
                "last_has_choices": bool(chunks[-1].choices),
            },
        }

    def _completion(self) -> Json:
        create: Any = self.client.completions.create
        answer = create(model=self.model, **self.setup["completion"])
        chunks = create(model=self.model, **self.setup["completion"], stream=True)
        parts = [choice.text for chunk in chunks for choice in chunk.choices]
        tokens = answer.usage.completion_tokens
        return {"text": answer.choices[0].text, "tokens": tokens, "chunks": len(parts), "streamed": "".join(parts)}

    def _response(self) -> Json:
        create: Any = self.client.responses.create
        answer = create(model=self.model, **self.setup["response"])
        return {"text": answer.output_text, "tokens": answer.usage.output_tokens, "tier": answer.service_tier}

    def _errors(self) -> Json:
        def ask(**changes: Any) -> Any:
            create: Any = self.client.chat.completions.create
            return create(**({"model": self.model} | self.setup["chat"] | changes))

        stranger = openai.OpenAI(base_url=self.setup["base_url"], api_key="sf-not-a-key", max_retries=0)
        with stranger:
            no_key = _raised(lambda: list(stranger.models.list()))
        return {
            "no_key": no_key,
            "no_model": _raised(lambda: ask(model="gpt-9")),
            "bad_value": _raised(lambda: ask(temperature=-5)),
            "bad_value_streamed": _raised(lambda: ask(temperature=-5, stream=True)),
            "no_embeddings": _raised(lambda: self.client.embeddings.create(model=self.model, input="one")),
            "no_file": _raised(lambda: self.client.files.retrieve("file-" + "0" * 32)),
            "too_slow": _raised(lambda: ask(timeout=0.5, extra_body=self.setup["slow"])),
            "late_in_its_stream": _raised(
                lambda: list(ask(stream=True, extra_body=self.setup["long"], extra_headers=self.setup["soon"]))
            ),
        }

    def _upload(self, lines: Iterable[Json]) -> Any:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return self.client.files.create(file=("requests.jsonl", content), purpose="batch")

    def _files(self) -> Json:
        file = self._upload(self.setup["batch"])
        content = self.client.files.content(file.id).text
        return {
            "filename": file.filename,
            "purpose": file.purpose,
            "same_size": file.bytes == len(content.encode()),
            "lines": [json.loads(line) for line in content.split("\n") if line],
            "listed": file.id in [each.id for each in self.client.files.list(limit=1)],
            "deleted": self.client.files.delete(file.id).deleted,
            "gone": (_raised(lambda: self.client.files.retrieve(file.id)) or {}).get("code"),
        }

    def _until(self, batch: Any, reached: Callable[[Any], bool]) -> Any:
        give_up = time.monotonic() + GIVE_UP_S
        while not reached(batch):
            if time.monotonic() > give_up:
                raise AssertionError(f"the batch stays {batch.status}: {batch.request_counts}")
            time.sleep(POLL_S)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def _lines_of(self, file_id: str | None) -> list[Json]:
        if file_id is None:
            return []
        return [json.loads(line) for line in self.client.files.content(file_id).content.split(b"\n") if line]

    def _batch(self, lines: list[Json], endpoint: str, *, cancelled: bool = False) -> Json:
        create: Any = self.client.batches.create
        window: Json = {"endpoint": endpoint, "completion_window": "24h", "metadata": {"for": "a test"}}
        made = create(input_file_id=self._upload(lines).id, **window)
        if cancelled:
            self._until(made, lambda now: bool(now.status != "validating"))
            made = self.client.batches.cancel(made.id)
        done = self._until(made, lambda now: now.status in ENDED)
        return {
            "status": done.status,
            "counts": done.request_counts.to_dict(),
            "metadata": done.metadata,
            "listed": made.id in [each.id for each in self.client.batches.list(limit=1)],
            "output": self._lines_of(done.output_file_id),
            "errors": self._lines_of(done.error_file_id),
        }

    def _batches(self) -> Json:
        """A batch of each other endpoint."""
        return {endpoint: self._batch([asked], endpoint) for endpoint, asked in self.setup["batches"].items()}

    def _vectors(self) -> Json:
        words, tokens = self.setup["input"], self.setup["tokens"]

        def embed(given: Any, **more: Any) -> Any:
            return self.client.embeddings.create(model=self.model, input=given, **more)

        answer = embed(words)
        chat: Any = self.client.chat.completions.create
        return {
            "usual": _numbers(answer),
            "usage": answer.usage.prompt_tokens,
            "indexes": [each.index for each in answer.data],
            "float": _numbers(embed(words, encoding_format="float")),
            "base64": embed(words[0], encoding_format="base64").data[0].embedding,
            "one": _numbers(embed(words[0])),
            "of_tokens": _numbers(embed(tokens[0])),
            "of_token_lists": _numbers(embed(tokens)),
            "dimensions": _raised(lambda: embed(words, dimensions=64)),
            "too_long": _raised(lambda: embed("word " * 4_000)),
            "nothing": _raised(lambda: embed([])),
            "no_chat": _raised(lambda: chat(model=self.model, **self.setup["chat"])),
        }


def _numbers(answer: Any) -> list[list[float]]:
    return [each.embedding for each in answer.data]


def _raised(call: Callable[[], Any]) -> Json | None:
    try:
        call()
    except openai.APIError as error:
        status = getattr(error, "status_code", None)
        return {"kind": type(error).__name__, "status": status, "code": error.code, "param": error.param}
    return None


def messages(text: str) -> list[Json]:
    """The messages of a chat."""
    return [{"role": "user", "content": text}]


def line(url: str, custom_id: str, **body: Any) -> Json:
    """A line of a batch's input file."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def names(lines: list[Json]) -> list[str]:
    """The custom_id of each line, sorted."""
    return sorted(each["custom_id"] for each in lines)


def kind_and_code(error: Json) -> tuple[str, object]:
    """An error's class and code."""
    return error["kind"], error["code"]


def only_answers(found: Json) -> dict[str, Json]:
    """The answer of each batch of one line, by endpoint."""
    for batch in found["batches"].values():
        assert batch["counts"] == {"total": 1, "completed": 1, "failed": 0}, batch
    return {endpoint: batch["output"][0]["response"] for endpoint, batch in found["batches"].items()}


def check_batch(batch: Json, refused: str) -> None:
    """It completed, with the line that the engine refuses in its error file, and each custom_id once."""
    assert batch["status"] == "completed"
    assert batch["counts"] == {"total": len(GOOD) + 1, "completed": len(GOOD), "failed": 1}
    assert batch["metadata"] == {"for": "a test"}
    assert batch["listed"]
    assert (names(batch["output"]), names(batch["errors"])) == (sorted(GOOD), [refused])
    assert {each["response"]["status_code"] for each in batch["output"]} == {200}
    assert batch["errors"][0]["response"]["status_code"] == 400
