"""Streamed answers of the simulated engine: the same words, one chunk at a time."""

from __future__ import annotations

import json
from typing import Any

from streamfleet.common.protocol import CHAT
from streamfleet.worker.engine import simulated_api
from streamfleet.worker.engine.base import EngineRequest


class Chunks:
    """The chunks of one answer, in the order in which its tokens are made.

    Args:
        plan: what is answered.
        created_s: epoch seconds of the answer.
    """

    def __init__(self, plan: simulated_api.Plan, created_s: int) -> None:
        self._request: EngineRequest = plan.request
        self._plan = plan
        self._chat = plan.request.endpoint == CHAT
        self._tokens = [text.split(" ") for text in simulated_api.texts(plan)]
        self._made = 0
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{plan.request.id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created_s,
            "model": simulated_api.MODEL,
            "system_fingerprint": simulated_api.MODEL,
        }

    def make(self, steps: int) -> None:
        """Hand on what so many more steps add to each choice, as one chunk a choice."""
        if self._made == 0 and self._chat:
            self._hand_on([self._choice(index, {"role": "assistant", "content": ""}) for index in self._indexes])
        first, self._made = self._made, self._made + steps
        for index in self._indexes:
            tokens = self._tokens[index][first : self._made]
            if tokens:
                text = (" " if first else "") + " ".join(tokens)
                self._hand_on([self._choice(index, {"content": text} if self._chat else text)])

    def end(self) -> None:
        """Hand on how the answer ended."""
        for index in self._indexes:
            self._hand_on([self._choice(index, {} if self._chat else "", self._plan.finish_reasons[index])])
        if self._request.tells_usage:
            self._hand_on([], simulated_api.usage_of(self._plan))

    @property
    def _indexes(self) -> range:
        return range(len(self._tokens))

    def _choice(self, index: int, says: Any, finish_reason: str | None = None) -> dict[str, Any]:
        name = "delta" if self._chat else "text"
        return {"index": index, name: says, "logprobs": None, "finish_reason": finish_reason}

    def _hand_on(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> None:
        if self._request.on_chunk is None:
            return
        more = {} if usage is None else {"usage": usage}
        chunk = {**self._head, "choices": choices, **more}
        self._request.on_chunk(json.dumps(chunk, separators=(",", ":")).encode("ascii"))
