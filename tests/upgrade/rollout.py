"""A fleet of a release becomes one of this checkout, and goes back, under load and kills; then the history is judged.

Workers, gateways and clients of both work at once. Clients, workers, proxies and the judge are those of tests/fault;
callers over HTTP ask whichever gateway answers, again and again with one Idempotency-Key.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import uuid
from typing import Any

import httpx

from tests.fault.faults import Striker
from tests.fault.harness import MARK, Harness, harness_on
from tests.fault.history import History, collect
from tests.fault.journal import Journal
from tests.fault.judge import judge
from tests.fault.launcher import Ended, Launcher, ZygoteLauncher
from tests.fault.plan import Fault, FaultKind, Kind, Plan, body
from tests.fault.redis_faults import server_binary
from tests.fault.report import tidy, violations
from tests.fault.run import Ran
from tests.integration.cli_processes import environment
from tests.integration.forked import IMPORTED
from tests.waiting import eventually

GATEWAYS = ("gateway-0", "gateway-1")
GATEWAY = {"GATEWAY_PORT": "0", "GATEWAY_HEALTH_PORT": "0", "GATEWAY_KEYS": "off", "LOG_FORMAT": "json"}
NEWER = ("producer-2", "producer-3")
"""The producers of this checkout, one on each queue; the release has the other two."""
STEP_S, AGAIN_S, GATEWAY_S = 5.0, 0.1, 30.0


class Sides:
    """The launcher of a run: starts each process out of the release, or out of this checkout.

    Attributes:
        newer: names of slots, producers and gateways that this checkout starts from now on.
    """

    def __init__(self, older: Launcher, newer: Launcher) -> None:
        self._launchers = (older, newer)
        self._started: dict[int, Launcher] = {}
        self.newer = set(NEWER)

    async def start(self, spec: dict[str, Any], ended: Ended) -> int:
        launcher = self._launchers[spec["name"].partition(".")[0] in self.newer]
        pid = await launcher.start(spec, ended)
        self._started[pid] = launcher
        return pid

    async def signal(self, pid: int, signum: signal.Signals) -> bool:
        return await self._started[pid].signal(pid, signum)


class Callers:
    """Callers over HTTP, and the gateways that they ask. An asynchronous context manager."""

    def __init__(self, harness: Harness, sides: Sides) -> None:
        self._harness, self._sides = harness, sides
        self._journal = Journal(harness.folder / "callers.journal")
        self._http = httpx.AsyncClient(timeout=harness.setup.settle_s, trust_env=False)
        self._gateways: dict[str, tuple[int, int, asyncio.Future[int]]] = {}
        self._numbers, self._turns = itertools.count(), itertools.cycle((0, 1))
        self.answers: dict[int, tuple[str, str]] = {}
        self.problems: list[str] = []

    async def __aenter__(self) -> Callers:
        # The judge tells strays by `meta`, and a gateway gives its requests none.
        self._journal.write("intent", nonce="", id="", kind=Kind.GOOD, reply="", ttl=None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        self._journal.close()

    async def replace(self, name: str, signum: signal.Signals = signal.SIGTERM) -> None:
        """Start a gateway, and end the one whose place it takes."""
        before, self._gateways[name] = self._gateways.get(name), await self._start(name)
        if before is not None:
            pid, _, ended = before
            await self._sides.signal(pid, signum)
            code = await asyncio.wait_for(ended, GATEWAY_S)
            if code != (0 if signum is signal.SIGTERM else -signum):
                self.problems.append(f"{name} ended with {code}")

    async def ask(self, number: int, in_s: float = 0.0) -> None:
        """Ask until there is an answer; one that differs from an earlier one is a problem.

        Raises:
            TimeoutError: no gateway answers.
        """
        await asyncio.sleep(in_s)
        async with asyncio.timeout(self._harness.setup.settle_s):
            answer = await self._answer(number)
        found = answer.headers.get("x-streamfleet-id", ""), answer.text
        if not answer.is_success or self.answers.setdefault(number, found) != found:
            self.problems.append(f"call {number}: {answer.status_code} {found}, before {self.answers.get(number)}")
        self._journal.write("accepted", id=found[0], nonce="", existing=False)

    async def _answer(self, number: int) -> httpx.Response:
        call = {"model": "simulated", **json.loads(body(5 + number % 20)), "user": str(number % 4), "seed": number}
        while True:
            _, port, _ = self._gateways[GATEWAYS[next(self._turns)]]
            with contextlib.suppress(httpx.TransportError):
                url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Idempotency-Key": f"call {number}"}
                answer = await self._http.post(url, json=call, headers=headers)
                if not answer.is_server_error:
                    return answer
            await asyncio.sleep(AGAIN_S)

    async def ask_again(self) -> None:
        """Repeat all calls that were answered."""
        await asyncio.gather(*map(self.ask, list(self.answers)))

    async def _start(self, name: str) -> tuple[int, int, asyncio.Future[int]]:
        log = self._harness.folder / f"{name}.{next(self._numbers)}.log"
        settings = {f"STREAMFLEET_{key}": value for key, value in GATEWAY.items()}
        spec = {
            "role": "module",
            "name": name,
            "command": ["streamfleet.cli", "gateway"],
            "environment": environment(self._harness.redis.server.url, **settings),
            "log": str(log),
            "folder": str(self._harness.folder),
            "constants": {},
        }
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        pid = await self._sides.start(spec, ended.set_result)

        def ready() -> list[int]:
            assert not ended.done(), f"{name} ended with {ended.result()}: {log.read_text()[-1_000:]}"
            lines = log.read_text().splitlines(keepends=True) if log.exists() else []
            return [json.loads(line)["port"] for line in lines if "gateway_ready" in line and line.endswith("}\n")]

        return pid, (await eventually(ready, GATEWAY_S, f"{name} listens"))[0], ended


async def play(older: dict[str, str], plan: Plan, calls: int, keep: bool = True) -> list[str]:
    """Play a rollout and the way back. Returns what must not be, with its logs; empty for a good run.

    Args:
        older: variables with which Python runs the release.
        plan: its producers and set-up; its faults are passed over.
        calls: how many calls over HTTP there are besides.
        keep: whether the logs of a run with such a finding are kept.
    """
    mark = uuid.uuid4().hex
    async with contextlib.AsyncExitStack() as stack:
        launchers = [ZygoteLauncher({MARK: mark, **variables}, *IMPORTED) for variables in (older, {})]
        sides = Sides(*await asyncio.gather(*map(stack.enter_async_context, launchers)))
        harness = await stack.enter_async_context(harness_on(server_binary(""), plan.setup, sides, mark))
        callers = await stack.enter_async_context(Callers(harness, sides))
        history = await _history(harness, sides, callers, plan, calls)
    ran = Ran(judge(history), history)
    found = list(violations(ran, harness.folder))
    return [each for each in (*found, tidy(harness.folder, keep and bool(found))) if each]


async def _history(harness: Harness, sides: Sides, callers: Callers, plan: Plan, calls: int) -> History:
    tasks: set[asyncio.Task[None]] = set()
    harness.fleet.supervise()
    try:
        await harness.fleet.all_ready()
        await asyncio.gather(*map(callers.replace, GATEWAYS))
        for steps in plan.producers:
            await harness.produce(steps)
        tasks |= {asyncio.create_task(callers.ask(number, plan.seconds * number / calls)) for number in range(calls)}
        await _roll(harness, sides, callers, plan)
        if not await harness.settled(plan.setup.settle_s):
            callers.problems.append("not everything has ended after the rollout")
        await asyncio.gather(*tasks)
        await callers.ask_again()
    except (AssertionError, TimeoutError) as error:
        callers.problems.append(f"the rollout came to a stop: {error!r}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await harness.leave()
    history = await collect(harness)
    await harness.dismiss_producers()
    history.stuck += harness.stuck
    history.problems += callers.problems
    over_http = {name for name, result in history.results.items() if not result["meta"]}
    if over_http != {name for name, _ in callers.answers.values()}:
        history.problems.append(f"{len(over_http)} results of {len(callers.answers)} calls that were answered")
    return history


async def _roll(harness: Harness, sides: Sides, callers: Callers, plan: Plan) -> None:
    """To this checkout, and back: one process after the other, told to leave on one way and killed on the other."""
    slots = [f"w{slot}" for slot in range(plan.setup.workers)]
    order = [name for pair in itertools.zip_longest(slots, GATEWAYS) for name in pair if name]
    striker = Striker(harness)
    for number, (newer, name) in enumerate(itertools.product((True, False), order)):
        goal = plan.requests * number // (2 * len(order) + 1)
        with contextlib.suppress(AssertionError):  # what holds the requests up, the judge tells
            await eventually(lambda: harness.collector.ended >= goal, STEP_S)  # noqa: B023 - called here alone
        (sides.newer.add if newer else sides.newer.discard)(name)
        killed = newer == bool(number % 2)
        if name in GATEWAYS:
            await callers.replace(name, signal.SIGKILL if killed else signal.SIGTERM)
            await callers.ask_again()
        else:
            member = await harness.fleet.ready(int(name[1:]))
            await striker.strike(Fault(goal, FaultKind.KILL if killed else FaultKind.TERM, member.slot))
            await asyncio.wait({member.ended})
            await harness.fleet.ready(member.slot)
