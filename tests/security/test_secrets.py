"""Passwords and bodies stay out of whatever processes write, show and store: real processes, searched through."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from streamfleet.common.errors import SettingsError
from streamfleet.common.keys import Keys
from streamfleet.common.settings import EngineSettings, QueueSettings, load, unknown_variables
from streamfleet.operator.access_rules import Patterns, Role, rules
from tests.constants import UNREADY
from tests.integration.cli_processes import command, environment, streamfleet
from tests.integration.http_engine import HttpEngine, Reply
from tests.integration.worker_process import Fleet, WorkerProcess
from tests.security.guarded import Guarded
from tests.waiting import eventually

MARK = "S3cr3tZq9w"
PASSWORD = f"p@ss/{MARK}?#:%2F&=[]+"
"""With everything in it that means something in a URL."""


@pytest.fixture
def url(guarded: Guarded) -> str:
    """URL at which a worker logs in with that password."""
    with guarded.admin() as admin:
        words = rules(Role.WORKER, Patterns(Keys("default")))
        admin.execute_command("ACL", "SETUSER", "worker", "reset", *words, f">{PASSWORD}")
        words = rules(Role.OPERATOR, Patterns(Keys("default")))
        admin.execute_command("ACL", "SETUSER", "operator", "reset", *words, f">{PASSWORD}")
    return f"redis://worker:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.server.port}/0"


def in_redis(guarded: Guarded) -> str:
    """Everything that is in the server, as text."""
    found = []
    with redis.Redis.from_url(guarded.server.url, decode_responses=True, encoding_errors="replace") as admin:
        for name in admin.scan_iter():
            read = {
                "stream": admin.xrange, "hash": admin.hgetall, "string": admin.get,
                "zset": lambda key: admin.zrange(key, 0, -1), "list": lambda key: admin.lrange(key, 0, -1),
            }  # fmt: skip
            found.append(f"{name} {read[admin.type(name)](name)}")
    return "\n".join(found)


def shown_by_the_system(pid: int) -> str:
    """Returns everything that anybody on the machine sees of a process."""
    path = Path(f"/proc/{pid}/cmdline")
    if not path.exists():
        pytest.skip("no /proc on this system")
    return path.read_text(errors="replace")


async def test_a_worker_keeps_its_passwords_to_itself(guarded: Guarded, url: str, tmp_path: Path) -> None:
    """Through success, refusals, an engine that refuses the key, and a bug that ends it; at the debug level."""
    engine = HttpEngine(lambda request_id, _: Reply(401) if request_id == "denied" else Reply())
    async with engine.serving():
        fleet = Fleet(guarded.server.url, tmp_path)
        upstream = f"http://user:{MARK}@127.0.0.1:{engine.port}/v1"
        worker = WorkerProcess(
            url, tmp_path, "w1", engine="openai", vllm_url=upstream, vllm_api_key=f"key-{MARK}", max_deliveries=1
        )
        fleet.workers.append(worker)
        try:
            await worker.ready()
            await fleet.add("good")
            await fleet.add("bad", body="not JSON")
            await fleet.add("denied")
            await fleet.results(["good", "bad", "denied"])
            seen = [worker.get(path).text for path in ("/livez", "/readyz", "/metrics", "/other")]
            seen += [in_redis(guarded), shown_by_the_system(worker.pid)]
            with guarded.admin() as admin:  # nobody gets in any more, and then somebody does who may do nothing
                admin.execute_command("ACL", "SETUSER", "worker", "resetpass", ">another")
                admin.client_kill_filter(_type="normal", skipme=True)
            assert await worker.ended(20) == 2
            assert worker.events("redis_refuses")
            seen.append(worker.printed())
        finally:
            await fleet.close()
    assert "127.0.0.1" in seen[-1], "it did say which Redis"
    assert [text for text in seen if MARK in text] == []


async def test_a_worker_that_breaks_keeps_its_passwords_to_itself(url: str, tmp_path: Path) -> None:
    worker = WorkerProcess(url, tmp_path, "w1", patches=["broken"])
    try:
        assert await worker.ended(20) == 4
        assert "a bug near" in worker.printed()
        assert MARK not in worker.printed()
    finally:
        worker.destroy()


@pytest.fixture
def unusable(guarded: Guarded) -> list[str]:
    """URLs with the password in them that lead nowhere, for all the reasons that there are."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
        escaped, port = quote(PASSWORD, safe=""), guarded.server.port
        return [
            f"redis://worker:{escaped}@127.0.0.1:{closed}/0",
            f"redis://nobody:{escaped}@127.0.0.1:{port}/0",
            f"redis://worker:{PASSWORD}@127.0.0.1:{port}/0",
            f"redis://:{PASSWORD}@127.0.0.1/0",
            f"redis://{PASSWORD}",
            f"rediss://worker:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs=/nowhere",
            f"rediss://worker:{escaped}@127.0.0.1:{port}/0?ssl_ca_certs=/nowhere",
            f"unix://worker:{escaped}@/nowhere.sock",
            f"redis+sentinel://worker:{PASSWORD}@127.0.0.1:{closed}/main",
            f"redis+sentinel://worker:{escaped}@127.0.0.1:{closed}/main?sentinel_password={escaped}",
            f"redis+cluster://worker:{escaped}@127.0.0.1:{port}",
            f"redis+cluster://worker:{PASSWORD}@127.0.0.1:{port}",
            f"http://worker:{PASSWORD}@127.0.0.1",
            PASSWORD,
        ]


