"""The workers of a run, each in a slot with a proxy, and the supervisor that starts a new one when one has ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fault.control import Controls
from tests.fault.journal import Journal
from tests.fault.launcher import Launcher
from tests.fault.plan import Setup
from tests.fault.proxy import Proxy
from tests.passwords import Passwords

PAUSE_S = 0.1  # before an ended worker is started again


@dataclass
class Member:
    """One worker process in its slot.

    Attributes:
        name: its name in the queue, new with every process.
        pid: its pid; 0 until it has been forked.
        ready: set once its engine runs.
        ended: its exit status, once there is one.
    """

    slot: int
    name: str
    pid: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def usable(self) -> bool:
        return self.ready.is_set() and not self.ended.done()


class Fleet:
    """A worker in each slot for as long as it runs.

    Args:
        launcher: starts processes.
        setup: settings.
        folder: logs and witnesses go there.
        redis_port: for the proxies.
        journal: starts and exits are written there.
        passwords: of Redis.
    """

    def __init__(
        self,
        launcher: Launcher,
        setup: Setup,
        folder: Path,
        redis_port: int,
        journal: Journal,
        passwords: Passwords,
    ) -> None:
        self._launcher, self._setup, self._folder, self._journal = launcher, setup, folder, journal
        self._passwords = passwords
        self.proxies = [Proxy(redis_port) for _ in range(setup.workers)]
        self.controls = Controls(folder / "control", self._heard)
        self.members: list[Member | None] = [None] * setup.workers
        self.on_struck: Callable[[str, dict[str, Any]], None] = lambda *_: None
        self._by_name: dict[str, Member] = {}
        self._generation = 0
        self._supervisors: list[asyncio.Task[None]] = []
        self._starting: set[asyncio.Task[Member]] = set()
        self._closing = False
        self.mutation = ""
        self.started = 0

    async def open(self) -> None:
        for proxy in self.proxies:
            await proxy.open()
        await self.controls.open()

    def supervise(self, slots: range | None = None) -> None:
        """Keep a worker running in each of these slots (default: all) from now on."""
        for slot in slots or range(len(self.members)):
            self._supervisors.append(asyncio.create_task(self._supervise(slot)))

    async def ready(self, slot: int) -> Member:
        """The worker in a slot, once it takes requests.

        Raises:
            TimeoutError: none did in time.
        """
        async with asyncio.timeout(self._setup.start_s):
            while True:
                member = self.members[slot]
                if member is None or member.ended.done():
                    await asyncio.sleep(0.02)
                    continue
                waits = {asyncio.ensure_future(member.ready.wait()), asyncio.ensure_future(_end_of(member))}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
                if member.usable:
                    return member

    @property
    def fallen(self) -> int:
        """Workers that did not leave in order."""
        return sum(member.ended.done() and member.ended.result() != 0 for member in self._by_name.values())

    def known(self, name: str) -> Member | None:
        """A worker of this run by its name, also when it has ended."""
        return self._by_name.get(name)

    async def all_ready(self) -> list[Member]:
        return [await self.ready(slot) for slot in range(len(self.members))]

    async def signal(self, member: Member, signum: signal.Signals) -> bool:
        """Send a signal; False when the process had ended."""
        return not member.ended.done() and await self._launcher.signal(member.pid, signum)

    async def drain(self, within_s: float = 30.0) -> list[str]:
        """SIGTERM for all; names of those that had to be killed because they did not end."""
        self._closing = True
        for supervisor in self._supervisors:
            supervisor.cancel()
        # A worker that is being forked has no pid yet, and no signal would reach it.
        await asyncio.gather(*self._starting)
        members = [member for member in self.members if member is not None and not member.ended.done()]
        for member in members:
            # Before it listens for signals, or when it is on its way out already, SIGTERM simply ends it.
            self._journal.write("fault", kind="leave" if member.usable else "term_early", worker=member.name)
            await self.signal(member, signal.SIGCONT)
            await self.signal(member, signal.SIGTERM)
        if members:
            await asyncio.wait({member.ended for member in members}, timeout=within_s)
        stuck = [member for member in members if not member.ended.done()]
        for member in stuck:
            await self.signal(member, signal.SIGKILL)
            await member.ended
        return [member.name for member in stuck]

    async def close(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await self.controls.close()
        for proxy in self.proxies:
            await proxy.close()

    async def start(self, slot: int) -> Member:
        """Start one worker in a slot, without supervision."""
        self._generation += 1
        member = Member(slot, f"w{slot}.{self._generation}")
        self.members[slot] = self._by_name[member.name] = member
        file = self._passwords.file(self.proxies[slot].url, f"slot-{slot}")
        variables = (
            self._setup.variables()
            | self._setup.of_worker(slot)
            | {
                "STREAMFLEET_REDIS_URL_FILE": str(file),
                "STREAMFLEET_WORKER_NAME": member.name,
            }
        )
        spec = {
            "role": "worker",
            "name": member.name,
            "env": variables,
            "log": str(self._folder / f"{member.name}.log"),
            "witness": str(self._folder / f"{member.name}.witness"),
            "control": str(self._folder / "control"),
            "mutation": self.mutation,
        }
        self.started += 1
        member.pid = await self._launcher.start(spec, lambda code: self._has_ended(member, code))
        self._journal.write("started", worker=member.name, pid=member.pid)
        return member

    def _has_ended(self, member: Member, code: int) -> None:
        self._journal.write("exit", worker=member.name, code=code)
        member.ended.set_result(code)

    async def _supervise(self, slot: int) -> None:
        while not self._closing:
            starting = asyncio.create_task(self.start(slot))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)
            member = await asyncio.shield(starting)
            await _end_of(member)
            await asyncio.sleep(PAUSE_S)

    def _heard(self, name: str, said: dict[str, Any]) -> None:
        if said["said"] == "ready":
            self._journal.write("ready", worker=name)
            self._by_name[name].ready.set()
        elif said["said"] == "struck":
            self.on_struck(name, said)


async def _end_of(member: Member) -> None:
    await asyncio.wait({member.ended})
