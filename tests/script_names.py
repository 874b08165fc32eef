"""Words by which a call of a script is known in what is sent to Redis."""

from __future__ import annotations

from streamfleet.common import scripts


def names(verb: str) -> list[bytes]:
    """The script's hash, for EVALSHA, and its function's name, for FCALL."""
    function = scripts.library().functions.get(verb)
    return [name.encode() for name in (scripts.sha(verb), function) if name]
