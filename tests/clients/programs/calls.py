"""Parts of each program here: functions that ask as their client does by default, and a line for each outcome.

Runs with the Python of one client's environment, which has nothing of streamfleet.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL = os.environ["CLIENTS_URL"]
KEY, MODEL, EMBEDDER, FOLDER = (os.environ[f"CLIENTS_{name}"] for name in ("KEY", "MODEL", "EMBEDDER", "FOLDER"))
SAY, LIMIT = "Say hi", 24
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
_calls: dict[str, Callable[[], Any]] = {}


def call(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a call; it raises, or returns something that is not empty. Its name in words is its row's."""
    _calls[function.__name__.replace("_", " ")] = function
    return function


def run() -> None:
    """Make all calls, or those named as arguments, and print `{"call": …, "error": …}` for each."""
    for name in sys.argv[1:] or _calls:
        error = None
        try:
            answer = _calls[name]()
            if inspect.iscoroutine(answer):
                import asyncio

                answer = asyncio.run(answer)
            assert answer, f"an empty answer: {answer!r}"
        except BaseException as failed:  # noqa: BLE001 - whatever a client raises is this row's outcome
            traceback.print_exc()
            error = f"{type(failed).__name__}: {failed}"[:500]
        print(json.dumps({"call": name, "error": error}), flush=True)
