"""Cost of the constraints on an answer: schemas, regular expressions, choices, grammars.

A parsed body and the limits go in. A constraint that is too expensive raises InvalidRequest, and so does one that no
text can match: a pattern with a class of no character, or a schema whose `$ref` leads to nothing (`references.py`).
vLLM translates a schema on the event loop that every answer goes through, compiles it on a thread that all such
requests share, and asks the result at every step. A schema of 60 bytes could block the event loop for two minutes, the
thread for good, and each step for a second: docs/reliability.md has the measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.numbers import number, shown
from streamfleet.common.protocol import CHAT, COMPLETIONS, RESPONSES
from streamfleet.worker.cost.limits import CostLimits, Feature, too_expensive
from streamfleet.worker.cost.parts import MOST
from streamfleet.worker.cost.patterns import Empty, Unreadable, weigh
from streamfleet.worker.cost.references import check_references
from streamfleet.worker.cost.shape import check_shape

MOST_ROUNDS = 128
"""Beyond, xgrammar 0.2 breaks on a pattern in a schema, and vLLM answers 500: an engine's fault, not the request's."""
_FIELDS = (
    *("response_format", "structured_outputs", "text", "guided_json", "guided_regex", "guided_choice"),
    *("guided_grammar", "guided_whitespace_pattern", "structural_tag", "output_config"),
)
GUIDED = "guided_"
_SUCCESSORS = {f"{GUIDED}{name}": name for name in ("json", "regex", "choice", "grammar")}
_TOOLS = ("tools", "functions")
_PATTERNS = frozenset({"pattern", "regex", "guided_regex", "whitespace_pattern", "guided_whitespace_pattern"})
_GRAMMARS = frozenset({"grammar", "guided_grammar", "ebnf", "lark"})
_CHOICES = frozenset({"choice", "guided_choice"})
_JSON_TEXTS = frozenset({"json", "guided_json", "structural_tag", "schema", "json_schema"})
# Milliseconds of CPU, measured: any schema, and one of many tools together; a number with bounds; a character of a
# string with bounds, up to where the compiler counts no further; a property for each that may be absent; a pair of
# characters of a choice.
_SCHEMA_MS, _OF_TOOLS_MS = 0.2, 1.0
_RANGE_MS, _CHARACTER_MS, _COUNTED, _ABSENT_MS, _CHOICE_MS = 2.0, 10.0, 190, 1.0, 1 / 20_000


def check_grammars(body: Mapping[str, Any], limits: CostLimits) -> None:
    """Raise if matching the answer to its constraints would cost too much, or can never succeed.

    Args:
        body: no deeper than `shape.check_shape` allows.
        limits: the limits to check against.

    Raises:
        InvalidRequest: names the field, and the part of it that is too much.
    """
    for name in _FIELDS:
        if body.get(name) is not None:
            _check_bytes(name, body[name], limits)
            _Meter(name, limits).take(name, body[name])
            check_references(name, body[name])
    for name in _TOOLS:
        tools = body.get(name)
        if tools is not None:
            for tool in tools if isinstance(tools, list) else [tools]:
                _check_bytes(name, tool, limits)
            choice = body.get("tool_choice")
            kind = choice.get("type") if isinstance(choice, dict) else choice  # of a message, an object says `auto`
            compiled = kind not in (None, "none", "auto")
            if compiled and (size := len(json.dumps(tools))) > limits.max_tools_bytes:
                most = limits.max_tools_bytes
                message = f"are {size} bytes; at most {most} are allowed where tool_choice makes the model call one"
                raise too_expensive(name, message)
            _Meter(name, limits, _OF_TOOLS_MS if compiled else _SCHEMA_MS).take(name, tools)
            check_references(name, tools, compiled=compiled)


def translate_guided(body: Mapping[str, Any], limits: CostLimits | None, endpoint: str) -> dict[str, Any]:
    """Returns the body with `structured_outputs` in place of the `guided_…` fields, which vLLM ignores by now.

    Raises:
        InvalidRequest: a field has no successor, or would contradict another one; or what it becomes costs too much.
    """
    given = {name: body[name] for name in body if name.startswith(GUIDED) and body[name] is not None}
    passed = {name: value for name, value in body.items() if not name.startswith(GUIDED)}
    for name, value in given.items():
        if name not in _SUCCESSORS or endpoint not in (CHAT, COMPLETIONS, RESPONSES):
            known = ", ".join(f"structured_outputs.{each}" for each in _SUCCESSORS.values())
            text = f"is not supported on {endpoint[:40]}: vLLM has removed it; chats and completions take {known}"
            raise InvalidRequest(text, name[:80], "unsupported_parameter")
        for other in ("structured_outputs", "response_format", "text", *given):
            if other != name and body.get(other) not in (None, {"type": "text"}):
                raise InvalidRequest(f"cannot stand beside {other}: send one of them", name, "invalid_value")
        passed["structured_outputs"] = {_SUCCESSORS[name]: value}
        if limits is not None:
            check_grammars({"structured_outputs": passed["structured_outputs"]}, limits)
    return passed


def _check_bytes(name: str, value: Any, limits: CostLimits) -> None:
    size = len(json.dumps(value))
    if size > limits.max_grammar_bytes:
        raise too_expensive(name, f"is {size} bytes; at most {limits.max_grammar_bytes} are allowed")


class _Meter:
    """Adds up the time to compile one field; a repeated part is compiled once."""

    def __init__(self, field: str, limits: CostLimits, schema_ms: float = _SCHEMA_MS) -> None:
        self._field, self._limits, self._schema_ms = field, limits, schema_ms
        self._ms = 0.0
        self._characters = 0
        self._seen: set[object] = set()

    def take(self, key: str, value: Any) -> None:
        """Count everything within a value: engines do not agree on where a schema may stand."""
        waiting: list[tuple[str, Any]] = [(key, value)]
        while waiting:
            key, found = waiting.pop()
            if isinstance(found, str):
                waiting.extend(self._text(key, found))
            elif isinstance(found, dict):
                self._schema(found)
                waiting.extend(found.items())
            elif isinstance(found, list):
                if key in _CHOICES:
                    self._add(_CHOICE_MS * sum(len(item) ** 2 for item in found if isinstance(item, str)))
                waiting.extend((key, item) for item in found)

    def _text(self, key: str, text: str) -> list[tuple[str, Any]]:
        if key in _PATTERNS:
            self._pattern(text, MOST_ROUNDS if key == "pattern" else MOST)
        elif key in _GRAMMARS:
            self._limits.require(Feature.GRAMMARS, self._field, "has a grammar, whose cost cannot be told beforehand")
        elif key in _JSON_TEXTS:
            return [("", self._parsed(text))]
        return []

    def _parsed(self, text: str) -> Any:
        try:
            value = json.loads(text)
        except RecursionError:
            raise too_expensive(self._field, "nests too deeply") from None
        except ValueError:
            return None  # the engine refuses it
        check_shape({self._field: value}, self._limits)
        return value

    def _schema(self, schema: dict[str, Any]) -> None:
        self._add(self._schema_ms)
        for pattern in _mapping(schema, "patternProperties"):
            self._pattern(pattern, MOST_ROUNDS)
        bounds = tuple(number(schema.get(name)) for name in ("minLength", "maxLength"))
        if bounds != (None, None) and bounds not in self._seen:
            self._seen.add(bounds)
            self._add(_CHARACTER_MS * min(_COUNTED, max(0, *(bound or 0 for bound in bounds))))
        if any(name in schema for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")):
            self._add(_RANGE_MS)
        counts = [number(schema.get(name)) or 0 for name in ("minProperties", "maxProperties")]
        if max(counts) > 0:
            named = len(_mapping(schema, "properties"))
            self._add(_ABSENT_MS * named * min(named, max(counts)))

    def _pattern(self, pattern: str, most_rounds: int) -> None:
        if pattern in self._seen:
            return
        self._seen.add(pattern)
        self._characters += len(pattern)
        if self._characters > self._limits.max_grammar_bytes:
            most = self._limits.max_grammar_bytes
            raise too_expensive(self._field, f"has more than {most} characters of patterns")
        try:
            cost = weigh(pattern)
        except Unreadable as error:
            raise too_expensive(self._field, f"{_named(pattern)} {error}: its cost cannot be told") from None
        except Empty as error:  # the engine would answer 500, as if it were broken
            raise InvalidRequest(f"has {_named(pattern)}, which {error}", self._field, "invalid_value") from None
        if cost.size > self._limits.max_pattern_size:
            most = self._limits.max_pattern_size
            message = f"is {shown(cost.size)} characters long with its repeats written out; at most {most} are allowed"
            raise too_expensive(self._field, f"{_named(pattern)} {message}")
        if cost.ways > self._limits.max_pattern_ways:
            most = self._limits.max_pattern_ways
            message = f"reads the same text in up to {shown(cost.ways)} ways at once; at most {most} are allowed"
            raise too_expensive(self._field, f"{_named(pattern)} {message}: put something between its parts")
        if cost.rounds > most_rounds:
            message = f"repeats a part {shown(cost.rounds)} times; at most {most_rounds} are allowed in a schema"
            raise too_expensive(self._field, f"{_named(pattern)} {message}: use minLength and maxLength")
        self._add(cost.compile_ms)

    def _add(self, ms: float) -> None:
        self._ms += ms
        if self._ms > self._limits.max_grammar_ms:
            most = self._limits.max_grammar_ms
            raise too_expensive(self._field, f"takes longer to compile than {most} ms: use fewer bounds and patterns")


def _mapping(schema: dict[str, Any], name: str) -> dict[str, Any]:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}


def _named(pattern: str) -> str:
    return f"the pattern {pattern[:40]!r}{'…' if len(pattern) > 40 else ''}"
