"""Locates the server that holds the queue, also after it moved: at a fixed address, by Sentinels, or in a cluster.

In a Redis Cluster, all keys of a queue share one hash tag, so a queue lives on one node, and all commands go there.
Commands that need the same connection (a blocking read and its id, a write and its WAIT) stay together, and no command
has to be parsed for its keys.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Protocol

import redis.exceptions
from redis.crc import key_slot

from streamfleet.common.connection.clients import Client
from streamfleet.common.connection.login import Login
from streamfleet.common.connection.translation import LOST, Refused, reason, translated
from streamfleet.common.connection.urls import Host, RedisUrl
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.common.replies import mapping

ASK_TIMEOUT_S = 2.0
"""Longest wait for the answer of one Sentinel or node before the next is asked, in seconds."""
_DOWN = {"s_down", "o_down"}


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


class SlotOwner:
    """Finds the slot's owner by asking known nodes in turn: those of the URL, and those that they named.

    Args:
        url: its hosts are some nodes of the cluster; one that answers is enough.
        address: the URL without password, for messages.
        login: at every node.

    Attributes:
        nodes: known nodes, the next to ask first.
        masters: URLs of the nodes that held slots when the owner was last found.
    """

    trust_s = math.inf  # a node that lost its slot answers MOVED

    def __init__(self, url: RedisUrl, address: str, login: Login | None = None) -> None:
        self._url, self._address, self._login = url, address, login
        self.nodes = list(url.hosts)
        self._slot = 0
        self.masters: list[str] = []

    def home(self, key: str) -> None:
        self._slot = key_slot(key.encode())

    async def locate(self) -> str:
        silent: list[str] = []
        refused: Refused | None = None
        for node in list(self.nodes):
            # Nodes are asked in rotation: a node cut off from the others keeps naming a dead master.
            self.nodes.append(self.nodes.pop(0))
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    owner = await self._ask(node)
            except LOST as error:
                if isinstance(ours := translated(error, self._address, clustered=True), Refused):
                    refused = ours  # passwords change node by node: another one may take this login
                silent.append(f"{node[0]}:{node[1]}: {reason(error)}")
                continue
            if owner is not None:
                return self._url.server_url(*owner)
        if len(silent) == len(self.nodes):
            raise refused or BrokerUnavailable(f"no node of {self._address} answers: {'; '.join(silent)}")
        raise BrokerUnavailable(f"no node of {self._address} holds slot {self._slot}, where this queue lives")

    async def _ask(self, node: Host) -> Host | None:
        """Owner of the slot as this node sees it; all nodes that it names are remembered."""
        client = Client(self._url.server_url(*node), self._login)
        try:
            ranges: list[list[Any]] = await client.send("CLUSTER", "SLOTS")
        except redis.exceptions.ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            raise SettingsError(
                f"REDIS_URL {self._address}: {node[0]}:{node[1]} is not in cluster mode: "
                "write redis:// for one server, redis+sentinel:// for Sentinels"
            ) from None
        finally:
            await client.close()
        owner: Host | None = None
        named: list[Host] = []
        owners: list[Host] = []
        for first, last, *members in ranges:
            hosts = [(_text(host) or node[0], int(port)) for host, port, *_ in members]
            named += hosts
            owners.append(hosts[0])
            if first <= self._slot <= last:
                owner = hosts[0]
        self._learn(named, forget=owner is not None)
        self.masters = [self._url.server_url(*host) for host in dict.fromkeys(owners)]
        return owner

    def _learn(self, named: list[Host], forget: bool) -> None:
        """Add nodes; with `forget`, drop those that left, so that the list does not grow while addresses change."""
        known = [node for node in self.nodes if not forget or node in named or node in self._url.hosts]
        self.nodes = [*known, *(node for node in dict.fromkeys(named) if node not in known)]


def _text(host: bytes | None) -> str:
    return "" if host is None or host == b"?" else host.decode()
