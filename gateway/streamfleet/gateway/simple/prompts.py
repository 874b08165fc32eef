"""Prompts of a call, checked, and the results of prompts, as callers see them.

A call's body goes in, and `PromptParameters` come out, with one request for each prompt. Results come from the queue's
results, or from the lines of a job's files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfleet.common import jsontext
from streamfleet.common.errors import InvalidRequest, naming
from streamfleet.common.protocol import CHAT, COMPLETIONS
from streamfleet.common.results import Result, tokens_used
from streamfleet.gateway.batch_records import BatchRecord
from streamfleet.gateway.batches.batch_parameters import read_callback, read_metadata
from streamfleet.gateway.batches.lines import number_lines
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.offload import TimeSlice, encode
from streamfleet.gateway.simple.reading import utf8_bytes

ENDPOINTS = (CHAT, COMPLETIONS)
OURS = frozenset(
    {"prompts", "endpoint", "system", "completion_window", "callback_url", "metadata", "service_tier", "stream"}
)
"""Fields of a call; all others are the model's, and go into each request."""
USUAL_WINDOW = "24h"
USUAL_TOKENS, USUAL_TEMPERATURE = 256, 0.7
MOST_BYTES = 67_108_864
"""Most bytes of both files; results of a larger job are read from its files only."""


@dataclass(frozen=True, slots=True)
class PromptParameters:
    """Prompts as they are asked for.

    Attributes:
        bodies: an OpenAI request for each.
        size_bytes: about how large they are together, as JSON.
        endpoint: where they go.
        window: by when a job has to be done, as the caller wrote it.
        metadata, callback_url: of a job.
    """

    bodies: Sequence[Mapping[str, Any]]
    size_bytes: int
    endpoint: str
    window: str
    metadata: Mapping[str, str] | None
    callback_url: str | None


def read_prompts(body: Mapping[str, Any], most_bytes: int) -> PromptParameters:
    """All of it.

    Args:
        body: of the call, as `read_call` read it.
        most_bytes: how large its requests may be together.

    Raises:
        InvalidRequest: a field is wrong; `param` names it.
    """
    prompts = body.get("prompts")
    if prompts is None:
        raise InvalidRequest("is missing: give a list of texts", "prompts", "missing_required_parameter")
    if not isinstance(prompts, list) or not prompts:
        raise InvalidRequest("must be a list with one prompt or more", "prompts", "invalid_type")
    endpoint, system, window = (
        body.get("endpoint", CHAT),
        body.get("system"),
        body.get("completion_window", USUAL_WINDOW),
    )
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(f"must be one of {', '.join(ENDPOINTS)}", "endpoint")
    if not isinstance(system, str | None):
        raise InvalidRequest("must be a text", "system", "invalid_type")
    if system is not None and endpoint != CHAT:
        raise InvalidRequest(f"is only for {CHAT}", "system")
    if not isinstance(window, str):
        raise InvalidRequest("must be a span such as 24h", "completion_window", "invalid_type")
    shared = {"temperature": USUAL_TEMPERATURE} | {name: value for name, value in body.items() if name not in OURS}
    if "max_completion_tokens" not in shared:  # OpenAI's newer name for the same
        shared.setdefault("max_tokens", USUAL_TOKENS)
    size_bytes = _checked_size(prompts, shared if system is None else {"system": system} | shared, most_bytes)
    return PromptParameters(
        [_body(prompt, endpoint, system, shared) for prompt in prompts],
        size_bytes,
        endpoint,
        window.strip(),
        read_metadata(body.get("metadata")),
        read_callback(body.get("callback_url")),
    )


def input_line(number: int, endpoint: str, body: Mapping[str, Any]) -> bytes:
    """A prompt as a line of a batch's input."""
    line = {"custom_id": str(number), "method": "POST", "url": endpoint, "body": body}
    return jsontext.compact(line).encode() + b"\n"


def of_result(number: int, result: Result) -> dict[str, Any]:
    """Returns the result of a prompt, from the result of its request."""
    return {
        "index": number,
        "status": "succeeded" if result.ok else "failed",
        "output": result.text if result.ok else None,
        "finish_reason": result.finish_reason,
        "usage": result.usage,
        "latency_ms": result.timings.total_ms,
        "error": None if result.ok else result.error or {"message": "no message", "code": result.status.value},
    }


