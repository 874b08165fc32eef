"""Locates the server that holds the queue, also after it moved."""

from __future__ import annotations

import math
from typing import Protocol

from streamfleet.common.connection.urls import RedisUrl

ASK_TIMEOUT_S = 2.0
"""Longest wait for the answer of one Sentinel or node before the next is asked, in seconds."""


class Locator(Protocol):
    """Finds the server that takes a queue's writes now.

    Attributes:
        trust_s: time for which an answer is reused while no error contradicts it, in seconds.
    """

    trust_s: float

    def home(self, key: str) -> None:
        """Set the key that locates the queue in a cluster."""

    async def locate(self) -> str:
        """URL of the server, with its password.

        Raises:
            BrokerUnavailable: no Sentinel or node can tell for now.
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
