"""Several processes of one gateway: limits hold for all of them, and none takes all connections."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import LogSettings, QueueSettings, load, load_for_gateway
from streamfleet.common.settings_gateway import GatewaySettings
from streamfleet.gateway import processes, server
from streamfleet.gateway.body import Bodies
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.files.files import MOST_OPEN, MOST_OPEN_PER_TENANT, Files
from streamfleet.gateway.files.store import Store
from streamfleet.gateway.gateway import Gateway
from streamfleet.gateway.processes import STOPS, Parent, given, part_of
from streamfleet.gateway.server import SLACK, Acceptor
from streamfleet.gateway.shared_counts import Count, SharedCounts, size_bytes
from streamfleet.gateway.webhooks.deliverer import PER_HOST
from tests.unit.gateway_server import connect, served, until_closed
from tests.waiting import eventually

MOST = 1_000


@pytest.fixture
def two() -> tuple[SharedCounts, SharedCounts]:
    """The counts as each of two processes sees them."""
    memory = mmap.mmap(-1, size_bytes(2))
    return SharedCounts(memory, 2, 0), SharedCounts(memory, 2, 1)


def refused(work: Any) -> int:
    with pytest.raises(ApiError) as raised:
        work()
    return raised.value.status


@pytest.mark.parametrize("answers", [True, False])
def test_bytes_are_bounded_for_all_processes_together(two: tuple[SharedCounts, ...], answers: bool) -> None:
    here, there = (Bodies(MOST, answers=answers, shared=each) for each in two)
    other = Bodies(MOST, answers=not answers, shared=two[1])
    other.hold("a").add(5 * MOST)  # of the other kind, which has a limit of its own
    holding, more = there.hold("a"), here.hold("a")
    holding.add(MOST // 2)
    assert refused(lambda: more.add(1)) == 429
    assert refused(lambda: here.hold("b").add(MOST // 2 + 1)) == 503
    here.hold("b").add(MOST // 2)
    assert refused(lambda: there.hold("c").add(1)) == 503
    holding.release()
    more.add(MOST // 2)


def test_bytes_are_let_go_whatever_other_processes_hold(two: tuple[SharedCounts, ...]) -> None:
    """Two that look at the same moment both find room."""
    holding = Bodies(MOST, shared=two[0]).hold("a")
    holding.add(MOST)
    two[1].add(Count.BODIES, 2 * MOST)
    holding.resize(MOST // 2)
    assert two[1].others(Count.BODIES) == MOST // 2
    holding.release()
    assert two[1].others(Count.BODIES) == 0


async def test_an_answer_finds_the_room_that_another_process_has_left(two: tuple[SharedCounts, ...]) -> None:
    here, there = (Bodies(MOST, answers=True, shared=each) for each in two)
    holding = there.hold("a")
    holding.add(MOST)
    waiting = asyncio.ensure_future(here.hold("b").add_soon(MOST))
    await eventually(lambda: here._waiting_bytes == MOST, 5, "it waits")
    holding.release()
    await asyncio.wait_for(waiting, 4)


async def test_uploads_are_bounded_for_all_processes_together(tmp_path: Path, two: tuple[SharedCounts, ...]) -> None:
    store, records = Store(f"file://{tmp_path}/files"), None
    here, there = (Files(records, store, 1, 1, shared=each) for each in two)  # type: ignore[arg-type]
    with ExitStack() as places:
        for number in range(MOST_OPEN):
            if number == MOST_OPEN_PER_TENANT:
                assert refused(lambda: here.place("t0").__enter__()) == 429
            places.enter_context(there.place(f"t{number // MOST_OPEN_PER_TENANT}"))
        assert refused(lambda: here.place("new").__enter__()) == 503
    with here.place("t0"):
        assert two[1].others(Count.UPLOADS, "t0") == 1
        two[1].clear(0)
        assert two[1].others(Count.UPLOADS, "t0") == 0
    await store.close()


async def _answers(scope: Any, receive: Any, send: Any) -> None:
    scope["state"]["call"].admit("t")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await receive()
    await asyncio.Event().wait()


async def test_connections_are_bounded_for_all_processes_together(two: tuple[SharedCounts, ...]) -> None:
    here, there = two
    there.add(Count.CONNECTIONS, 2)
    async with served(_answers, connections=3, shared=here) as address:
        with await connect(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as first:
            assert b" 200 " in await asyncio.to_thread(first.recv, 100)
            with await connect(address) as second:
                assert b"too_many_connections" in await until_closed(second)
        await eventually(lambda: there.others(Count.CONNECTIONS) == 0, 5, "those that have ended do not count")


@pytest.mark.parametrize("other_serves", [True, False])
async def test_a_process_with_more_than_its_part_leaves_connections_to_others(
    two: tuple[SharedCounts, ...], monkeypatch: pytest.MonkeyPatch, other_serves: bool
) -> None:
    monkeypatch.setattr(server, "PAUSE_S", 60)
    here, there = two
    here.add(Count.HEALTH_PORT, 1)
    there.add(Count.HEALTH_PORT, int(other_serves))
    here.add(Count.CONNECTIONS, 2 * SLACK + 1)
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[0]

    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.setblocking(False)
        acceptor = Acceptor(opened, make, here)
        with await connect(opened.getsockname()):
            await eventually(lambda: made or acceptor._pause, 5, "it has seen the connection")
            assert (not made) is other_serves
            if other_serves:
                acceptor._go_on()  # the pause is over, and nobody took it
                await eventually(lambda: made, 5, "none is left alone for longer")
        acceptor.close()


async def test_what_runs_at_once_is_divided(tmp_path: Path) -> None:
    for together, many in ((8, 2), (4, 3), (3, 8), (0, 2)):
        whole = load(GatewaySettings, gateway_processes=many, gateway_batches_at_once=together)
        processes = [SharedCounts(None, many, place) for place in range(many)]
        assert sum(part_of(whole, each).gateway_batches_at_once for each in processes) == together
        assert sum(each.part(PER_HOST) for each in processes) == PER_HOST
    files = load(GatewaySettings, gateway_files=tmp_path.as_uri())
    gateway = Gateway(load(QueueSettings), files, SharedCounts(None, 2, 1))
    assert gateway.webhooks._deliverer._slots._per_host == PER_HOST / 2
    await gateway.close()


class Dying(Parent):
    """A parent whose children die at once, after they have served, or cannot be started."""

    starts, fails = 0, False

    async def _run(self, place: int) -> int:
        self.starts += 1
        if place == self._shared.place:
            self._shared.add(Count.HEALTH_PORT, 1)
            self._shared.add(Count.CONNECTIONS, 7)
        if self.fails:
            raise OSError(24, "Too many open files")
        return -9


@pytest.mark.parametrize("fails", [False, True])
async def test_a_child_that_dies_or_fails_at_once_is_not_started_again_at_once(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(processes, "RESTART_S", 60)
    settings = load(GatewaySettings, gateway_processes=2, gateway_health_port=0)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        parent = Dying(load(QueueSettings), settings, load(LogSettings), opened)
        parent.fails = fails
        running = asyncio.ensure_future(parent.run())
        await eventually(lambda: parent.starts == 2, 5, "each has died")
        assert not (await asyncio.wait((running,), timeout=0.1))[0]
        assert parent.starts == 2
        assert parent._shared.of_each(Count.CONNECTIONS) == [0, 0], "nothing counts of who has died"
        parent._stop()
        assert await asyncio.wait_for(running, 5) == 0


class Starting:
    """A child that is started in the moment of a signal."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.send_signal, self.returncode = self.signals.append, 0

    async def communicate(self, _: bytes) -> None:
        """End at once."""