def of_error(number: int, message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """A prompt that was not run."""
    error = {"message": naming(message, param), "type": "invalid_request_error", "param": param, "code": code}
    return {
        "index": number,
        "status": "failed",
        "output": None,
        "finish_reason": None,
        "usage": None,
        "latency_ms": None,
        "error": error,
    }


def of_line(text: bytes) -> dict[str, Any]:
    """Returns the result of a job's prompt, from its line in the output or the error file."""
    line = json.loads(text)
    custom_id, response, error = line["custom_id"], line["response"], line["error"]
    number = int(custom_id) if custom_id is not None else error.get("line", 1) - 1
    if error is not None:
        body = (response or {}).get("body")
        said = body.get("error") if isinstance(body, dict) else None
        found = said if isinstance(said, dict) else error
        return of_error(number, str(found.get("message")), found.get("code"), found.get("param"))
    body = response["body"]
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    return {
        "index": number,
        "status": "succeeded",
        "output": message.get("content") if isinstance(message, dict) else choice.get("text"),
        "finish_reason": choice.get("finish_reason"),
        "usage": body.get("usage") if isinstance(body, dict) else None,
        "latency_ms": None,
        "error": None,
    }


def has_results(job: BatchRecord, most_bytes: int = MOST_BYTES) -> bool:
    """True if the results of a job's prompts are shown: it has ended, and its files are not too large."""
    return job.status.ended and job.output_bytes + job.error_bytes <= most_bytes


async def results_of(files: Files, job: BatchRecord) -> list[bytes]:
    """Returns the results of a job's prompts as JSON, in their order. As objects they would take several times as much.

    Raises:
        ContentGone, StoreUnavailable: the files cannot be read.
    """
    found: list[tuple[int, bytes]] = []
    time_slice = TimeSlice()
    for file_id in (job.output_file_id, job.error_file_id):
        parts = await files.broker.parts(file_id)
        async for group in number_lines(files.read(parts), MOST_BYTES):
            for _, text in group:
                result = of_line(text)
                found.append((int(result["index"]), encode(result)))
                await time_slice.yield_if_over()
    return [text for _, text in sorted(found)]


def outputs_of(results: Iterable[bytes]) -> Iterator[str | None]:
    """Yields the texts of the answers, in the order of `results`; None for a prompt that failed."""
    return (json.loads(result)["output"] for result in results)


def tokens_of(results: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Tokens of the prompts and of the answers, in all."""
    usages = [result["usage"] for result in results if isinstance(result["usage"], dict)]
    prompt, completion = (
        sum(tokens_used(usage, name) or 0 for usage in usages) for name in ("prompt_tokens", "completion_tokens")
    )
    return prompt, completion


def totals(prompt_tokens: int, completion_tokens: int, ended: int, latency_ms: float) -> dict[str, Any]:
    """Token totals, latency and throughput, as they are shown.

    Args:
        prompt_tokens, completion_tokens: used.
        ended: prompts that did.
        latency_ms: how long all of it took.
    """
    seconds = max(latency_ms, 1.0) / 1000
    total_tokens = prompt_tokens + completion_tokens
    return {
        "total_tokens": total_tokens,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": total_tokens,
        },
        "latency_ms": round(latency_ms, 1),
        "throughput_tokens_per_sec": round(total_tokens / seconds, 3),
        "throughput": {
            "prompts_per_second": round(ended / seconds, 3),
            "output_tokens_per_second": round(completion_tokens / seconds, 3),
        },
    }


def _checked_size(prompts: Sequence[str], shared: Mapping[str, Any], most_bytes: int) -> int:
    """Bytes of all requests together, before any is made. Raises InvalidRequest: they are too many."""
    own, sizes = sum(map(utf8_bytes, prompts)), {}
    for name, value in shared.items():
        sizes[name] = len(jsontext.compact(value).encode())
    common = sum(sizes.values())
    size_bytes = own + len(prompts) * common
    if size_bytes > most_bytes:
        text = (
            f"{len(prompts)} prompts with {common} bytes that they share, and {own} bytes of their own, make requests "
            f"of {size_bytes} bytes; at most {most_bytes} are taken: send fewer prompts, or shorten what they share"
        )
        largest = max(sizes, key=lambda name: sizes[name])
        raise InvalidRequest(text, "prompts" if own > size_bytes / 2 else largest, "request_too_large")
    return size_bytes


def _body(prompt: str, endpoint: str, system: str | None, shared: Mapping[str, Any]) -> Mapping[str, Any]:
    if endpoint == COMPLETIONS:
        return {**shared, "prompt": prompt}
    messages = [] if system is None else [{"role": "system", "content": system}]
    return {**shared, "messages": [*messages, {"role": "user", "content": prompt}]}
