"""Calls of scripts as Redis functions, and when a server takes EVALSHA in their place."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.exceptions

from streamfleet.common import scripts
from streamfleet.common.connection.clients import Client

AGAIN_S = 60.0
"""Seconds for which a server is called by EVALSHA after it had no function, before functions are tried again."""
_FORBIDDEN_OR_UNKNOWN = re.compile(r"['`]fcall['`]")


class NoFunction(Exception):
    """A server did not run a function."""


class Functions:
    """Functions on one server: a worker that finds none loads them, if its user may; a client goes on with EVALSHA.

    Args:
        client: connections to the server.
        clock: seconds; monotonic.

    Attributes:
        loaded: True if they were loaded through this object.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._library = client, scripts.library()
        self._clock = clock
        self._not_before = 0.0
        self._may_load = True
        self.loaded = False

    async def call(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Call a verb's function.

        Raises:
            NoFunction: nothing was run, and EVALSHA has to run the script.
        """
        if verb not in scripts.FUNCTIONS or self._clock() < self._not_before:
            raise NoFunction
        words = ("FCALL", self._library.functions[verb], len(keys), *keys, *args)
        try:
            return await self._client.send(*words)
        except redis.exceptions.ResponseError as error:
            if not _not_run(error):
                raise
            refusal = error
        # A server at its memory limit refuses a function as a whole, but a script only where it needs memory.
        if not isinstance(refusal, redis.exceptions.OutOfMemoryError):
            # Clients load nothing: who loads functions also deletes old ones, and only workers do that.
            if _missing(refusal) and verb != "enqueue" and await self._loaded():
                return await self._once_more(words)
            self._not_before = self._clock() + AGAIN_S
        raise NoFunction

    async def _once_more(self, words: Sequence[Any]) -> Any:
        try:
            return await self._client.send(*words)
        except redis.exceptions.ResponseError as error:
            if _not_run(error):
                raise NoFunction from None
            raise

    async def load(self) -> None:
        """Load this release's functions, unless the server has them. Raises what redis-py raises."""
        try:
            await self._client.send("FUNCTION", "LOAD", self._library.text)
        except redis.exceptions.ResponseError as error:
            if "already exists" not in str(error):
                raise
        self.loaded = True

    async def _loaded(self) -> bool:
        if not self._may_load:
            return False
        try:
            await self.load()
        except redis.exceptions.ResponseError as error:
            # Not asked again: each refusal is a line in the server's ACL LOG.
            self._may_load = not isinstance(error, redis.exceptions.NoPermissionError)
            return False
        return True


def _missing(error: redis.exceptions.ResponseError) -> bool:
    return "function not found" in str(error).lower()


def _not_run(error: redis.exceptions.ResponseError) -> bool:
    """True if the server refused the call itself, before anything in the function ran."""
    text = str(error).lower()
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return "script:" not in text
    return _missing(error) or _FORBIDDEN_OR_UNKNOWN.search(text) is not None
