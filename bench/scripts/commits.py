"""Sources of another commit of this project, and the environment of a process that runs them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from bench.core.reports import ROOT

ALL = ("common", "producer", "worker", "operator", "gateway", "cli")


def unpack(commit: str, folder: Path) -> str:
    """Write a commit's sources into a folder. Returns the whole commit.

    Raises:
        CalledProcessError: there is no such commit; git's errors go to standard error.
    """
    words = ("git", "-C", str(ROOT), "archive", "--format=tar", commit, *ALL)
    archive = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:  # Python 3.11.2, which Debian 12 has
            packed.extractall(folder)  # noqa: S202 - an archive of this project's own
        return packed.pax_headers["comment"]


def environment(folder: Path) -> dict[str, str]:
    """Environment of a process that runs the sources in a folder where it would run this checkout's."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / root) for root in ALL)}
