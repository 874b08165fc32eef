"""A witness in the engine: writes down every execution, and lets marked requests do what they are marked for."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

from streamfleet.common.logs import log_context
from streamfleet.worker.engine.base import EngineReply, EngineRequest
from tests.fault.journal import Journal

POISON, HANGING = "poison-", "hang-"


class Witness:
    """Wraps an engine class's `run` and `start`, for the whole process.

    Attributes:
        engine: the engine that was started last; None before.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._numbers = itertools.count()
        self.engine: Any = None

    def watch(self, kind: Any, started: Any) -> None:
        """Wrap the class; `started` is called once its engine runs."""
        run, start = kind.run, kind.start

        async def watched_run(engine: Any, request: EngineRequest) -> EngineReply:
            lease = log_context()
            attempt, entry = (lease.attempt, lease.entry) if lease else (0, "")
            number = next(self._numbers)  # two entries of one id may run here at once
            self._journal.write("start", n=number, id=request.id, attempt=attempt, entry=entry)
            how = "stopped"
            try:
                if request.id.startswith(POISON):
                    self._journal.write("poison", id=request.id)
                    os.kill(os.getpid(), signal.SIGKILL)
                if request.id.startswith(HANGING):
                    self._journal.write("hang", id=request.id)
                    engine.hang()
                reply: EngineReply = await run(engine, request)
                how = str(reply.status)
                return reply
            finally:
                self._journal.write("end", n=number, id=request.id, how=how)

        async def watched_start(engine: Any) -> None:
            await start(engine)
            self.engine = engine
            started()

        kind.run, kind.start = watched_run, watched_start
