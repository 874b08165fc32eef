"""A worker of the harness: streamfleet's own, with a witness in its engine and a hand that strikes it from inside.

Forked by the zygote, or by itself: `python -m tests.fault.worker_process SPEC.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from streamfleet.worker import __main__ as command
from streamfleet.worker import failpoints
from streamfleet.worker.in_flight import InFlight, InFlightRequest
from tests.constants import FAULT_RETRIES, set_constants
from tests.fault import mutations
from tests.fault.control import Line
from tests.fault.deathwish import die_with_parent
from tests.fault.journal import Journal
from tests.fault.witness import Witness


class Hand:
    """Strikes this process at failpoints and on order."""

    def __init__(self, journal: Journal, witness: Witness) -> None:
        self._journal, self._witness = journal, witness
        self._lock = threading.Lock()
        self._armed: dict[str, dict[str, Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.line: Line | None = None

    def started(self) -> None:
        """The engine runs, on this event loop."""
        self._loop = asyncio.get_running_loop()
        self._tell("ready")

    def obey(self, order: dict[str, Any]) -> None:
        """On the control thread."""
        match order["do"]:
            case "arm":
                with self._lock:
                    self._armed[order["point"]] = order
            case "disarm":
                with self._lock:
                    self._armed.pop(order["point"], None)
            case "clock":
                step_clock(order["ms"])
            case "engine":
                if self._loop is not None and self._witness.engine is not None:
                    self._loop.call_soon_threadsafe(getattr(self._witness.engine, order["what"]))

    def meet(self, point: failpoints.Point) -> None:
        """On whichever thread meets the point."""
        with self._lock:
            order = self._armed.get(point)
            if order is None:
                return
            if order["skip"] > 0:
                order["skip"] -= 1
                return
            del self._armed[point]
        self._journal.write("strike", point=point, action=order["action"])
        self._tell("struck", point=point, action=order["action"], seconds=order["seconds"])
        match order["action"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "stall":
                time.sleep(order["seconds"])  # of a thread of the worker: that is the fault

    def _tell(self, said: str, **fields: Any) -> None:
        if self.line is not None:
            self.line.tell(said, **fields)


_true_time, _true_time_ns = time.time, time.time_ns
_offset_ms = 0


def step_clock(ms: int) -> None:
    """Make the wall clock jump, for everything in this process that asks Python for it."""
    global _offset_ms  # noqa: PLW0603 - the process has one clock
    _offset_ms += ms
    time.time = lambda: _true_time() + _offset_ms / 1000
    time.time_ns = lambda: _true_time_ns() + _offset_ms * 1_000_000


def run(spec: dict[str, Any]) -> int:
    """Be a worker until its end; the exit status."""
    for name in [name for name in os.environ if name.startswith("STREAMFLEET_")]:
        del os.environ[name]
    os.environ.update(spec["env"])
    set_constants(FAULT_RETRIES)
    mutations.apply(spec.get("mutation", ""))
    journal = Journal(Path(spec["witness"]), worker=spec["name"])
    witness = Witness(journal)
    hand = Hand(journal, witness)
    witness.watch(_engine_class(spec["env"]["STREAMFLEET_ENGINE"]), hand.started)
    _watch_giving_way(journal)
    failpoints.install(hand.meet)
    hand.line = Line(spec["control"], spec["name"], hand.obey)
    hand.line.tell("hello", pid=os.getpid())
    return command.main()


def _watch_giving_way(journal: Journal) -> None:
    """Write down which runs end for an urgent request: their attempts are rightly made again."""
    give_way = InFlight.give_way

    def watched(self: InFlight, request: InFlightRequest) -> None:
        lease = request.lease
        journal.write("gave_way", id=lease.request_id, attempt=lease.attempt, entry=lease.entry)
        give_way(self, request)

    InFlight.give_way = watched  # type: ignore[method-assign]


def _engine_class(kind: str) -> Any:
    if kind == "vllm":
        from streamfleet.worker.engine.vllm import VllmEngine

        return VllmEngine
    from streamfleet.worker.engine.simulated import SimulatedEngine

    return SimulatedEngine


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(run(json.loads(Path(sys.argv[1]).read_text())))