async def test_a_child_that_is_being_started_hears_of_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(GatewaySettings, gateway_processes=2, gateway_health_port=0)
    started: list[Starting] = []

    async def start(*_: object, **__: object) -> Starting:
        started.append(Starting())
        parent._stop()
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        parent = Parent(load(QueueSettings), settings, load(LogSettings), opened)
        assert await asyncio.wait_for(parent.run(), 5) == 0
    assert [child.signals for child in started] == [[STOPS]], "and no other is started"


def test_where_processes_cannot_share_memory_several_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    settings = load(GatewaySettings, gateway_processes=2)
    with pytest.raises(SettingsError, match="STREAMFLEET_GATEWAY_PROCESSES: several processes need Linux"):
        server.run_gateway(load(QueueSettings), settings, load(LogSettings))


class Hung:
    """A child that does not end by itself."""

    returncode = -9

    def __init__(self) -> None:
        self.killed = asyncio.Event()
        self.kill = self.killed.set

    def send_signal(self, _: int) -> None:
        """It hangs."""

    async def communicate(self, _: bytes) -> None:
        await self.killed.wait()


@pytest.mark.parametrize("drain_ms", [0, 600_000])
async def test_a_child_that_hangs_in_its_drain_is_killed(monkeypatch: pytest.MonkeyPatch, drain_ms: int) -> None:
    """After the drain, and after a second signal."""
    monkeypatch.setattr(processes, "HANGS_S", 0.05)
    settings = load(GatewaySettings, gateway_processes=2, gateway_health_port=0, gateway_drain_ms=drain_ms)
    children: list[Hung] = []

    async def start(*_: object, **__: object) -> Hung:
        children.append(Hung())
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        parent = Parent(load(QueueSettings), settings, load(LogSettings), opened)
        running = asyncio.ensure_future(parent.run())
        await eventually(lambda: len(children) == 2, 5, "they are started")
        for _ in range(1 if not drain_ms else 2):
            parent._stop()
        assert await asyncio.wait_for(running, 5) == 0
        assert all(each.killed.is_set() for each in children)


def test_a_child_has_the_settings_of_its_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever they are from: the environment, files of secrets, or the command line, which comes first."""
    (tmp_path / "url").write_text("redis://user:secret@127.0.0.1:7/3")
    monkeypatch.setenv("STREAMFLEET_REDIS_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("STREAMFLEET_GATEWAY_MODELS", "a=b")
    monkeypatch.setenv("STREAMFLEET_GATEWAY_WEBHOOKS_PORTS", "443,8443")
    groups = load_for_gateway(gateway_models="small=one,large=two", gateway_processes=3)
    told = json.loads(json.dumps(given(*groups)))
    assert load_for_gateway(**told) == groups
    assert told == {"gateway_models": ["small=one", "large=two"], "gateway_processes": 3}
    monkeypatch.delenv("STREAMFLEET_REDIS_URL_FILE")
    groups = load_for_gateway(redis_url="redis://other@127.0.0.1:7/3")
    assert load_for_gateway(**json.loads(json.dumps(given(*groups)))) == groups
