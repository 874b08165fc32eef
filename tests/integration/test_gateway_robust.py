"""Clients that are wrong, slow, huge or gone, and the gateway's own end: a clear answer, bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateway_process import GatewayProcess, Stage, add_key, gateway_on, stage_in, status_of
from tests.integration.worker_process import WorkerProcess, chat
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

pytestmark = pytest.mark.kill
PATH = "/v1/chat/completions"
MIB = 1_048_576
REFUSED_HEADERS = 'streamfleet_gateway_refused_total{reason="headers_too_large"}'


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage_in(
        tmp_path_factory.mktemp("gateway"),
        constants={
            "gateway.server.HEAD_TIMEOUT_S": 0.5,
            "gateway.body.TIMEOUT_S": 0.5,
            "gateway.server.WRITE_TIMEOUT_S": 1,
        },
        gateway_max_connections=40,
        gateway_keep_alive_s=1,
    ) as stage:
        yield stage


def answered(connection: socket.socket) -> tuple[int, str]:
    """Status and body of what comes until the connection is closed; 0 for nothing."""
    connection.settimeout(10)
    received = b""
    try:
        while part := connection.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body.decode()) if head else (0, "")


def head(stage: Stage, *more: str, length: int | str = 0) -> bytes:
    """The headers of a POST."""
    lines = [
        f"POST {PATH} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {stage.key}",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def code(body: str) -> str:
    """Of an OpenAI-shaped error."""
    return str(json.loads(body)["error"]["code"])


# -- too much ----------------------------------------------------------------------------------------------


async def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(stage: Stage) -> None:
    connection = stage.gateway.raw()
    with connection:
        connection.sendall(head(stage, "Expect: 100-continue", length=1_000 * MIB))
        status, body = await asyncio.to_thread(answered, connection)
    assert (status, code(body)) == (413, "request_too_large")
    assert "STREAMFLEET_MAX_BODY_BYTES" in json.loads(body)["error"]["message"]


async def test_a_body_without_an_end_is_cut_at_the_limit(stage: Stage) -> None:
    """A gigabyte in chunks: what is kept of it does not grow with what is sent."""
    before = stage.gateway.resident_bytes()
    sent = 0
    with stage.gateway.raw() as connection:
        lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Authorization: Bearer {stage.key}", "Transfer-Encoding: chunked"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        chunk = b"%x\r\n" % MIB + b"x" * MIB + b"\r\n"
        connection.settimeout(5)

        def pour() -> int:
            nonlocal sent
            try:
                while sent < 1_000:
                    connection.sendall(chunk)
                    sent += 1
            except OSError:
                pass
            return sent

        await asyncio.to_thread(pour)
    assert sent < 100, "it was cut off"
    assert stage.gateway.resident_bytes() - before < 64 * MIB
    assert stage.gateway.metric('streamfleet_gateway_refused_total{reason="body_too_large"}') >= 1
    assert stage.gateway.get("/livez").status == 200


async def test_bodies_that_do_not_end_are_bounded_together(stage: Stage, tmp_path: Path) -> None:
    """With 4 MiB each, thousands of callers that send all but the last byte would take all the memory."""
    (first, _), (second, _), (third, _) = [await add_key(stage.url, name) for name in ("one", "two", "three")]

    def begin(key: str) -> socket.socket:
        connection = gateway.raw()
        lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {4 * MIB}"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + b"x" * (3 * MIB))
        return connection

    def held() -> float:
        return gateway.metric("streamfleet_gateway_body_bytes")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"x" * (MIB // 2)

    with gateway_on(stage.url, tmp_path, gateway_max_held_bytes=7 * MIB) as gateway:
        before = gateway.resident_bytes()
        with await asyncio.to_thread(begin, first):
            await eventually(lambda: held() == 3 * MIB, 20, "the first body is held")
            async with gateway.http(first) as http:
                answer = await http.post(PATH, content=b"x" * MIB)
                assert (answer.status_code, code(answer.text)) == (429, "too_many_bytes")
                assert int(answer.headers["retry-after"]) > 0
            with await asyncio.to_thread(begin, second):
                await eventually(lambda: held() == 6 * MIB, 20, "the second body is held")
                async with gateway.http(third) as http:
                    for content in (b"x" * (2 * MIB), pieces()):
                        answer = await http.post(PATH, content=content)
                        assert (answer.status_code, code(answer.text)) == (503, "too_many_bytes")
                        assert int(answer.headers["retry-after"]) > 0
                    assert held() == 6 * MIB, "nothing is kept of what was refused"
                    assert (await http.post(PATH, json=chat(model="simulated"))).status_code == 200
        await eventually(lambda: held() == 0, 20, "the bodies are gone with their callers")
        async with gateway.http(first) as http:
            body = {**chat(model="simulated"), "user": "x" * (3 * MIB)}
            assert (await http.post(PATH, json=body)).status_code == 200
            waiting = asyncio.create_task(http.post(PATH, json={**body, **chat(30, model="simulated")}))
            await eventually(lambda: stage.worker.metric("streamfleet_running") == 1, 20, "it runs")
            assert held() == 0, "the body of a caller who waits is not kept"
            waiting.cancel()
        # A gateway that is killed before it has seen its caller leave would leave 30 s of work to the next test.
        await nothing_runs(stage)
        assert gateway.metric('streamfleet_gateway_refused_total{reason="body_bytes"}') == 3
        assert gateway.resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"X-Nonsense-{number}: y" for number in range(100_000)], id="many"),
        pytest.param([f"X-{number}: y" for number in range(300)], id="small ones"),
        pytest.param(["X-Large: " + "y" * 2_000_000], id="large"),
        pytest.param([f"X-{number}: " + "y" * 4_000 for number in range(20)], id="together"),
    ],
)
async def test_headers_beyond_the_limit_are_refused(stage: Stage, lines: list[str]) -> None:
    before = stage.gateway.resident_bytes()
    with stage.gateway.raw() as connection:

        def send() -> tuple[int, str]:
            with contextlib.suppress(OSError):  # it has been refused by now
                connection.sendall(head(stage, *lines))
            return answered(connection)

        status, body = await asyncio.to_thread(send)
    assert status in (431, 0), "the client may have been cut off while it was sending"
    assert not status or code(body) == "headers_too_large"
    assert stage.gateway.resident_bytes() - before < 32 * MIB
    await eventually(lambda: stage.gateway.metric(REFUSED_HEADERS) >= 1, 10, "one that was cut off is counted, too")


async def test_a_path_without_an_end_is_refused(stage: Stage) -> None:
    with stage.gateway.raw() as connection:
        connection.sendall(b"GET /" + b"x" * 60_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        status, _ = await asyncio.to_thread(answered, connection)
    assert status == 431


async def test_chunk_extensions_and_trailers_without_an_end_are_refused(stage: Stage) -> None:
    """Bytes that are neither header nor body would be read for ever."""
    lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Authorization: Bearer {stage.key}", "Transfer-Encoding: chunked"]
    for rest in (b"1;" + b"e" * 3_000_000, b"1\r\n{\r\n0\r\nX-Trailer: " + b"t" * 3_000_000):
        before = stage.gateway.resident_bytes()
        refused = stage.gateway.metric(REFUSED_HEADERS)
        with stage.gateway.raw() as connection:

            def send(rest: bytes = rest, connection: socket.socket = connection) -> tuple[int, str]:
                with contextlib.suppress(OSError):
                    connection.sendall("\r\n".join([*lines, "", ""]).encode() + rest)
                return answered(connection)

            await asyncio.to_thread(send)
        assert stage.gateway.metric(REFUSED_HEADERS) == refused + 1
        assert stage.gateway.resident_bytes() - before < 32 * MIB
    assert stage.gateway.get("/livez").status == 200


async def test_connections_without_a_key_lock_nobody_out(stage: Stage) -> None:
    """The longest idle one is closed for a new one: nobody needs a key to be idle, or to ask for /livez."""
    crowd = [stage.gateway.raw() for _ in range(60)]
    try:
        assert await asyncio.to_thread(answered, crowd[0]) == (0, ""), "it gave way"
        assert stage.gateway.get("/livez").status == 200
        async with stage.client() as http:
            assert (await http.post(PATH, json=chat(model="simulated"))).status_code == 200
        assert stage.gateway.metric('streamfleet_gateway_refused_total{reason="idle_connection"}') >= 20
    finally:
        for connection in crowd:
            connection.close()
    await eventually(lambda: stage.gateway.metric("streamfleet_gateway_connections") < 5, 5)


async def test_connections_beyond_the_limit_are_told_so_where_all_have_a_request(stage: Stage) -> None:
    body = json.dumps(chat(20, model="simulated")).encode()
    crowd = [stage.gateway.raw() for _ in range(40)]
    try:
        for connection in crowd:
            connection.sendall(head(stage, length=len(body)) + body)
        await eventually(lambda: stage.gateway.metric("streamfleet_gateway_requests_open") == 40, 10, "all are waiting")
        with stage.gateway.raw() as one_more:
            status, text = await asyncio.to_thread(answered, one_more)
        assert (status, code(text)) == (503, "too_many_connections")
        assert stage.gateway.probe("/livez").status == 200, "else Kubernetes would kill the busiest gateway"
    finally:
        for connection in crowd:
            connection.close()
    await eventually(lambda: stage.gateway.metric("streamfleet_gateway_connections") < 5, 5)
    await nothing_runs(stage)


# -- too slow ----------------------------------------------------------------------------------------------


async def test_half_a_head_is_not_waited_for(stage: Stage) -> None:
    heads = {
        b"": 0,
        b"POST /v1/chat": 408,
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-": 408,
        b"GARBAGE\r\n\r\n": 400,
        b"\x16\x03\x01\x02\x00\x01\x00\x01": 400,  # TLS
    }
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(stage.gateway.raw()) for _ in heads]
        for connection, sent in zip(connections, heads, strict=True):
            connection.sendall(sent)
        for connection, (sent, status) in zip(connections, heads.items(), strict=True):
            found, body = await asyncio.to_thread(answered, connection)
            assert found == status, sent
            assert not status or json.loads(body)["error"]["message"]


async def test_half_a_body_is_not_waited_for(stage: Stage) -> None:
    with stage.gateway.raw() as connection:
        connection.sendall(head(stage, length=50) + b'{"messages":')
        status, body = await asyncio.to_thread(answered, connection)
    assert (status, code(body)) == (408, "body_too_slow")


async def test_who_leaves_in_the_midst_of_a_body_is_forgotten(stage: Stage) -> None:
    for _ in range(5):
        with stage.gateway.raw() as connection:
            connection.sendall(head(stage, length=50) + b'{"messages":')
    await eventually(lambda: stage.gateway.metric("streamfleet_gateway_requests_open") == 0, 5, "nothing is open")
    assert "request_broke" not in stage.gateway.printed()


async def test_a_connection_without_a_request_is_closed(stage: Stage) -> None:
    with stage.gateway.raw() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        status, body = await asyncio.to_thread(answered, connection)
    assert (status, body) == (200, "ok\n")


# -- gone --------------------------------------------------------------------------------------------------


async def abandoned(stage: Stage, **headers: str) -> str:
    """Send what would run for 15 s, and leave once it runs; the request's id."""
    seen = len(departures(stage))
    await nothing_runs(stage)
    async with stage.client() as http:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        asking = asyncio.create_task(http.post(PATH, json=chat(15, model="simulated"), headers=named))
        await eventually(lambda: stage.worker.metric("streamfleet_running") == 1, 5, "it runs")
        asking.cancel()
        await asyncio.wait((asking,))

    found = await eventually(lambda: departures(stage)[seen:], 5, "the gateway saw it leave")
    return str(found[0]["request_id"])