def test_urls_that_lead_nowhere_are_not_repeated(unusable: list[str]) -> None:
    told = [streamfleet(url, "enqueue", "--prompt", "hi") for url in unusable]
    assert {ended.returncode for ended in told} <= {1, 2}
    assert [ended for ended in told if MARK in ended.stderr + ended.stdout or "Traceback" in ended.stderr] == []
    assert [ended for ended in told if "redis" not in ended.stderr.lower()] == []


def test_settings_do_not_show_their_secrets(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("STREAMFLEET_VLLM_API_KEY", MARK)
    shown = [load(QueueSettings), load(EngineSettings, engine="simulated")]
    assert [each for each in shown if MARK in f"{each!r} {each} {each.model_dump()} {each.model_dump_json()}"] == []


def test_a_secret_in_a_file_is_the_file_without_its_last_line_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{PASSWORD}\n", encoding="utf-8")
    monkeypatch.setenv("STREAMFLEET_VLLM_API_KEY_FILE", str(file))
    monkeypatch.setenv("STREAMFLEET_REDIS_URL_FILE", str(file))
    assert load(EngineSettings, engine="simulated").vllm_api_key.get_secret_value() == PASSWORD
    assert load(QueueSettings).redis_url.get_secret_value() == PASSWORD
    assert load(QueueSettings, redis_url="redis://given").redis_url.get_secret_value() == "redis://given"
    assert unknown_variables() == {}


def test_a_secret_from_a_file_is_what_the_file_says_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("one\n")
    monkeypatch.setenv("STREAMFLEET_VLLM_API_KEY_FILE", str(file))
    key = load(EngineSettings, engine="simulated").model_copy().vllm_api_key
    file.write_text("two\n")
    assert key.get_secret_value() == "two"
    file.write_text("")  # for a moment, while it is written
    assert key.get_secret_value() == "two"
    file.write_bytes(b"\xff")
    assert key.get_secret_value() == "two"
    file.write_text("three\nfour")
    assert key.get_secret_value() == "two"
    file.unlink()
    assert key.get_secret_value() == "two"


@pytest.mark.parametrize("end", ["\nmore", "\r\nmore", "\x00more", "\x7fmore"])
def test_a_key_of_several_lines_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """httpx would show it: Illegal header value b'Bearer …'."""
    (file := tmp_path / "key").write_text(MARK + end)
    with monkeypatch.context() as environ:
        environ.setenv("STREAMFLEET_VLLM_API_KEY_FILE", str(file))
        with pytest.raises(SettingsError, match=r"^STREAMFLEET_VLLM_API_KEY_FILE: .* must be one line") as of_file:
            load(EngineSettings, engine="simulated")
    assert MARK not in str(of_file.value)
    for value in (MARK + end, MARK + " "):
        with pytest.raises(SettingsError, match=r"^STREAMFLEET_VLLM_API_KEY: must be one line") as given:
            load(EngineSettings, engine="simulated", vllm_api_key=value)
        assert MARK not in str(given.value)


def test_a_command_takes_its_url_from_a_file(guarded: Guarded, url: str, tmp_path: Path) -> None:
    """As Kubernetes mounts secrets. In /proc, and so in `ps`, is nothing of it."""
    file = tmp_path / "redis-url"
    file.write_text(url.replace("worker:", "operator:") + "\n", encoding="utf-8")
    settings = {name: value for name, value in environment("").items() if name != "REDIS_URL"}
    process = subprocess.Popen(
        command("backlog", "--watch", "--json", "--interval", "0.1"),
        env={**settings, "REDIS_URL_FILE": str(file)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["queue"] == "default"
        assert MARK not in shown_by_the_system(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("content", "also", "said"),
    [
        (None, "", "REDIS_URL_FILE: .* cannot be read: No such file"),
        (f"redis://:{MARK}@localhost".encode(), f"redis://:{MARK}@elsewhere", "REDIS_URL is set too"),
        (b"\xff" + MARK.encode(), "", "is not text"),
        (PASSWORD.encode(), "", "REDIS_URL .*not an address"),
    ],
    ids=["no file", "both", "no text", "no URL"],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, also: str, said: str) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    ended = streamfleet(also, "audit", REDIS_URL_FILE=str(file))
    assert ended.returncode == 2
    assert re.search(said, ended.stderr), ended.stderr
    assert MARK not in ended.stderr


def test_the_help_warns_of_passwords_on_the_command_line() -> None:
    for name in ("enqueue", "worker", "audit"):
        said = " ".join(streamfleet("", name, "--help").stdout.replace("│", " ").split())
        assert "Everybody on this machine can read a command line" in said
        assert "REDIS_URL_FILE" in said


# -- bodies ------------------------------------------------------------------------------------------------

BODY = "B0dyZq9w"


def bodies() -> dict[str, object]:
    """Requests with the mark in them, that end in every way."""
    message = {"messages": [{"role": "user", "content": BODY}], "max_tokens": 2}
    return {
        "good": message,
        "not-json": f"{{{BODY}",
        "not-utf8": b"\xff" + BODY.encode(),
        "no-object": f'["{BODY}"]',
        "nothing-to-do": {BODY: BODY},
        "wrong-type": {**message, "messages": BODY},
        "too-many": {**message, "n": 10_000, "user": BODY},
        "grammar": {**message, "guided_grammar": BODY * 4_000},
        "odd-field": {**message, BODY: {BODY: [BODY]}},
        "surrogate": '{"prompt":"' + BODY + '\\ud800"}',
        "deep": "[" * 20_000 + BODY,
        "repeated": message,
        "broken": message,
    }


FIELDS = {"endpoint": f"/v1/{BODY}", "deadline": BODY, "ttl": BODY, "stream": BODY, "traceparent": BODY}


async def test_bodies_are_never_logged_or_shown(guarded: Guarded, tmp_path: Path) -> None:
    """Not even at the debug level; nor what an engine repeats of them; on the pages, no ids either."""
    echo = {"error": {"message": f"you said {BODY}", "type": BODY, "code": BODY}}
    answers = {"repeated": Reply(400, echo), "broken": Reply(500, echo)}
    engine = HttpEngine(lambda name, _: answers.get("broken" if name.startswith("probe-") else name, Reply()))
    fleet = Fleet(guarded.server.url, tmp_path)
    async with engine.serving():
        worker = fleet.start("w1", (), {UNREADY: 1}, engine="openai", vllm_url=engine.url, max_deliveries=1)
        try:
            await worker.ready()
            for request_id, body in bodies().items():
                text = body if isinstance(body, (str, bytes)) else json.dumps(body)
                if request_id != "broken":
                    await fleet.add(request_id, body=text)
            for name, value in FIELDS.items():
                await fleet.add(f"field-{name}", **{name: value})
            ids = [name for name in bodies() if name != "broken"] + [f"field-{name}" for name in FIELDS]
            await fleet.results(ids)
            await fleet.add("broken", body=bodies()["broken"])  # the last: it makes the worker unfit
            assert BODY in (await fleet.result("broken")).error["message"]  # type: ignore[index]
            await eventually(lambda: "500" in worker.get("/readyz").text, 5, "it is unready, and says why")
            pages = [worker.get(path).text for path in ("/livez", "/readyz", "/metrics")]
            worker.send(signal.SIGTERM)
            await worker.ended(20)
        finally:
            await fleet.close()
    assert "request_done" in worker.printed(), "it did log at the debug level"
    assert "request_postponed" in worker.printed()
    assert [line for line in worker.printed().splitlines() if BODY in line] == []
    assert [page for page in pages if BODY in page or any(request_id in page for request_id in ids)] == []


async def test_a_bug_that_a_body_meets_does_not_show_it(guarded: Guarded, tmp_path: Path) -> None:
    fleet = Fleet(guarded.server.url, tmp_path)
    worker = fleet.start("w1", patches=["clumsy"])
    try:
        await worker.ready()
        await fleet.add("r-1", body={"messages": [{"role": "user", "content": BODY}]})
        await fleet.result("r-1")
        (event,) = worker.events("request_broke_the_worker")
        assert event["error"] == "ValueError"
        assert "worker_patches.py" in event["traceback"]
        assert BODY not in worker.printed()
    finally:
        await fleet.close()


# -- listening ---------------------------------------------------------------------------------------------


def listening(pid: int) -> Iterator[str]:
    """Addresses on which a process listens for TCP, as the kernel's table has them."""
    links = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    sockets = {str(link).removeprefix("socket:[").rstrip("]") for link in links if str(link).startswith("socket:")}
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                packed = bytes.fromhex(words[1].split(":")[0])
                number = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
                yield socket.inet_ntop(family, number)


@pytest.mark.parametrize(
    ("host", "expected"),
    [(None, "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "0.0.0.0")],  # noqa: S104 - told to
)
def test_a_worker_listens_where_it_is_told_and_nowhere_else(
    guarded: Guarded, tmp_path: Path, host: str | None, expected: str
) -> None:
    if not Path("/proc/self/net/tcp").exists():
        pytest.skip("no /proc on this system")
    worker = WorkerProcess(
        guarded.server.url, tmp_path, "w1", (), None, **({} if host is None else {"health_host": host})
    )
    try:
        worker.ready_blocking()
        assert list(listening(worker.pid)) == [expected]
    finally:
        worker.destroy()
