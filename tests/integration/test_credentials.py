"""Passwords, tokens and certificates that change while a fleet runs: it goes on with what file or provider say now."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import AuthenticationError

from streamfleet.common.connection import Connection, login
from streamfleet.common.connection import connection as trying
from streamfleet.common.connection.locator import SentinelMaster
from streamfleet.common.errors import BrokerUnavailable, SettingsError
from streamfleet.common.secret_files import MountedLogin
from streamfleet.common.settings import QueueSettings, load
from streamfleet.operator.commands.doctor import _examine
from streamfleet.producer import Client
from tests.fault.proxy import Proxy
from tests.ha.nodes import SentinelServer, tell
from tests.ha.passwords import REFUSES, TOKENS, streamed
from tests.integration.exporter_process import exporter
from tests.integration.gateway_process import GatewayProcess
from tests.integration.worker_process import WorkerProcess, chat
from tests.passwords import ORDERS, USERS, Passwords, admin_of, cut
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually

LATE_S = 1.5
"""Time between server and file; leases are longer."""
LEAVES_S = 20.0
"""Longest time in which an idle worker ends while Redis is away."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(newest(find_servers())) as opened:
        yield opened


@pytest.fixture
def passwords(tmp_path: Path) -> Passwords:
    return Passwords(tmp_path)