async def nothing_runs(stage: Stage) -> None:
    """Wait for what an earlier test left to the worker: it would be counted as this test's."""
    await eventually(lambda: stage.worker.metric("streamfleet_running") == 0, 20, "nothing runs")


def departures(stage: Stage) -> list[dict[str, Any]]:
    """Returns the log lines of callers that left."""
    return [event for event in stage.gateway.events("http_request") if event.get("left") and "request_id" in event]


async def test_a_caller_that_goes_away_cancels_its_request(stage: Stage) -> None:
    asked = await abandoned(stage)
    await eventually(lambda: stage.worker.metric("streamfleet_running") == 0, 10, "the engine has dropped it")
    assert await status_of(stage.url, asked) == "cancelled"


async def test_a_caller_that_means_to_come_back_does_not(stage: Stage) -> None:
    asked = await abandoned(stage, Idempotency_Key="again", X_Streamfleet_Ttl="4s")
    assert await eventually(lambda: status_of(stage.url, asked), 12) == "expired", "it went on to its deadline"


# -- the end, and Redis away -------------------------------------------------------------------------------


async def test_sigterm_lets_answers_out_and_takes_nobody_new(stage: Stage, tmp_path: Path) -> None:
    await nothing_runs(stage)
    with gateway_on(stage.url, tmp_path, gateway_drain_ms=9_000) as process:
        async with process.http(stage.key) as http:
            short = asyncio.create_task(http.post(PATH, json=chat(2, model="simulated")))
            long = asyncio.create_task(http.post(PATH, json=chat(30, model="simulated")))
            body = chat(30, model="simulated", stream=True)
            stream = asyncio.create_task(http.post(PATH, json=body))
            await eventually(lambda: stage.worker.metric("streamfleet_running") == 3, 5, "they run")
            process.process.send_signal(signal.SIGTERM)
            await eventually(lambda: refuses(process), 5, "nobody new gets in")
            answer = await short
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
            told, streamed = await long, await stream
        assert (told.status_code, told.json()["error"]["code"]) == (503, "gateway_stopping")
        assert told.headers["retry-after"] == "1"
        *events, last = streamed.text.strip().split("\n\n")
        assert events
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "gateway_stopping"
        assert await process.ended() == 0
        assert process.events("gateway_stopped")
    await eventually(lambda: stage.worker.metric("streamfleet_running") == 0, 10, "nobody waits for it any more")


def refuses(process: GatewayProcess) -> bool:
    try:
        process.raw().close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the gateway closes its socket at this moment: the next one is refused
        return False
    return False


async def test_it_starts_without_redis_and_goes_on_when_redis_comes_and_goes(tmp_path: Path) -> None:
    async def asked() -> httpx.Response:
        return await http.post(PATH, json=chat(model="simulated"))

    async def answered_well() -> bool:
        return (await asked()).status_code == 200

    with RedisServer(newest(find_servers())) as server:
        server.kill()
        with gateway_on(server.url, tmp_path, gateway_keys="off") as process:
            assert process.get("/readyz").status == 503
            assert json.loads(process.get("/health").text)["status"] == "unready"
            async with process.http() as http:
                assert (await asked()).status_code == 503
                server.restart()
                with WorkerProcess(server.url, tmp_path, "w1"):
                    await eventually(answered_well, 30, "it goes on by itself")
                    server.kill()
                    answer = await asked()
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_unavailable")
                    assert int(answer.headers["retry-after"]) >= 1
                    assert str(server.port) not in answer.text, "where Redis is, is nobody's business"
                    assert process.get("/livez").status == 200
                    server.restart()
                    await eventually(answered_well, 20, "and again")
