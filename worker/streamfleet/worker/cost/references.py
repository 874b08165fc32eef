"""Checks that each `$ref` of a JSON schema leads to a part of the schema that says something.

A field of a body goes in; a reference that leads to nothing but itself, to nowhere or out of the schema raises
InvalidRequest. To an engine's compiler, `{"$ref": "#"}` is a grammar that allows no text: the request ends as a 500 in
the middle of its answer, as if the engine were broken. A recursive schema whose every round adds something, such as a
tree, passes. Takes time linear in the size of the field. Pure: nothing is fetched.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.numbers import shown

# Fields whose value is a schema, or the text of one; `structural_tag` is no schema, but holds some.
_SCHEMAS = frozenset({"json", "guided_json", "schema", "json_schema", "parameters", "input_schema"})
_TEXTS = frozenset({*_SCHEMAS, "structural_tag"})
# Keywords whose value holds schemas by names of the caller's choice, and those whose value is data.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_DATA = frozenset({"const", "enum", "default", "example", "examples"})


def check_references(name: str, field: Any, *, compiled: bool = True) -> None:
    """Raise if a schema in a field has a `$ref` that leads to nothing but itself, to nowhere or out of the schema.

    Args:
        name: name of the field.
        field: its value, as `check_shape` lets it pass.
        compiled: False if most engines only show the schema to the model, such as tools that it may choose. Then a
            reference to nowhere or out of the schema passes; an engine that compiles it nevertheless refuses it.

    Raises:
        InvalidRequest: names the field, and the reference.
    """
    for schema in _schemas(name, field):
        _check(name, schema, compiled=compiled)


def _schemas(name: str, field: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a field, wherever an engine may look for one."""
    waiting: list[tuple[str, Any]] = [(name, field)]
    if name == "response_format" and isinstance(field, dict):  # there, `json_schema` is an object around the schema
        waiting = [("" if key == "json_schema" else key, value) for key, value in field.items()]
    while waiting:
        key, found = waiting.pop()
        if isinstance(found, str) and key in _TEXTS:
            waiting.append((key, _parsed(found)))
        elif isinstance(found, list):
            waiting.extend((key, item) for item in found)
        elif isinstance(found, dict) and key in _SCHEMAS:
            yield found
        elif isinstance(found, dict):
            waiting.extend(found.items())


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:  # the engine refuses it
        return None
    return None if isinstance(value, str) else value  # a text within a text is read once


def _check(name: str, root: dict[str, Any], *, compiled: bool) -> None:
    """Raise if a `$ref` of a schema leads to nothing but itself, to nowhere or out of the schema.

    A schema waits for all that it stands for: the targets of its `$ref`, each member of `allOf`, one member of `anyOf`
    and of `oneOf`. What waits for nothing says something, and so does whatever waits only for what says something. The
    rest waits for itself.
    """
    missing: dict[int, int] = {}
    waits_for: defaultdict[int, list[int]] = defaultdict(list)
    references: dict[int, str] = {}
    waiting: list[dict[str, Any]] = [root]
    while waiting:
        schema = waiting.pop()
        if id(schema) in missing:
            continue
        parts: list[Any] = _items(schema, "allOf")
        if isinstance(reference := schema.get("$ref"), str):
            references[id(schema)] = reference
            parts += (targets := _targets(name, root, reference, compiled=compiled))
            waiting.extend(target for target in targets if isinstance(target, dict))
        for either in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(either, list) and either:
                parts.append(either)
                missing[id(either)] = 1
                for option in either:
                    waits_for[id(option)].append(id(either))
        missing[id(schema)] = len(parts)
        for part in parts:
            waits_for[id(part)].append(id(schema))
        waiting.extend(_inside(schema))
    _settle(missing, waits_for)
    for key, reference in references.items():
        if missing[key] > 0:
            raise _useless(name, reference, "leads to nothing but itself")


def _settle(missing: dict[int, int], waits_for: dict[int, list[int]]) -> None:
    """Subtract from `missing` all that says something."""
    ready = [key for key in waits_for if missing.get(key, 0) == 0]
    while ready:
        for waiter in waits_for.pop(ready.pop(), ()):
            missing[waiter] -= 1
            if missing[waiter] == 0:
                ready.append(waiter)


def _inside(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas directly within a schema."""
    for key, value in schema.items():
        if key in _DATA:
            continue
        named = value.values() if isinstance(value, dict) and key in _NAMED else [value]
        inside = value if isinstance(value, list) else named
        yield from (each for each in inside if isinstance(each, dict))


def _items(schema: dict[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return list(value) if isinstance(value, list) else []


def _targets(name: str, root: dict[str, Any], reference: str, *, compiled: bool) -> list[Any]:
    """The parts of the schema that a reference leads to: as the standard reads it, and as compilers without escapes do.

    Raises:
        InvalidRequest: there is none, and the schema is compiled.
    """
    if reference != "#" and not reference.startswith("#/"):
        if not compiled:
            return []
        raise _useless(name, reference, "leads out of its schema: it must be '#', or begin with '#/'")
    steps = reference.split("/")[1:]
    escaped = [unquote(step).replace("~1", "/").replace("~0", "~") for step in steps]
    found = [_at(root, each) for each in (escaped, [step for step in steps if step])]
    targets = [target for target in found if isinstance(target, (dict, bool))]
    if not targets and compiled:
        raise _useless(name, reference, "leads to no part of its schema")
    return targets


def _at(root: Any, steps: list[str]) -> Any:
    """The value at the end of the steps; None if there is none."""
    for step in steps:
        if isinstance(root, dict):
            root = root.get(step)
        elif isinstance(root, list) and step.isascii() and step.isdigit() and len(step) < 6:
            root = root[int(step)] if int(step) < len(root) else None
        else:
            return None
    return root


def _useless(name: str, reference: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"has a $ref {shown(reference)!r} that {why}", name, "invalid_value")
