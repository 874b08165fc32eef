"""Runs pip with one line of progress, and keeps its whole log for failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPORT_EVERY = 25
TAIL_LINES = 15


class InstallFailed(Exception):
    """pip ended with an error; the message holds its last lines.

    Attributes:
        log: file with pip's whole output.
    """

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


class Pip:
    """The pip of a virtual environment."""

    def __init__(self, venv: Path) -> None:
        self._python = venv / "bin/python"
        self._log = venv / "install.log"

    def install(self, *arguments: str, expected: int = 0) -> None:
        """Run `pip install`; `expected` is the number of packages, for the progress.

        Raises:
            InstallFailed: pip could not install them.
        """
        command = [str(self._python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        progress = _Progress(expected)
        with (
            self._log.open("w", encoding="utf-8") as log,
            subprocess.Popen(
                [*command, "--progress-bar", "off", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            for line in process.stdout or ():
                log.write(line)
                progress.see(line)
        if process.returncode:
            lines = self._log.read_text(encoding="utf-8").splitlines()
            raise InstallFailed("pip could not install it:\n" + "\n".join(lines[-TAIL_LINES:]), self._log)


class _Progress:
    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._collected = 0
        self._every = 1 if sys.stdout.isatty() else REPORT_EVERY

    def see(self, line: str) -> None:
        if not self._expected:
            return
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            self._collected += 1
            if self._collected % self._every == 0:
                self._show(f"  {self._collected} of {self._expected} packages", last=False)
        elif line.startswith("Installing collected packages"):
            self._show("  all there; unpacking …", last=True)

    def _show(self, text: str, *, last: bool) -> None:
        if sys.stdout.isatty():
            print(f"\r{text:<60}", end="\n" if last else "", flush=True)
        else:
            print(text, flush=True)
