"""Files of requests for the gateway's batches, and what came of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai

from tests.waiting import eventually

CHAT: Any = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, tokens: int = 2, **changes: Any) -> str:
    """One request."""
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": f"This is {custom_id}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes)


def write(folder: Path, lines: Iterable[str], name: str = "in.jsonl") -> Path:
    """A file of them."""
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


async def start(sdk: openai.AsyncOpenAI, path: Path, window: str = "24h", endpoint: Any = CHAT, **options: Any) -> Any:
    """Upload a file, and run it."""
    file = await sdk.files.create(file=path, purpose="batch")
    wanted: Any = window
    return await sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=wanted, **options)


async def ended(sdk: openai.AsyncOpenAI, batch_id: str, within_s: float = 30.0) -> Any:
    """The batch, once it has ended."""

    async def look() -> Any:
        batch = await sdk.batches.retrieve(batch_id)
        return batch if batch.status in ENDED else None

    return await eventually(look, within_s, f"{batch_id} ends")


async def answered(sdk: openai.AsyncOpenAI, batch_id: str, most: int) -> Any:
    """The batch, once some of it is answered; fails when more than `most` are by then."""

    async def look() -> Any:
        batch = await sdk.batches.retrieve(batch_id)
        return batch if batch.request_counts and batch.request_counts.completed else None

    batch = await eventually(look, 30, "some of it is answered")
    assert batch.request_counts.completed <= most, "it was to be caught in the middle"
    return batch


async def read(sdk: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of one of its files; none where there is no file."""
    if file_id is None:
        return []
    content = await sdk.files.content(file_id)
    return [json.loads(text) for text in content.content.split(b"\n") if text]


async def both(sdk: openai.AsyncOpenAI, batch: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of its output and of its error file."""
    return await read(sdk, batch.output_file_id), await read(sdk, batch.error_file_id)


async def nothing_outstanding(rows: Any, within_s: float, lane: str = "low") -> None:
    """Wait until the lane is empty: the requests that were in it are answered or cancelled."""

    async def empty() -> bool:
        return not await rows.xlen(f"{{default}}:lane:{lane}")

    await eventually(empty, within_s, f"nothing is outstanding in lane {lane}")


def names(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Their custom_ids, in order."""
    return sorted(each["custom_id"] for each in lines if each["custom_id"] is not None)


LINES = [line("a"), line("b")]
TEXT = "".join(f"{text}\n" for text in LINES)
BODIES = [json.loads(text)["body"] for text in LINES]
NO_REQUESTS: dict[str, bytes] = {
    "utf-16": TEXT.encode("utf-16"),
    "utf-16 without a mark": TEXT.encode("utf-16-le"),
    "utf-16, the other order": TEXT.encode("utf-16-be"),
    "utf-32": TEXT.encode("utf-32"),
    "an array": f"[{', '.join(LINES)}]\n".encode(),
    "an array of many lines": json.dumps([json.loads(text) for text in LINES], indent=1).encode(),
    "an object of many lines": json.dumps(json.loads(LINES[0]), indent=1).encode(),
    "bare bodies": "\n".join(map(json.dumps, BODIES)).encode(),
    "texts": b"Say hi\nSay ho\n",
    "a table": b"custom_id,prompt\na,Say hi\n",
    "nulls": b"null\n{}\n[]\n",
    "a mark alone": b"\xef\xbb\xbf",
    "something packed": gzip.compress(TEXT.encode()),
}
"""Files without any request."""
