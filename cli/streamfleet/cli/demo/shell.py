"""Runs shell commands exactly as shown on the screen, and shows their output below."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from streamfleet.cli.demo.parent import with_parent
from streamfleet.operator.commands.plain import one_line, plain

PATIENCE_S = 240.0
PLAIN_WIDTH = 120
"""Width of the output in a file or a pipe."""
LINE_BYTES = 4 * 1024 * 1024
INDENT = "    "
Pick = Callable[[str], str | None]


class Shell:
    """A shell with its own folder and environment.

    Args:
        screen: console for commands and output.
        folder: working folder of commands.
        env: environment of commands.
    """

    def __init__(self, screen: Console, folder: Path, env: Mapping[str, str]) -> None:
        self._screen, self._folder, self._env = screen, folder, dict(env)

    def say(self, text: str, style: str = "") -> None:
        """Print text of the demo, indented like command output, without markup."""
        for line in plain(text).splitlines():
            self._screen.print((INDENT + line).rstrip(), style=style, markup=False, highlight=False, soft_wrap=True)

    def short(self, line: str) -> str:
        """A line cut to the width of the screen."""
        width = (self._screen.width if self._screen.is_terminal else PLAIN_WIDTH) - len(INDENT)
        line = one_line(line)
        return line if len(line) <= width else line[: width - 1] + "…"

    async def run(self, command: str, shown: Pick | None = None) -> str:
        """Show a command, run it, and show its output line by line. Returns the whole output.

        Args:
            command: command for `sh`.
            shown: returns the part of a line to show; None for nothing. Default: the line, cut to fit.
        """
        self._screen.print()
        first, *others = command.splitlines()
        self.say("\n".join([f"$ {first}", *(f"  {line}" for line in others)]), "bold cyan")
        return await self.quietly(["/bin/sh", "-c", command], shown or self.short)

    async def quietly(self, command: Sequence[str], shown: Pick = lambda _line: None) -> str:
        """Run a program without showing the command. Returns its output, standard error included.

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
