"""Locates the node of a Redis Cluster that holds a queue's slot.

All keys of a queue share one hash tag, so a queue lives on one node, and all commands go there. Commands that need the
same connection (a blocking read and its id, a write and its WAIT) stay together, and no command has to be parsed for
its keys.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import redis.exceptions
from redis.crc import key_slot

from streamfleet.common.connection.clients import Client
from streamfleet.common.connection.locator import ASK_TIMEOUT_S
from streamfleet.common.connection.login import Login
from streamfleet.common.connection.translation import LOST, Refused, reason, translated
from streamfleet.common.connection.urls import Host, RedisUrl
from streamfleet.common.errors import BrokerUnavailable, SettingsError


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
