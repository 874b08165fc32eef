"""The part of the producers' and operators' brokers that follows the queue's configuration, `{q}:meta`."""

from __future__ import annotations

import asyncio

import structlog

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.errors import NotPermitted, SettingsError

log = structlog.get_logger(__name__)
FRESH_S = 1.0
REFUSED_S = 60.0
"""Time after which a client asks again for a configuration that its user may not read."""


class ClientBroker(BrokerBase):
    """Follow the queue's configuration without a loop: by a look before a limit is used."""

    _fresh_until = 0.0
    _told = ""

    async def refresh_configuration(self) -> None:
        """Follow the queue's configuration, read at most once a second.

        A client that may not read it, or finds it unusable, goes on with its own environment, and says so once.
        """
        now = asyncio.get_running_loop().time()
        if now < self._fresh_until:
            return
        self._fresh_until = now + FRESH_S
        try:
            self.follow(await self.configuration())
            self._told = ""
        except SettingsError as error:
            if isinstance(error, NotPermitted):
                self._fresh_until = now + REFUSED_S
            if str(error) != self._told:
                self._told = str(error)
                log.warning("queue_configuration_not_followed", reason=self._told)
