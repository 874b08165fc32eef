"""Python's garbage collector in a process that holds many requests at once."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""New objects before the garbage collector runs. With Python's 700 it runs while one reply with hundreds of requests is
processed, takes short-lived objects for lasting ones, and then goes through all requests far too often."""


def collect_rarely() -> None:
    """Collect now, take all that is left for lasting, and collect young objects less often from now on.

    Call it once everything has started: examining modules and an engine again and again delays every request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
