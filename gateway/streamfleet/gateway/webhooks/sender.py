"""Sends one webhook: looks the host's name up once, checks every address, and connects to a checked one.

Only the status and Retry-After of an answer are used: its body is not stored or shown, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

from streamfleet.common.errors import InvalidRequest
from streamfleet.gateway.webhooks.retry_policy import Answer
from streamfleet.gateway.webhooks.targets import (
    LookUps,
    NameUnknown,
    NeverAllowed,
    Policy,
    host_of,
    read_target,
    resolve_target,
)

MOST_ANSWER_BYTES = 4_096
"""Most bytes of an answer that are read: some receivers treat an early close as an error."""
MOST_ADDRESSES = 3
TIMEOUT_S = 20.0
"""Limit for one webhook, from the name's look-up to the answer. An attempt starts in the first half of its lease, and
must end before the lease does, so this is less than half of a lease."""
CONNECT_S, LINGER_S = 5.0, 1.0


class Sender:
    """Sends webhooks. It reuses no connection, so that an address checked for one host serves no other.

    Args:
        policy: allowed targets.
        look_ups: resolves names.
        trust: trusted certificates; httpx's by default.
        timeout_s: limit for one webhook.
    """

    def __init__(
        self,
        policy: Policy,
        look_ups: LookUps,
        trust: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._policy, self._timeout_s, self._look_ups = policy, timeout_s, look_ups
        self._trust = trust or httpx.create_ssl_context(trust_env=False)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, tenant: str) -> Answer:
        """Send a webhook. Errors are returned as an answer too."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, headers, body, tenant)
        except InvalidRequest as error:
            return Answer(error=error.message, refused=True, forbidden=isinstance(error, NeverAllowed))
        except TimeoutError:
            return Answer(error=f"no answer within {self._timeout_s:g} s")
        except NameUnknown:
            return Answer(error="the host's name does not exist")
        except (httpx.HTTPError, OSError) as error:
            return Answer(error=_describe_error(error))

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes, tenant: str) -> Answer:
        target = read_target(url, self._policy)
        addresses = (await resolve_target(target, self._policy, self._look_ups, tenant))[:MOST_ADDRESSES]
        for address in addresses[:-1]:
            try:
                return await self._send(target, address, headers, body)
            except httpx.ConnectError as error:
                if _of_tls(error) is not None:
                    raise
        return await self._send(target, addresses[-1], headers, body)

    async def _send(self, target: httpx.URL, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send by the transport: a client would follow redirects, use proxies from the environment, and log the URL."""
        request = httpx.Request(
            "POST",
            target.copy_with(host=address),
            headers={"host": target.netloc.decode("ascii"), **headers},
            content=body,
            extensions={
                # The certificate has to match the name, not the address.
                "sni_hostname": host_of(target).rstrip("."),
                "timeout": httpx.Timeout(self._timeout_s, connect=CONNECT_S).as_dict(),
            },
        )
        async with httpx.AsyncHTTPTransport(verify=self._trust, trust_env=False, http2=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                await _read_some(response)
            finally:
                await response.aclose()
        return Answer(response.status_code, retry_after=response.headers.get("retry-after", ""))


async def _read_some(response: httpx.Response) -> None:
    """Read part of the body; errors are ignored, because the status is known."""
    taken = 0
    try:
        async with asyncio.timeout(LINGER_S):
            async for part in response.aiter_raw():
                taken += len(part)
                if taken >= MOST_ANSWER_BYTES:
                    return
    except (httpx.HTTPError, TimeoutError):
        return


def _describe_error(error: Exception) -> str:
    """Returns a text for an error that contains nothing from the receiver."""
    tls = _of_tls(error)
    if tls is not None:
        return f"TLS failed: {getattr(tls, 'verify_message', None) or tls.reason or 'no reason given'}"
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return "the receiver cannot be reached"
        case httpx.ProtocolError():
            return "the receiver did not answer in HTTP"
        case httpx.HTTPError():
            return "the connection broke before the answer"
        case _:
            return "the host's name cannot be looked up at the moment"


def _of_tls(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