@pytest.fixture
async def file(server: RedisServer, passwords: Passwords, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that REDIS_URL_FILE names to this process and those that it starts; the server wants its password."""
    path = passwords.file(server.url)
    monkeypatch.setenv("REDIS_URL_FILE", str(path))
    await changed(server, passwords)
    return path


@pytest.fixture
async def connection(file: Path) -> AsyncIterator[Connection]:
    """Logged in with the file's password; it does not wait."""
    opened = Connection.open(load(QueueSettings), patience_s=0)
    await opened.ping()
    yield opened
    await opened.close()


def put(file: Path, content: str) -> None:
    file.write_text(content)


async def changed(server: RedisServer, passwords: Passwords, order: str = "with", user: str = "") -> None:
    await passwords.change(order, user, LATE_S, lambda old: passwords.tell(server.port, old))


# -- a fleet -------------------------------------------------------------------------------------------------------


@pytest.mark.kill
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("file")
async def test_a_fleet_works_on_while_its_password_changes(
    server: RedisServer, passwords: Passwords, tmp_path: Path
) -> None:
    """Each user by turns, the file before, with and after the server, all connections cut after each change."""
    with (
        WorkerProcess("", tmp_path, "w1", lease_ms=4_000) as one,
        WorkerProcess("", tmp_path, "w2", lease_ms=4_000) as two,
        GatewayProcess("", tmp_path, gateway_keys="off") as gateway,
    ):
        await asyncio.gather(one.ready(), two.ready())
        gateway.ready()
        async with Client() as client, gateway.http() as http:
            with exporter("") as metrics:
                for order in ORDERS:
                    for user in USERS:
                        answers = [asyncio.create_task(streamed(client)) for _ in range(4)]
                        page = asyncio.create_task(http.post("/v1/chat/completions", json=chat(TOKENS / 100)))
                        await asyncio.sleep(0.3)
                        await changed(server, passwords, order, user)
                        found = await asyncio.gather(*answers)
                        assert found == [(TOKENS, 1)] * 4
                        assert (await page).status_code == 200
                        assert (await asyncio.to_thread(metrics.get)).value("streamfleet_exporter_up") == 1
        assert await passwords.refused(server.port) > 0, "nobody met a refusal: this showed nothing"
        assert [one.alive, two.alive] == [True, True]


@pytest.mark.kill
async def test_a_worker_that_is_refused_for_long_is_not_ready_and_says_why(
    server: RedisServer, passwords: Passwords, file: Path, tmp_path: Path
) -> None:
    with WorkerProcess("", tmp_path, "w1") as worker:
        await worker.ready()
        await passwords.tell(server.port, old=await renewed(passwords))
        await eventually(lambda: REFUSES in worker.get("/readyz").text, 5, "the worker says why it is not ready")
        assert (worker.get("/readyz").status, worker.get("/livez").status) == (503, 200)
        put(file, passwords.current(server.url))
        await eventually(lambda: worker.get("/readyz").status == 200, 5, "the worker is ready again")
        assert worker.events("worker_starting") == worker.events("worker_starting")[:1]


@pytest.mark.kill
@pytest.mark.usefixtures("file")
async def test_a_wrong_password_at_the_start_is_one_clear_line_and_the_end(
    server: RedisServer, passwords: Passwords, tmp_path: Path
) -> None:
    await passwords.tell(server.port, old=await renewed(passwords))
    with WorkerProcess("", tmp_path, "w1") as worker:
        assert await worker.ended() == 2
        assert worker.printed().splitlines()[-1].startswith(f"Redis at {server.url} {REFUSES}: ")


async def renewed(passwords: Passwords) -> str:
    """Give the servers' password another value, which neither they nor the files have yet; the old one."""
    old, passwords.password = passwords.password, "another"
    return old


# -- a connection --------------------------------------------------------------------------------------------------


async def test_each_new_connection_logs_in_with_what_the_file_says(
    server: RedisServer, passwords: Passwords, connection: Connection
) -> None:
    for user in USERS:
        await changed(server, passwords, user=user)
        await eventually_answers(connection)
        assert await connection.command("ACL", "WHOAMI") == (user or "default").encode()
        await eventually(lambda: listens(connection), 5, "a blocking command is answered")


async def answers(connection: Connection) -> bool:
    try:
        return bool(await connection.command("PING"))
    except BrokerUnavailable:
        return False


async def listens(connection: Connection) -> bool:
    try:
        return await connection.block(0.01, "BLPOP", "nothing", 0.01) is None
    except BrokerUnavailable:
        return False


async def eventually_answers(connection: Connection) -> None:
    await eventually(lambda: answers(connection), 5, "a command is answered")


async def refuses(connection: Connection) -> None:
    async def refused() -> bool:
        try:
            return not await connection.command("PING")
        except BrokerUnavailable as error:
            return REFUSES in str(error)

    await eventually(refused, 5, "a login is refused")


async def test_a_file_that_is_ahead_of_the_server_cuts_nobody_off(
    file: Path, server: RedisServer, passwords: Passwords, connection: Connection
) -> None:
    await changed(server, passwords)
    await eventually_answers(connection)
    put(file, server.url.replace("//", "//:not-yet@"))
    async with admin_of(server.port, passwords.password) as admin:
        await cut(admin)
    await eventually_answers(connection)
    found = await asyncio.gather(*(connection.command("PING") for _ in range(3)))
    assert (found, connection.refusal) == ([b"PONG"] * 3, "")
    assert await passwords.refused(server.port) > 0


async def test_a_connection_that_is_opened_while_a_password_changes_knows_the_one_before(
    server: RedisServer, passwords: Passwords, file: Path
) -> None:
    """As a client opens one for its first stream."""
    settings = load(QueueSettings)
    first, ahead, behind = (Connection.open(settings, patience_s=0) for _ in range(3))
    await first.ping()
    put(file, server.url.replace("//", "//:not-yet@"))
    await ahead.ping()
    await passwords.tell(server.port, old=await renewed(passwords))
    await refuses(behind)
    put(file, passwords.current(server.url))
    await eventually_answers(behind)
    for connection in (first, ahead, behind):
        await connection.close()


async def test_a_node_whose_password_changes_after_that_of_the_others_cuts_nobody_off(tmp_path: Path) -> None:
    file, wanted = tmp_path / "redis", {"first": "old", "second": "old"}
    logins = login.Login(file.read_text, renewable=True)

    async def enter(node: str) -> None:
        connection: Any = SimpleNamespace(host=node, port=0)

        async def connect() -> None:
            if connection.password != wanted[node]:
                raise AuthenticationError("WRONGPASS")

        await logins.enter(connection, connect)

    put(file, "redis://:old@first")
    await enter("first")
    put(file, "redis://:new@first")
    wanted["first"] = "new"
    for node in ("first", "second", "first", "second"):  # the second is first met when the file is ahead of it
        await enter(node)
    wanted["second"] = "new"
    await enter("second")


async def test_connections_that_are_open_outlive_a_password_that_nobody_has_yet(
    server: RedisServer, passwords: Passwords, connection: Connection
) -> None:
    await set_only(server, passwords, old=await renewed(passwords))
    assert await connection.command("PING") == b"PONG"
    more = await asyncio.gather(*(connection.command("PING") for _ in range(3)), return_exceptions=True)
    assert [REFUSES in str(each) for each in more] == [False, True, True]  # they need more connections
    assert await connection.command("PING") == b"PONG"
    assert connection.refusal == ""


async def test_certificates_are_no_longer_those_of_the_last_connection(file: Path) -> None:
    seen = []
    connection: Any = SimpleNamespace(host="", port=0, ssl_context=SimpleNamespace(context="old"))

    async def connect() -> None:
        seen.append(connection.ssl_context.context)

    await login.Login(file.read_text, renewable=True).enter(connection, connect)
    assert seen == [None]


async def test_a_password_that_is_wrong_for_long_is_tried_now_and_then_and_another_at_once(
    server: RedisServer, passwords: Passwords, file: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "FIRST_PAUSE_S", 600.0)
    monkeypatch.setattr(login, "LONGEST_PAUSE_S", 600.0)
    await passwords.tell(server.port, old=await renewed(passwords))
    before = await passwords.refused(server.port)
    for _ in range(20):
        with pytest.raises(BrokerUnavailable):
            await connection.command("PING")
    assert await passwords.refused(server.port) - before == 1
    put(file, passwords.current(server.url))
    assert await connection.command("PING") == b"PONG"


async def test_pauses_grow_to_their_limit(
    server: RedisServer, passwords: Passwords, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(login, "random", SimpleNamespace(uniform=lambda _, most: most))
    monkeypatch.setattr(login, "time", SimpleNamespace(monotonic=lambda: now))
    await passwords.tell(server.port, old=await renewed(passwords))
    tried = []
    for step in range(73):
        now, before = step * 0.1001, await passwords.refused(server.port)
        await refuses(connection)
        tried += [step] * (await passwords.refused(server.port) - before)
    assert tried == [0, 1, 3, 7, 15, 31, 51, 71]


@pytest.mark.parametrize("content", ["", "redis://:half", "http://elsewhere"])
async def test_a_file_that_is_being_written_says_what_it_said_before(
    file: Path, server: RedisServer, connection: Connection, passwords: Passwords, content: str
) -> None:
    put(file, content)
    async with admin_of(server.port, passwords.password) as admin:
        await cut(admin)
    await eventually_answers(connection)


async def test_all_connections_of_a_process_use_the_server_that_its_file_named_first(
    file: Path, server: RedisServer, passwords: Passwords
) -> None:
    settings = load(QueueSettings)
    await changed(server, passwords)
    put(file, f"redis://:{passwords.password}@elsewhere:1/1")
    later = Connection.open(settings)
    assert await later.command("PING") == b"PONG"
    await later.close()


@pytest.mark.parametrize("words", [("ECHO", "x"), ("ECHO", "x" * 20_000), ("EXISTS", *"abcdefghijkl")])
async def test_a_command_that_is_refused_is_sent_again_after_another_login(file: Path, words: tuple[str, ...]) -> None:
    """A large one is refused as a mistake in the protocol."""
    connection = Connection.open(load(QueueSettings))
    await connection.command("RESET")  # as after a token's end: the connection stays, and has no login any more
    assert await connection.command(*words) in (words[1].encode(), 0)
    await connection.close()


@pytest.mark.parametrize("said", ["ERR invalid username-password pair", "ERR AUTH failed: token", "WRONGPASS no"])
async def test_refusals_in_the_words_of_managed_services_are_refusals(said: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(f"-{said}\r\n".encode())
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as serving:
        connection = Connection(f"redis://:token@127.0.0.1:{serving.sockets[0].getsockname()[1]}", patience_s=None)
        with pytest.raises(SettingsError, match=REFUSES):
            await connection.command("PING")
        await connection.close()
        await ended.wait()


async def test_a_fixed_password_that_is_refused_later_is_a_setting(server: RedisServer, passwords: Passwords) -> None:
    connection = Connection(server.url, patience_s=None)
    await connection.ping()
    await changed(server, passwords)
    with pytest.raises(SettingsError, match=REFUSES):
        await eventually_answers(connection)
    await connection.close()


async def test_sentinels_whose_password_changes_are_asked_with_what_the_file_says(
    server: RedisServer, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SentinelServer(server.binary, "main", server.port, {}, "requirepass one") as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0?sentinel_password=one"
        file = passwords.file(url)
        monkeypatch.setenv("REDIS_URL_FILE", str(file))
        settings = load(QueueSettings)
        connection, later = (Connection.open(settings, patience_s) for patience_s in (5, 0))
        await connection.ping()
        put(file, url.replace("=one", "=not-yet"))
        await later.ping()
        async with admin_of(sentinel.port, "one") as admin:
            await admin.acl_setuser("default", enabled=True, reset_passwords=True, passwords=["+two"])
        monkeypatch.setattr(SentinelMaster, "trust_s", 0.0)
        assert await connection.command_once("PING") == b"PONG"  # the master is there
        tell(server.port, "CLIENT", "KILL", "TYPE", "normal")  # the master is asked for anew
        await refuses(connection)
        put(file, url.replace("=one", "=two"))
        assert await connection.command("PING") == b"PONG"
        await connection.close()
        await later.close()


async def test_a_sentinel_that_refuses_leaves_the_answer_to_another(server: RedisServer) -> None:
    def asked(*sentinels: SentinelServer) -> Connection:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
        return Connection(f"redis+sentinel://{hosts}/main/0?sentinel_password=two", patience_s=None)

    with (
        SentinelServer(server.binary, "main", server.port, {}, "requirepass one") as first,
        SentinelServer(server.binary, "main", server.port, {}, "requirepass two") as second,
    ):
        both, refusing = asked(first, second), asked(first)
        assert await both.command("PING") == b"PONG"
        with pytest.raises(SettingsError, match="refuses the user or password: add"):
            await refusing.command("PING")
        await both.close()
        await refusing.close()


async def test_a_node_of_a_cluster_that_refuses_leaves_the_answer_to_another(server: RedisServer) -> None:
    def asked(*nodes: RedisServer) -> Connection:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in nodes)
        return Connection(f"redis+cluster://:two@{hosts}", patience_s=0)

    options = {"cluster-enabled": "yes"}
    with (
        RedisServer(server.binary, options=options | {"requirepass": "one"}) as first,
        RedisServer(server.binary, options=options) as second,
    ):
        tell(second.port, "CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        tell(second.port, "CONFIG", "SET", "requirepass", "two")
        both, refusing = asked(first, second), asked(first)
        await eventually(lambda: answers(both), 10, "the cluster is up")
        with pytest.raises(SettingsError, match=REFUSES):
            await refusing.command("PING")
        await both.close()
        await refusing.close()


async def test_nodes_of_a_cluster_are_asked_with_what_the_file_says(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(newest(find_servers()), options={"cluster-enabled": "yes"}) as node:
        tell(node.port, "CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        url = f"redis+cluster://127.0.0.1:{node.port}"
        monkeypatch.setenv("REDIS_URL_FILE", str(passwords.file(url)))
        await changed(node, passwords)
        connection = Connection.open(load(QueueSettings))
        await eventually(lambda: answers(connection), 10, "the cluster is up")
        for user in USERS:
            waiting = asyncio.create_task(connection.block(30, "BLPOP", "nothing", 30))
            await changed(node, passwords, user=user)
            with pytest.raises(BrokerUnavailable):  # so that nodes are asked again
                await waiting
            assert await connection.command("ACL", "WHOAMI") == (user or "default").encode()
            async for master in connection.each_node():
                assert await master.command("ACL", "WHOAMI") == (user or "default").encode()
        await connection.close()


async def test_dead_connections_are_found_with_what_the_file_says(
    server: RedisServer, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trying, "CHECK_AFTER_S", 0.2)
    proxy = Proxy(server.port)
    await proxy.open()
    monkeypatch.setenv("REDIS_URL_FILE", str(passwords.file(proxy.url)))
    connection = Connection.open(load(QueueSettings))
    await connection.ping()
    await passwords.change("with", "fleet", 0, lambda old: set_only(server, passwords, old))
    proxy.forget()
    assert await asyncio.wait_for(connection.command("PING"), 5) == b"PONG"
    await connection.close()
    await proxy.close()


async def set_only(server: RedisServer, passwords: Passwords, old: str) -> None:
    """Without cutting any connection."""
    async with admin_of(server.port, old) as admin:
        await passwords.set_on(admin)


# -- a provider ----------------------------------------------------------------------------------------------------


class Tokens:
    """A provider of redis-py, as those for tokens of cloud services are."""

    def __init__(self, token: str = "") -> None:
        self.token = token

    def get_credentials(self) -> tuple[str, str]:
        if not self.token:
            raise OSError("no metadata service")
        return "fleet", self.token


TOKENS_OF_A_MODULE = Tokens("a token")


class HangingTokens(Tokens):
    """A provider whose call to a cloud does not return before it is told to."""

    def __init__(self, token: str = "") -> None:
        super().__init__(token)
        self.asked, self.returns = 0, threading.Event()

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        self.returns.wait()
        return super().get_credentials()


class TokensOfAFile(HangingTokens):
    """A provider for processes. It hangs while the file is empty."""

    def get_credentials(self) -> tuple[str, str]:
        self.token = Path(os.environ["TOKEN_FILE"]).read_text()
        return Tokens.get_credentials(self) if self.token else super().get_credentials()


TOKENS_OF_A_FILE = TokensOfAFile()


async def test_a_provider_is_asked_for_each_new_connection(server: RedisServer, passwords: Passwords) -> None:
    await changed(server, passwords)
    tokens = Tokens()
    connection = Connection.open(load(QueueSettings, redis_url=server.url, redis_credentials=tokens), patience_s=0)
    with pytest.raises(SettingsError, match=r"does not get the user or password: .* fails: OSError: no metadata"):
        await connection.ping()
    tokens.token = passwords.password
    await eventually_settled(connection)
    assert await connection.command("ACL", "WHOAMI") == b"fleet"
    await changed(server, passwords)
    await refuses(connection)  # the token has ended
    tokens.token = passwords.password
    await eventually_answers(connection)
    await connection.close()


async def test_a_provider_that_hangs_is_given_up_and_asked_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ASK_S": 0.02, "FIRST_PAUSE_S": 0.0, "LONGEST_PAUSE_S": 0.0}.items():
        monkeypatch.setattr(login, name, value)
    tokens = HangingTokens("any")
    connection = provided(server, tokens)
    for _ in range(login.MOST_HUNG + 3):
        with pytest.raises(SettingsError, match=r"does not get the user or password: .* gave no answer for 0.02 s"):
            await connection.ping()
    assert tokens.asked == login.MOST_HUNG
    tokens.returns.set()
    await eventually_settled(connection)
    assert tokens.asked == login.MOST_HUNG + 1
    await connection.close()


async def test_the_answer_of_a_slow_provider_is_for_the_next_try(server: RedisServer) -> None:
    """As in a lease thread, whose tries are short."""
    tokens = HangingTokens("any")
    connection = provided(server, tokens)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.ping(), 0.02)
    tokens.returns.set()
    await connection.ping()
    assert tokens.asked == 1
    await connection.close()


async def test_a_provider_that_hangs_closes_no_open_connection(server: RedisServer) -> None:
    tokens = HangingTokens("any")
    tokens.returns.set()
    connection = provided(server, tokens)
    connection.answer_timeout_s = 0.05
    number = await connection.command("CLIENT", "ID")
    tokens.returns.clear()
    first, second = await asyncio.gather(connection.ping(), connection.ping(), return_exceptions=True)
    assert [type(first), type(second)] == [type(None), BrokerUnavailable]  # only one of them found a connection
    assert await connection.command("CLIENT", "ID") == number
    tokens.returns.set()
    await connection.close()


def test_two_loops_may_ask_a_provider_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease thread asks while the other loop does."""
    tokens: Any = HangingTokens("any")
    provider = login._Provider(tokens)
    whole, answers = threading.Thread, []

    def thread(**words: Any) -> threading.Thread:
        monkeypatch.undo()
        answers.append(provider._ask()[0])
        return whole(**words)

    monkeypatch.setattr(threading, "Thread", thread)
    answers.append(provider._ask()[0])
    tokens.returns.set()
    assert [answer.result(10) for answer in answers] == [("fleet", "any")] * 2


def provided(server: RedisServer, tokens: Tokens) -> Connection:
    tell(server.port, "ACL", "SETUSER", "fleet", "on", "nopass", "~*", "&*", "+@all")
    return Connection.open(load(QueueSettings, redis_url=server.url, redis_credentials=tokens), patience_s=0)


@pytest.mark.kill
@pytest.mark.parametrize("started", [False, True])
async def test_a_worker_whose_provider_hangs_ends_in_its_usual_time(
    server: RedisServer, passwords: Passwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    await changed(server, passwords)
    (token := tmp_path / "token").write_text(passwords.password if started else "")
    monkeypatch.setenv("TOKEN_FILE", str(token))
    names = {"redis_credentials": f"{__name__}:TOKENS_OF_A_FILE"}
    with WorkerProcess(server.url, tmp_path, "w1", constants={"common.connection.login.ASK_S": 1.0}, **names) as worker:
        if started:
            await worker.ready()
            put(token, "")
            async with admin_of(server.port, passwords.password) as admin:
                await cut(admin)
            await eventually(lambda: "gave no answer" in worker.get("/readyz").text, 20, "it says why it is not ready")
            assert worker.get("/livez").status == 200
        else:
            await worker.logged("worker_starting")
        worker.send(signal.SIGTERM)
        assert await worker.ended(LEAVES_S) == 0


async def test_doctor_knows_that_a_provider_gives_a_password(server: RedisServer, passwords: Passwords) -> None:
    await changed(server, passwords)
    settings = load(QueueSettings, redis_url=server.url, redis_credentials=Tokens(passwords.password))
    (access,) = (check for check in await _examine(settings) if check.name == "access")
    assert (access.level, access.seen.partition(" can")[0]) == ("ok", "user fleet")


async def eventually_settled(connection: Connection) -> None:
    async def answered() -> bool:
        try:
            return bool(await connection.command("PING"))
        except SettingsError:
            return False

    await eventually(answered, 5, "the pause after the refusal is over")


async def test_user_and_password_may_be_files_of_their_own(server: RedisServer, tmp_path: Path) -> None:
    mounted = MountedLogin(tmp_path)
    connection = Connection.open(load(QueueSettings, redis_url=server.url, redis_credentials=mounted), patience_s=0)
    async with admin_of(server.port, "") as opened:
        admin: Any = opened
        for password in ("/@:% #1", "/@:% #2"):  # no URL could have it as it is
            await admin.execute_command("ACL", "SETUSER", "fleet", "on", "resetpass", f">{password}", "+@all")
            (tmp_path / "username").write_text("fleet\n")
            (tmp_path / "password").write_text(f"{password}\n")
            await cut(admin)
            await eventually_answers(connection)
            assert await connection.command("ACL", "WHOAMI") == b"fleet"
        await admin.config_set("requirepass", password)
        (tmp_path / "username").unlink()
        await cut(admin)
        await eventually_answers(connection)
        assert await connection.command("ACL", "WHOAMI") == b"default"
    await connection.close()


async def test_a_url_with_a_password_needs_no_provider(server: RedisServer, passwords: Passwords) -> None:
    await changed(server, passwords)
    url = server.url.replace("//", f"//:{passwords.password}@")
    connection = Connection.open(load(QueueSettings, redis_url=url, redis_credentials=Tokens()), patience_s=0)
    await connection.ping()
    await connection.close()
