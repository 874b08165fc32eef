"""Where the server is that holds the queue, and how to find it again after it moved."""

from __future__ import annotations

import math
from typing import Protocol

from streamfleet.common.connection.urls import RedisUrl

ASK_TIMEOUT_S = 2.0
"""How long one Sentinel or node may take to answer before the next is asked."""


class Locator(Protocol):
    """Finds the one server that takes a queue's writes now.

    Attributes:
        trust_s: for how long, in seconds, an answer is taken for right while nothing speaks against it.
    """

    trust_s: float

    def home(self, key: str) -> None:
        """The queue's keys live where this one does."""

    async def locate(self) -> str:
        """URL of the server, with its password.

        Raises:
            BrokerUnavailable: nobody can say for now.
            SettingsError: the URL is wrong.
        """


class FixedServer:
    """A server that is always at the address in the URL."""

    trust_s = math.inf

    def __init__(self, url: RedisUrl) -> None:
        self._url = url.server_url()

    def home(self, key: str) -> None:
        pass

    async def locate(self) -> str:
        return self._url
