"""The part of the producers' and operators' brokers that follows the queue's configuration, `{q}:meta`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from streamfleet.common.broker.base import BrokerBase
from streamfleet.common.broker.types import Expected, TenantRule
from streamfleet.common.errors import NotPermitted, SettingsError, UnknownProtocol
from streamfleet.common.logs import Logger
from streamfleet.common.protocol import Lane
from streamfleet.common.replies import ready_member

Asked = (
    tuple[Lane, str]
    | tuple[Lane, str, int | None, None, str | None]
    | tuple[Lane, None, int | None, int | None]
    | tuple[Lane, None, int | None, int | None, str, int]
)
"""Lane and stream id of a request that waits, and its rank (epoch ms) if that is known; or lane, None, deadline (epoch
ms) and ttl (ms) of one that would wait. Then its tenant, empty for none, None where it is not known; and how many more
of the same call go first."""
log = Logger(__name__)
FRESH_S = 1.0


class ClientBroker(BrokerBase):
    """Follow the queue's configuration without a loop: by a look before a limit is used."""

    _fresh_until = 0.0
    _told = _unknown_protocol = ""

    async def refresh_configuration(self) -> None:
        """Follow the queue's configuration, read at most once a second.

        A client that finds it unusable goes on with its own environment, and says so once.

        Raises:
            UnknownProtocol: this version does not know the queue's protocol.
            NotPermitted: this user may not read it.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._fresh_until:
            self._fresh_until = now + FRESH_S
            await self._read_configuration()
        if self._unknown_protocol:
            raise UnknownProtocol(self._unknown_protocol)

    async def _read_configuration(self) -> None:
        try:
            self.follow(await self.configuration())
            self._told = self._unknown_protocol = ""
        except UnknownProtocol as error:
            self._unknown_protocol = str(error)
        except NotPermitted:
            self._fresh_until = 0.0  # otherwise the calls of the next second would go on without a look
            raise
        except SettingsError as error:
            self._unknown_protocol = ""
            if str(error) != self._told:
                self._told = str(error)
                log.warning("queue_configuration_not_followed", reason=self._told)

    async def set_tenant(self, tenant: str, rule: TenantRule) -> bool:
        """Set a tenant's weight and limit. False if newer values were set, and nothing was changed."""
        words = f"{rule.weight:.6g} {rule.max_running or ''}"
        args = [tenant, words, rule.key or "-", rule.set_ms or ""]
        return bool(await self.connection.script("set_tenant", [self.keys.tenants], args))

    async def expected(self, asked: Sequence[Asked]) -> list[Expected]:
        """Place and time of requests, as the pace of the queue lets expect; see lua/policies/pace.lua."""
        rows = [
            [
                lane.number,
                ready_member(stream_id) if stream_id else False,
                *(False if value is None else value for value in more),
            ]
            for lane, stream_id, *more in asked
        ]
        reply = await self.connection.script(
            "expected", [*self._shared, self.keys.pace], [self._config, json.dumps(rows)]
        )
        found = [int(value) if value else None for value in reply]
        return [Expected(*found[at : at + 5]) for at in range(0, len(found), 5)]
