"""Puts a whole answer together from its chunks, in the shape of the same engine's unstreamed answer. Pure.

Parsed chunks go in through `add`, `answer` returns the whole object. Used by `sse_parser.py`, so that a streamed
request has the same result as another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OBJECTS = {"chat.completion.chunk": "chat.completion"}
# These texts are names, and come whole, once or repeatedly; all other texts come in pieces.
_NAMES = frozenset({"role", "id", "type", "name", "finish_reason", "stop_reason", "object"})


class _Pieces(list[str]):
    """A text that arrives in pieces."""


class _Numbered(dict[tuple[int, int], dict[str, Any]]):
    """A list whose items arrive in pieces, each piece with the `index` of its item.

    Some servers give all tool calls the same index, and each an id: another id is another item.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, int] = {}

    def item(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """The item that a piece belongs to."""
        index = _index(piece)
        last = self._last.setdefault(index, 0)
        known = self.setdefault((index, last), {}).get("id")
        if known and piece.get("id") not in (None, "", known):
            last = self._last[index] = last + 1
        return self.setdefault((index, last), {})


class Assembly:
    """The answer so far."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add one chunk, in any order relative to the chunks of other choices."""
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in self._head):
                self._head[name] = value
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._add_choice(choice)

    @property
    def finished(self) -> bool:
        """True if every choice that has begun has ended."""
        return bool(self._choices) and all(choice.get("finish_reason") for choice in self._choices.values())

    def answer(self) -> dict[str, Any]:
        """The whole answer."""
        head = dict(self._head)
        if "object" in head:
            head["object"] = _OBJECTS.get(str(head["object"]), head["object"])
        if head.get("usage") is None:
            head.pop("usage", None)
        choices = [_whole_choice(self._choices[index]) for index in sorted(self._choices)]
        usage = {"usage": head.pop("usage")} if "usage" in head else {}
        return {**head, "choices": choices, **usage}

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        index = _index(choice)
        whole = self._choices.setdefault(index, {"index": index})
        rest = {name: value for name, value in choice.items() if name not in ("index", "delta")}
        _merge(whole, rest)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            _merge(whole.setdefault("message", {}), delta)


def _whole_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {"index": choice["index"]}
    if "message" in choice:
        message = {"role": "assistant", "content": None, "refusal": None, **_whole(choice["message"])}
        if message["content"] == "" and message.get("tool_calls"):
            message["content"] = None
        whole["message"] = message
    rest = {name: _whole(value) for name, value in choice.items() if name not in ("index", "message")}
    return {**whole, "logprobs": None, "finish_reason": None, **rest}


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif isinstance(value, str):
            _merge_text(into, name, known, value)
        elif isinstance(value, list):
            _merge_list(into, name, known, value)
        elif isinstance(value, dict):
            into[name] = known if isinstance(known, dict) else {}
            _merge(into[name], value)
        else:
            into[name] = value


def _merge_text(into: dict[str, Any], name: str, known: Any, value: str) -> None:
    if name in _NAMES:
        into[name] = known or value
    elif isinstance(known, _Pieces):
        known.append(value)
    else:
        into[name] = _Pieces([value])


def _merge_list(into: dict[str, Any], name: str, known: Any, value: list[Any]) -> None:
    if value and all(isinstance(item, dict) and "index" in item for item in value):
        numbered = known if isinstance(known, _Numbered) else _Numbered()
        into[name] = numbered
        for item in value:
            _merge(numbered.item(item), {key: part for key, part in item.items() if key != "index"})
    elif isinstance(known, list):
        known.extend(value)
    elif not isinstance(known, _Numbered):
        into[name] = list(value)


def _whole(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, _Numbered):
        return [_whole(value[index]) for index in sorted(value)]
    if isinstance(value, dict):
        return {name: _whole(part) for name, part in value.items()}
    return value


def _index(item: Mapping[str, Any]) -> int:
    index = item.get("index", 0)
    return index if isinstance(index, int) else 0
