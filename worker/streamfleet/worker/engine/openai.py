"""Engine behind a URL: `vllm serve`, or another OpenAI-compatible server.

Each request goes out as one HTTP call, with its body unchanged except for a missing model and the fields for streaming;
the answer comes back as an `EngineReply`. Faults of the server or the network become EngineUnavailable, so that it is
tried again. `ServerLimit` follows what a busy server takes, `Presence` waits for one that is away.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx

from streamfleet.common import metrics
from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.numbers import BYTES_PER_TOKEN, whole
from streamfleet.worker.engine.base import (
    Capacity,
    EngineAborted,
    EngineError,
    EngineReply,
    EngineRequest,
    EngineUnavailable,
)
from streamfleet.worker.engine.presence import Presence, remember
from streamfleet.worker.engine.replies import (
    encode_body,
    is_object,
    openai_shaped,
    refuse_endpoint,
    was_aborted,
)
from streamfleet.worker.engine.server_limit import ServerLimit
from streamfleet.worker.engine.sse_parser import EVENT_STREAM, SseParser, streamed_body
from streamfleet.worker.engine.watchdog import Watchdog

MOST_ANSWER_BYTES = 64 * 1_048_576
"""Far beyond what a body within the limits can be answered with: a server that says more says it without end."""
_PROBE_S = 1.0
_PROBE_ANSWERS_S = 10.0
# Faults that another attempt may not meet, with every 5xx but two. A 500 may be the request's own fault, but as often a
# server restarts: attempts are counted, so the former ends as dead instead of failed, and the latter is not lost. 401
# and 403 concern this worker's key, not the request; 408 is the server's time-out while it reads the request.
_PASSING = frozenset({401, 403, 408, 425})
_PERMANENT_5XX = frozenset({501, 505})
_BUSY = 429
_AWAY = frozenset({502, 503, 504})
LONGEST_RETRY_AFTER_MS = 30_000
TOLD_AGAIN_MS = 1_000
"""Time after which a request is tried again whose server says that it is away: meanwhile another one tries, because the
server may be there for others."""
LIMITED_S = 60.0
"""Time after a busy answer for which an idle worker says that its server limits it."""
INCOMPLETE = "upstream_incomplete"
NO_QUOTA = "insufficient_quota"
TOO_LARGE = "Request too large"
"""Beginning of OpenAI's message where one request alone exceeds the tokens a minute: it is never taken."""
QUOTA_AGAIN_S = 60.0
"""Time after which a request tries whether there is quota again: somebody has to pay first."""
KEY_AGAIN_S = 5.0
"""Time after which a request tries whether the server takes the key that the file has by then."""
OTHERS_FIRST_MS = 10_000
"""Time before a request with a second refusal is tried again: another one tries first, because the server may refuse
the key for this request alone."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Address of the server and limits for calls to it.

    Attributes:
        base_url: with or without the trailing ``/v1``. A user name and password in it are sent as basic authentication,
            unless there is an API key.
        max_concurrency: most requests sent to it at once; a server does not tell its own capacity.
        busy_statuses: statuses by which it says that it takes no more for now, beside 429 and a 503 with Retry-After.
        timeout_s: longest wait for one whole answer, even if parts of it arrive.
        connect_timeout_s: longest wait for a connection.
        watchdog_s: seconds without any answer, with requests inside, after which the server is asked for its models; if
            it does not answer that either, it hangs.
        kv_tokens: tokens of its KV cache; None if unknown.
    """

    base_url: str
    max_concurrency: int = 32
    timeout_s: float = 600.0
    connect_timeout_s: float = 5.0
    watchdog_s: float = 60.0
    kv_tokens: int | None = None
    busy_statuses: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Answer:
    """A whole answer, its body decoded; `sent` is what the limit knows of its request."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes
    sent: int = 0


class OpenAIEngine:
    """Sends each request on unchanged, and returns the answer unchanged.

    An answer that is not streamed has no first-token time. Messages and representations never contain the key.

    Args:
        upstream: the server.
        api_key: asked before each request; sent as a bearer token. None, or an empty text, for none.
        renewable: the key may change. One that is refused after another was accepted is waited for.
        transport: replaces the network, for tests.
        clock: source of time.
    """

    kind: str = "openai"
    endpoints: tuple[str, ...] = ()  # a server does not tell

    def __init__(
        self,
        upstream: Upstream,
        api_key: Callable[[], str] | None = None,
        *,
        renewable: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.models: tuple[str, ...] = ()
        self._upstream = upstream
        url = _root(upstream.base_url)
        # Kept out of the address, which httpx logs with every request.
        basic = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        auth = basic if api_key is None else _bearer(api_key, basic)
        self._renewable, self._key_refused, self._answered = renewable, 0, 0
        self._refused: dict[str, int] = {}  # requests at which the key was refused, and how many were answered before
        self._shown = str(url.copy_with(userinfo=b"")).rstrip("/")
        self._clock = clock or SystemClock()
        self._max_model_len: int | None = None
        self._limit = ServerLimit(upstream.max_concurrency)
        self._presence = Presence(self._clock, self._is_there, lambda: self._limit.running, self._begin_anew)
        self._watchdog = Watchdog(upstream.watchdog_s, self._clock.monotonic)
        self._inside: set[asyncio.Timeout] = set()
        self._hung: set[asyncio.Timeout] = set()
        self._unsent: set[asyncio.Timeout] = set()
        self._held_off: set[asyncio.Timeout] = set()

        trusted = httpx.create_ssl_context()  # 20 ms each time

        def client() -> httpx.AsyncClient:
            made = httpx.AsyncClient(
                verify=trusted,
                base_url=self._shown,
                auth=auth,
                # A few encoded bytes could decode to gigabytes.
                headers={"Accept-Encoding": "identity"},
                timeout=httpx.Timeout(upstream.timeout_s, connect=upstream.connect_timeout_s, pool=None),
                limits=httpx.Limits(max_connections=1),
                transport=transport,
            )
            # A stored cookie would be sent with every later request, and a server may set any number of them.
            made.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
            return made

        self._new_client = client
        self._closing: set[asyncio.Task[None]] = set()
        # A client for each connection: one of many looks through all of them whenever a request begins or ends. The one
        # used last is taken first, so that connections stay warm.
        self._clients = {client() for _ in range(upstream.max_concurrency)}
        self._free = asyncio.LifoQueue[httpx.AsyncClient]()
        self._parked = list(self._clients)  # beyond the limit
        self._follow_limit()
        self._prober = client()  # a probe must not wait for a free connection
        self._clients.add(self._prober)

    def __repr__(self) -> str:
        return f"OpenAIEngine({self._shown})"

    async def start(self) -> None:
        """Ask the server which models it has.

        Raises:
            EngineUnavailable: it cannot be reached, is not ready, or does not answer as an OpenAI server.
            EngineError: it refuses our key.
        """
        try:
            response = await self._send("GET", "/v1/models")
        finally:
            self._follow_limit()
        if response.status_code in {401, 403}:
            raise EngineError(f"{self._shown} answers {response.status_code}: check the engine's API key")
        models = _models(response)
        if not models:
            text = f"{self._shown}/v1/models answers {response.status_code} without a list of models"
            raise EngineUnavailable(text)
        self.models = tuple(models)
        self._max_model_len = min((length for length in models.values() if length), default=None)

    async def run(self, request: EngineRequest) -> EngineReply:
        """Answer one request. If the task is cancelled, the connection closes, and servers then drop the request.

        Raises:
            EngineUnavailable: away, too slow, busy, failing, or it refuses our key.
            EngineAborted: the server dropped the request by itself.
        """
        refusal = refuse_endpoint(request.endpoint)
        if refusal is not None:
            return refusal
        parser = SseParser(request, self._clock.monotonic) if request.streams else None
        asked = self._with_model(request.body)
        body = encode_body(asked if parser is None else streamed_body(request, asked))
        if isinstance(body, EngineReply):
            return body
        headers = {
            "Content-Type": "application/json",
            "X-Request-Id": request.id,
            "X-Vllm-Priority": str(request.priority),
            **({"traceparent": request.traceparent} if request.traceparent else {}),
        }
        if self.allowance == 0 and self.unready:
            raise EngineUnavailable(self.unready, counted=False)
        self._watchdog.entered()
        began_at, refused_before = self._clock.monotonic(), self._key_refused
        request.used(0, 0)  # until it is sent
        try:
            response = await self._send(
                "POST", request.endpoint, content=body, headers=headers, asked=request, parser=parser
            )
            self._watchdog.stepped()
            reply = self._judge(request, response)
            self._presence.answered(request.id)
            # An answer to a request that was sent before a refusal says nothing of the present key.
            self._answered += reply.status == 200 and refused_before == self._key_refused
            self._limit.answered(response.sent, self._clock.monotonic())
        except (asyncio.CancelledError, EngineError) as error:
            if isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                request.used(0, 0)
            elif parser is not None and parser.chunks:
                request.used(len(body) // BYTES_PER_TOKEN, parser.chunks)
                request.guessed = True  # a chunk may hold many tokens
            raise
        finally:
            self._watchdog.left()
            self._follow_limit()
        if parser is not None and parser.first_at is not None:
            reply.first_token_ms = (parser.first_at - began_at) * 1000
        return reply

    def capacity(self) -> Capacity:
        """Capacity by the settings, and by what a busy server takes: it does not tell how much it holds."""
        return Capacity(self._limit.value, self._upstream.kv_tokens, self._max_model_len)

    @property
    def limited(self) -> bool:
        """True if the server takes fewer requests than the settings allow, as far as an idle worker still knows."""
        known = self._limit.running > 0 or self._clock.monotonic() < self._limit.still_until + LIMITED_S
        return self._limit.limited and known

    @property
    def unready(self) -> str:
        """Reason why the server answers no request; empty if there is none."""
        return self._presence.unready

    @property
    def allowance(self) -> int | None:
        """Most requests to hold now; None for no limit."""
        return 0 if self._clock.monotonic() < self._limit.pause_until else self._presence.allowance

    @property
    def suspects(self) -> Collection[str]:
        """Requests whose connection was reset before, perhaps because they kill the server."""
        return self._presence.suspects

    async def failed(self) -> str:
        """Never returns: a remote server may come back.

        Meanwhile it watches the server. Requests that wait for one that hangs fail with EngineUnavailable, and are
        tried again.
        """
        while True:
            if self._watchdog.check() is not None and await self._asked() is None:
                self._give_up_on_a_hung_server()
            await self._clock.sleep(_PROBE_S)

    async def stop(self) -> None:
        """Close all connections."""
        await self._presence.stop()
        await asyncio.gather(*self._closing, *(client.aclose() for client in self._clients))

    def _with_model(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the server's first model if the sender names none: servers other than vLLM require one."""
        if body.get("model") is not None or not self.models:
            return body
        return {**body, "model": self.models[0]}

    def _follow_limit(self) -> None:
        """Keep as many connections free as the limit leaves."""
        room = self._limit.value - self._limit.running
        while self._parked and self._free.qsize() < room:
            self._free.put_nowait(self._parked.pop())
        while not self._free.empty() and self._free.qsize() > room:
            self._parked.append(self._free.get_nowait())

    def _begin_anew(self) -> None:
        self._limit.restart()
        self._follow_limit()

    async def _asked(self) -> int | None:
        """Status of the answer to a question for the models; None if there is none within a short time."""
        try:
            async with asyncio.timeout(min(_PROBE_ANSWERS_S, self._upstream.watchdog_s)):
                async with self._prober.stream("GET", "/v1/models") as response:
                    status = response.status_code
        except (TimeoutError, httpx.HTTPError):
            self._prober = self._replaced(self._prober)
            return None
        self._watchdog.stepped()  # slow, but alive
        return status

    async def _is_there(self) -> bool:
        return await self._asked() not in {None, *_AWAY}

    def _away(
        self,
        text: str,
        asked: EngineRequest | None,
        *,
        sent: bool = True,
        told: bool = False,
        said: str = "",
        code: str = "engine_error",
    ) -> EngineUnavailable:
        """The fault of a request whose server seems to be away; `told`: says the server itself."""
        counted = asked is None or (sent and self._presence.counts(asked.id, told=told))
        if asked is not None:
            self._hold_off(text)
        return EngineUnavailable(text, TOLD_AGAIN_MS if told else None, said=said, counted=counted, code=code)

    def _hold_off(self, why: str, wait_s: float | None = None) -> None:
        """Send nothing for now; requests that are not sent yet go back."""
        self._presence.lost(why, wait_s)
        for scope in self._unsent:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
        self._held_off |= self._unsent  # a second time-out would come after the wake-up by a free connection
        self._unsent.clear()

    def _give_up_on_a_hung_server(self) -> None:
        inside = [scope for scope in self._inside if not scope.expired()]  # the others are ending, which may take time
        self._hung.update(inside)
        for scope in inside:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        asked: EngineRequest | None = None,
        parser: SseParser | None = None,
    ) -> _Answer:
        scope = asyncio.timeout(self._upstream.timeout_s)  # httpx's own time-outs restart with every byte
        self._inside.add(scope)
        try:
            async with scope:
                self._unsent.add(scope)
                client = await self._free.get()
                self._unsent.discard(scope)
                if asked is not None:
                    asked.usage = None  # nobody counts from here on
                sent = self._limit.sent()
                try:
                    response = await self._read(client, method, path, content, headers, parser)
                except BaseException:
                    client = self._replaced(client)
                    raise
                finally:
                    self._limit.ended()
                    self._parked.append(client)  # for the next one once the answer is judged
        except (httpx.TimeoutException, TimeoutError) as error:
            if isinstance(error, httpx.ConnectTimeout):
                raise self._away(f"{self._shown}{path}: ConnectTimeout", asked, sent=False) from error
            if scope in self._unsent | self._held_off:
                raise EngineUnavailable(self.unready or f"{self._shown} has no room", counted=False) from error
            if scope in self._hung:
                watchdog_s = self._upstream.watchdog_s
                text = f"{self._shown} hangs: no answer for {watchdog_s:g} s, nor to a question for its models"
                raise EngineUnavailable(text, hangs=True) from error
            raise EngineUnavailable(f"{self._shown}{path}: time-out ({type(error).__name__})") from error
        except httpx.TransportError as error:
            text = f"{self._shown}{path}: {type(error).__name__}: {error}"
            code = INCOMPLETE if parser is not None and parser.chunks else "engine_error"
            raise self._away(text, asked, sent=not isinstance(error, httpx.ConnectError), code=code) from error
        finally:
            for scopes in (self._inside, self._unsent, self._held_off, self._hung):
                scopes.discard(scope)
        return replace(response, sent=sent)

    def _replaced(self, client: httpx.AsyncClient) -> httpx.AsyncClient:
        """Replace a client whose call was cut off. Returns the new one.

        httpx may count the connection of such a call as in use for ever, and the next call would wait for it in vain.
        """
        self._clients.remove(client)
        self._clients.add(new := self._new_client())
        closing = asyncio.create_task(client.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return new

    async def _read(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        content: bytes | None,
        headers: dict[str, str] | None,
        parser: SseParser | None,
    ) -> _Answer:
        body, size = bytearray(), 0
        async with client.stream(method, path, content=content, headers=headers) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise EngineUnavailable(f"{self._shown}{path} answers in an encoding that it was told not to use")
            streamed = response.status_code == 200 and _is_event_stream(response.headers)
            async for part in response.aiter_bytes():
                if parser is not None and streamed:
                    parser.feed(part)
                    self._watchdog.stepped()
                else:
                    body += part
                size += len(part)
                if size > MOST_ANSWER_BYTES:
                    raise EngineUnavailable(f"{self._shown}{path} answers more than {MOST_ANSWER_BYTES} bytes")
        if parser is None or not streamed:
            return _Answer(response.status_code, response.headers, bytes(body))
        outcome = parser.outcome()
        if outcome is None:
            raise EngineUnavailable(f"{self._shown}{path} broke off its answer", code=INCOMPLETE)
        return _Answer(outcome[0], response.headers, outcome[1])

    def _judge(self, request: EngineRequest, response: _Answer) -> EngineReply:
        status, body = response.status_code, response.content
        text, after_ms = f"{self._shown} answers {status}", self._retry_after_ms(response)
        if status == _BUSY and _code(body) == NO_QUOTA:
            self._hold_off(f"{text}: {NO_QUOTA}", QUOTA_AGAIN_S)
            raise EngineUnavailable(self.unready, said=_message(body), counted=False)
        if status == 401 and self._renewable and self._answered:
            self._wait_for_the_key(request, text, _message(body))
        busy = status in self._upstream.busy_statuses or status == _BUSY or (status == 503 and after_ms is not None)
        if busy and not _message(body).startswith(TOO_LARGE):
            wait_ms = min(after_ms or 0, LONGEST_RETRY_AFTER_MS)
            self._limit.busy(response.sent, self._clock.monotonic(), wait_ms / 1000)
            metrics.SERVER_BUSY.inc()
            raise EngineUnavailable(text, wait_ms, said=_message(body), busy=True, counted=False)
        if status in _AWAY:
            raise self._away(text, request, told=status != 502, said=_message(body))
        if status in _PASSING or (status >= 500 and status not in _PERMANENT_5XX):
            raise EngineUnavailable(text, after_ms, said=_message(body))
        begins = body[:200].decode("utf-8", "replace")
        if 300 <= status < 400:
            text = f"{self._shown} answers {status}: set the URL to the address it redirects to"
            raise EngineUnavailable(text, said=begins)
        if status >= 400:
            return openai_shaped(EngineReply(status, body), request.endpoint)
        if not is_object(body):
            kind = response.headers.get("Content-Type", "no content type")[:100]
            text = f"{self._shown} answers {status} with something that is not a JSON object in UTF-8, but {kind}"
            raise EngineUnavailable(text, said=begins)
        if was_aborted(body, request.endpoint):
            raise EngineAborted(f"{self._shown} dropped the request before it was finished")
        return EngineReply(status, body)

    def _wait_for_the_key(self, request: EngineRequest, text: str, said: str) -> None:
        """Hold off until the file has the key that the server takes.

        It returns if others were answered since the request was refused last: the key is good, so the request is not.

        Raises:
            EngineUnavailable: else.
        """
        self._key_refused += 1
        before = remember(self._refused, request.id, self._answered)
        if before is None or before == self._answered:
            self._hold_off(f"{text}: the file of the API key has another than the server takes", KEY_AGAIN_S)
            after_ms = None if before is None else OTHERS_FIRST_MS
            raise EngineUnavailable(self.unready, after_ms, said=said, counted=False)

    def _retry_after_ms(self, response: _Answer) -> int | None:
        value = response.headers.get("Retry-After-Ms", "").strip()  # of OpenAI, and more exact
        if value.isascii() and value.isdigit():
            return int(value[:12])
        value = response.headers.get("Retry-After", "").strip()
        if value.isascii() and value.isdigit():
            return int(value[:9]) * 1000
        try:
            return max(0, round(parsedate_to_datetime(value).timestamp() * 1000) - self._clock.now_ms())
        except (ValueError, OverflowError):
            return None


def _bearer(api_key: Callable[[], str], basic: httpx.BasicAuth | None) -> Callable[[httpx.Request], httpx.Request]:
    """Adds the key of this moment to a request, or the URL's login: its file may be empty, or have changed."""

    def add(request: httpx.Request) -> httpx.Request:
        if key := api_key():
            request.headers["Authorization"] = f"Bearer {key}"
        elif basic is not None:
            next(basic.auth_flow(request))  # adds its header
        return request

    return add


def _is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Type", "").lower().startswith(EVENT_STREAM)


def _root(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.strip().rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL as error:
        # If a password contains an unescaped / ? or #, the "port" in the message is a part of the password: never show
        # it.
        why = "its port is no number, or its password holds an unescaped / ? or #" if "port" in str(error) else error
        raise ValueError(f"the engine's URL is not one: {why}") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("the engine's URL must be like http://host:8000")
    return url


def _models(response: _Answer) -> dict[str, int | None]:
    """Names of the models that a server lists, with their context length if it tells."""
    try:
        listed = json.loads(response.content)["data"] if response.status_code == 200 else []
        return {str(model["id"]): whole(model.get("max_model_len")) for model in listed}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _message(body: bytes) -> str:
    """The server's own words, shortened; empty if it has none."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:200]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _code(body: bytes) -> object:
    """The error's code; None if it has none."""
    try:
        return json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
