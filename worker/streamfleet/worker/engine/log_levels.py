"""What a worker logs is its operator's choice: libraries that change levels for the whole process are undone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_levels_kept() -> Iterator[None]:
    """Within, libraries may do what they like to the root logger; afterwards it is as it was.

    vLLM 0.32 silences everything up to INFO while it probes configurations, and forgets to end that where a probe
    raises. model-hosting-container-standards, which its application loads, sets the root logger and its handlers to
    ERROR.
    """
    root = logging.getLogger()
    disabled, level = root.manager.disable, root.level
    handlers = [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        for handler, its_level in handlers:
            handler.setLevel(its_level)
