"""A process that calls the brokers of the streamfleet in its PYTHONPATH, as it is told: one side of a comparison.

It reads pickled calls from its standard input, and writes a pickled reply to each. Values cross as plain data, because
the classes of the two sides need not be the same.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Mapping, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from streamfleet.common import limits, protocol, scripts
from streamfleet.common.broker import housekeeping, types
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.operator.broker import repairing
from tests.broker import Broker

ANSWER_S = 30.0
MODULES = (types, limits, protocol, housekeeping, repairing)
"""Modules of the classes that calls take."""


def plain(value: Any) -> Any:
    """A value as built-in types; of an object its class, and the fields that do not have their default."""
    if isinstance(value, Enum):
        return {"class": type(value).__name__, "value": value.value}
    if is_dataclass(value):
        given = {field.name: (getattr(value, field.name), field.default) for field in fields(value) if field.init}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        usual: Mapping[str, Any] = value._field_defaults  # type: ignore[attr-defined]
        given = {name: (getattr(value, name), usual.get(name, MISSING)) for name in value._fields}
    elif isinstance(value, Mapping):
        return {"pairs": [[plain(key), plain(item)] for key, item in value.items()]}
    elif isinstance(value, Set):
        return sorted(map(plain, value))
    else:
        return [*map(plain, value)] if isinstance(value, list | tuple) else value
    some = {name: plain(found) for name, (found, default) in given.items() if found != default}
    return {"class": type(value).__name__, "fields": some}


def made(value: Any) -> Any:
    """A value from what `plain` returned, with this side's classes."""
    if isinstance(value, list):
        return [*map(made, value)]
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {made(key): made(item) for key, item in value["pairs"]}
    kind = next(vars(module)[value["class"]] for module in MODULES if value["class"] in vars(module))
    return kind(value["value"]) if "value" in value else kind(**made_fields(value["fields"]))


def made_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same of each value of a mapping."""
    return {name: made(value) for name, value in values.items()}


async def serve(url: str) -> None:
    """Answer calls until there are no more. What a connection remembers ends with `begin`."""
    sys.stdout = sys.stderr  # for log lines
    connection = Connection(url)
    say([scripts.__file__, repairing.__file__])
    while (told := hear()) is not None:
        queue, given, verb, args, named = told
        if verb == "begin":
            await connection.close()
            connection = Connection(url)
            continue
        target = Broker(connection, Keys(queue), made(given)) if given else connection
        try:
            async with asyncio.timeout(ANSWER_S):
                say(("reply", plain(await getattr(target, verb)(*made(args), **made_fields(named)))))
        except Exception as error:  # noqa: BLE001 - the other side has to raise the same
            say(("raised", type(error).__name__))
    await connection.close()


def hear() -> Any:
    """The next call; None behind the last."""
    try:
        return pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    except EOFError:
        return None


def say(reply: Any) -> None:
    """Write one reply."""
    assert sys.__stdout__
    pickle.dump(reply, sys.__stdout__.buffer)
    sys.__stdout__.buffer.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
