"""Commands that are shown and run: what stands on the screen is what the shell gets, and its answer comes below."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from streamfleet.cli.demo.parent import with_parent
from streamfleet.producer.commands.plain import one_line, plain

PATIENCE_S = 240.0
PLAIN_WIDTH = 120
"""Of a screen that is a file or a pipe."""
LINE_BYTES = 4 * 1024 * 1024
INDENT = "    "
Pick = Callable[[str], str | None]


class Shell:
    """A shell of the demo's, in a folder and with an environment of its own.

    Args:
        screen: where commands and answers are shown.
        folder: where commands run.
        env: what they find in their environment.
    """

    def __init__(self, screen: Console, folder: Path, env: Mapping[str, str]) -> None:
        self._screen, self._folder, self._env = screen, folder, dict(env)

    def say(self, text: str, style: str = "") -> None:
        """A line of the demo's own, indented like what commands answer; in nobody's markup."""
        for line in plain(text).splitlines():
            self._screen.print((INDENT + line).rstrip(), style=style, markup=False, highlight=False, soft_wrap=True)

    def short(self, line: str) -> str:
        """A line that fits the screen: cut at its end."""
        width = (self._screen.width if self._screen.is_terminal else PLAIN_WIDTH) - len(INDENT)
        line = one_line(line)
        return line if len(line) <= width else line[: width - 1] + "…"

    async def run(self, command: str, shown: Pick | None = None) -> str:
        """Show a command, run it, show each line of its answer as it comes; all of the answer.

        Args:
            command: for `sh`.
            shown: what of a line is shown; None for nothing. Default: the line, cut to fit.
        """
        self._screen.print()
        first, *others = command.splitlines()
        self.say("\n".join([f"$ {first}", *(f"  {line}" for line in others)]), "bold cyan")
        return await self.quietly(["/bin/sh", "-c", command], shown or self.short)

    async def quietly(self, command: Sequence[str], shown: Pick = lambda _line: None) -> str:
        """The same for a program, which is not shown itself; what it says on standard error is.

        Its process group is killed after `PATIENCE_S`, and when this is cancelled.
        """
        process = await asyncio.create_subprocess_exec(
            *with_parent(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._folder,
            env=self._env,
            limit=LINE_BYTES,
            start_new_session=True,
        )
        lines = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while read := await self._line(process):
                    lines.append(read)
                    picked = shown(read.rstrip("\n"))
                    if picked is not None:
                        self.say(picked)
                if await process.wait():
                    self.say(f"(exit status {process.returncode})", "red")
        except TimeoutError:
            self.say(f"(no end after {PATIENCE_S:.0f} s)", "red")
        finally:
            await _end(process)
        return "".join(lines)

    @staticmethod
    async def _line(process: asyncio.subprocess.Process) -> str:
        if process.stdout is None:
            raise RuntimeError("the process was started without a pipe")
        return (await process.stdout.readline()).decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
