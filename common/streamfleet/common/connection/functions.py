"""Calls of scripts as Redis functions, and when a server takes EVALSHA in their place."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import redis.exceptions

from streamfleet.common import scripts
from streamfleet.common.connection.clients import Client
from streamfleet.common.keys import Keys

MOST_TOLD = 256
"""Most configurations that a process and a function remember; lua/lib/keys.lua has the same bound."""
AGAIN_S = 60.0
"""Seconds for which a server is called by EVALSHA after it had no function, before functions are tried again."""
_FORBIDDEN_OR_UNKNOWN = re.compile(r"['`]fcall['`]")


class NoFunction(Exception):
    """A server did not run a function."""


class Functions:
    """Functions on one server: a worker that finds none loads them, if its user may; a client goes on with EVALSHA.

    A function remembers the configuration and the shared keys of each queue: after the first call their digest stands
    for them, which spares a lone call 30 thousand of the server's 170 to 500 thousand instructions (callgrind). In a
    cluster each call declares all keys, because a slot that moves refuses only what is declared.

    Args:
        client: connections to the server.
        clustered: true if the server is a node of a cluster.
        clock: seconds; monotonic.

    Attributes:
        loaded: True if they were loaded through this object.
    """

    def __init__(self, client: Client, clustered: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clustered, self._library = client, clustered, scripts.library()
        self._shared = len(Keys("any").shared())
        self._told: set[tuple[str, str]] = set()
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
        try:
            return await self._send(verb, keys, args)
        except redis.exceptions.ResponseError as error:
            if not _not_run(error):
                raise
            refusal = error
        # A server at its memory limit refuses a function as a whole, but a script only where it needs memory.
        if not isinstance(refusal, redis.exceptions.OutOfMemoryError):
            # Clients load nothing: who loads functions also deletes old ones, and only workers do that.
            if _missing(refusal) and verb != "enqueue" and await self._loaded():
                return await self._once_more(verb, keys, args)
            self._not_before = self._clock() + AGAIN_S
        raise NoFunction

    async def _send(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        function = self._library.functions[verb]
        if verb == "enqueue":  # it has no configuration
            return await self._client.send("FCALL", function, len(keys), *keys, *args)
        digest = digest_of(args[0], tuple(keys[: self._shared]))
        if (verb, digest) in self._told and not self._clustered:
            own = keys[self._shared :]
            try:
                return await self._client.send("FCALL", function, 1 + len(own), keys[0], *own, digest, *args[1:])
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith("NOTTOLD"):
                    raise
        reply = await self._client.send("FCALL", function, len(keys), *keys, digest + args[0], *args[1:])
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told.add((verb, digest))
        return reply

    async def _once_more(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return await self._send(verb, keys, args)
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


@lru_cache(MOST_TOLD)
def digest_of(configuration: str, shared: tuple[str, ...]) -> str:
    """SHA-1, in hex, of a queue's configuration and its shared keys; a function remembers them by it."""
    return hashlib.sha1((configuration + "".join(shared)).encode(), usedforsecurity=False).hexdigest()


def _missing(error: redis.exceptions.ResponseError) -> bool:
    return "function not found" in str(error).lower()


def _not_run(error: redis.exceptions.ResponseError) -> bool:
    """True if the server refused the call itself, before anything in the function ran."""
    text = str(error).lower()
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return "script:" not in text
    return _missing(error) or _FORBIDDEN_OR_UNKNOWN.search(text) is not None
