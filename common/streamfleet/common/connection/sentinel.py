"""Locates the master by asking Sentinels."""

from __future__ import annotations

import asyncio

import redis.exceptions

from streamfleet.common.connection.clients import Client
from streamfleet.common.connection.locator import ASK_TIMEOUT_S
from streamfleet.common.connection.login import Login
from streamfleet.common.connection.translation import LOST, Refused, reason, translated
from streamfleet.common.connection.urls import Host, RedisUrl
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.common.replies import mapping

_DOWN = {"s_down", "o_down"}


class SentinelMaster:
    """Finds the master by asking the Sentinels in turn, the last that answered first.

    Args:
        url: its hosts are the Sentinels.
        address: the URL without passwords, for messages.
        login: at every Sentinel.
    """

    # In a manual failover, the old master takes writes for some ten seconds more before the Sentinels make it a
    # replica; these writes are lost.
    trust_s = 1.0

    def __init__(self, url: RedisUrl, address: str, login: Login) -> None:
        self._url, self._address, self._login = url, address, login
        self._sentinels = list(url.hosts)
        self._known = False

    def home(self, key: str) -> None:
        pass

    async def locate(self) -> str:
        silent: list[str] = []
        watched: list[set[str]] = []
        refused: Refused | None = None
        for host in list(self._sentinels):
            # If the caller's time is up while this Sentinel is silent, the next try begins with another.
            self._sentinels.append(self._sentinels.pop(0))
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    masters = await self._ask(host)
            except (*LOST, Refused) as error:
                ours = error if isinstance(error, Refused) else translated(error, self._address, clustered=False)
                if isinstance(ours, Refused):
                    refused = ours
                silent.append(f"{host[0]}:{host[1]}: {reason(error)}")
                continue
            watched.append(set(masters))
            found = masters.get(self._url.service)
            if found is None or found.get("is_down"):
                continue
            self._sentinels.remove(host)
            self._sentinels.insert(0, host)
            self._known = True
            return self._url.server_url(found["ip"], int(found["port"]))
        if refused is not None and not watched:
            raise refused
        raise self._not_found(silent, watched)

    async def _ask(self, host: Host) -> dict[str, dict[str, str]]:
        """State of each service as a Sentinel sees it."""
        client = Client(self._url.sentinel_url(*host), self._login)
        try:
            rows = await client.send("SENTINEL", "MASTERS")
        except (redis.exceptions.AuthenticationError, redis.exceptions.ResponseError) as error:
            raise self._refusal(host, error) from None
        finally:
            await client.close()
        return {state["name"]: state for state in map(_state, rows)}

    def _refusal(self, host: Host, error: redis.exceptions.RedisError) -> Exception:
        who = f"{host[0]}:{host[1]}"
        if isinstance(error, redis.exceptions.AuthenticationError):
            why = f"the Sentinel {who} refuses the user or password: add ?sentinel_username=…&sentinel_password=…"
        elif isinstance(error, redis.exceptions.NoPermissionError):
            why = f"the user at the Sentinel {who} lacks a permission, +sentinel|masters: {error}"
        elif "unknown command" in str(error).lower():
            why = f"{who} is no Sentinel but a Redis: name the Sentinels, port 26379 as a rule, or write redis://"
        else:
            return error
        kind = Refused if isinstance(error, redis.exceptions.AuthenticationError) else SettingsError
        return kind(f"REDIS_URL {self._address}: {why}")

    def _not_found(self, silent: list[str], watched: list[set[str]]) -> Exception:
        service = self._url.service
        if not watched:
            return BrokerUnavailable(f"no Sentinel of {self._address} answers: {'; '.join(silent)}")
        names = set.union(*watched)
        if service not in names and not self._known:
            others = f"only {', '.join(sorted(names))}" if names else "nothing"
            return SettingsError(f"REDIS_URL {self._address}: the Sentinels watch no {service!r}, {others}")
        return BrokerUnavailable(
            f"the Sentinels of {self._address} know no master that is up: a failover may be under way"
        )


def _state(row: list[bytes]) -> dict[str, str]:
    state = {name.decode(): value.decode(errors="replace") for name, value in mapping(row).items()}
    state["is_down"] = "yes" if _DOWN & set(state.get("flags", "").split(",")) else ""
    return state
