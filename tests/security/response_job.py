"""The complete work of gateways on stored responses, and that of an operator."""

from __future__ import annotations

from dataclasses import replace

from streamfleet.common.connection import Connection
from streamfleet.gateway.api_keys import GatewayNames
from streamfleet.gateway.broker.responses import ChainCode, ResponseBroker, ResponseNames, ResponseRecord

FIRST = ResponseRecord("k-1", "t", "default", root="k-1", input="@20000 aa/in")
DONE = {"status": "completed", "response": "{}", "output": "[]"}


def _broker(url: str) -> ResponseBroker:
    return ResponseBroker(Connection(url, patience_s=0), ResponseNames(GatewayNames().base))


async def store_responses(url: str) -> None:
    """Two of a chain; what becomes of them where there is room for one."""
    me = _broker(url)
    try:
        assert await me.add(FIRST, 0)
        assert await me.due(5, 0) == ["k-1"]
        await me.look_in("k-1", 5)
        assert await me.finish(FIRST, DONE, ["msg_1"])
        assert await me.items("k", ["msg_1", "msg_2"]) == ["k-1"]
        second = replace(FIRST, id="k-2", previous="k-1", callback_url="https://example.com")
        assert await me.add(second, 0)
        assert (await me.chain("k-2", 100_000))[0] is ChainCode.READ
        assert all(await me.records(["k-1", "k-2"]))
        me.most = 1
        assert await me.finish(second, DONE)
        assert await me.add(replace(FIRST, id="k-3"), 0) is None
        await me.close_response("k-2")
        assert await me.delete("t", "k-2")
    finally:
        await me.close()


async def erase_responses(admin_url: str, url: str) -> None:
    """Those of a key, as it is revoked."""
    admin, me = _broker(admin_url), _broker(url)
    try:
        for name in ("k-1", "k-2"):
            await admin.add(replace(FIRST, id=name), 0)
        for each in await me.ids_of("t", "k"):
            assert await me.delete("t", each)
        assert await me.ids_of("t", "k") == []
    finally:
        await admin.close()
        await me.close()
