"""Finds, by trying, the variables with which podman or buildah runs a container on this machine. Standard library only.

The default runtime refuses some machines (crun with cgroups of version 1), and the default limits are more than others
allow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CONFIGURATION = Path(__file__).parent.parent / "build" / "containers.conf"
TRY_S = 60


class NoContainers(Exception):
    """Containers do not run here; the message says why, and what to do."""


def environment(command: list[str]) -> dict[str, str]:
    """The variables with which a command, which runs a container, succeeds; empty where the defaults do.

    Args:
        command: run once for each way, until it succeeds.

    Raises:
        NoContainers: it succeeds with none of the runtimes that are installed.
    """
    complaints = []
    for runtime in ("", *filter(shutil.which, ("runc", "crun"))):
        way: dict[str, str] = {}
        if runtime:
            way["CONTAINERS_CONF"] = str(CONFIGURATION)
            CONFIGURATION.parent.mkdir(exist_ok=True)
            CONFIGURATION.write_text(configuration(runtime), encoding="utf-8")
        done = subprocess.run(
            command,
            env=os.environ | way,
            capture_output=True,
            text=True,
            check=False,
            timeout=TRY_S,
        )
        if done.returncode == 0:
            return way
        complaints += [f"  {runtime or 'by default'}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"]
    raise NoContainers(
        "\n".join(["no container runs here:", *complaints])
        + "\nWhere crun is refused, runc may do: apt-get install runc. Where cgroups may not be written (inside of "
        "another container), nothing does: take a machine, real or virtual, of your own."
    )


def configuration(runtime: str) -> str:
    """A containers.conf with this runtime, and without limits that could not be set: containers get this process's."""
    return f'[containers]\ndefault_ulimits = []\n\n[engine]\nruntime = "{runtime}"\n'
