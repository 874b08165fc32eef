"""Clients of others at a gateway with the simulated engine: each gets an answer of the Responses API the way that it
asks by default.

    python -m tests.clients     # needs Node with npm; packages go to build/clients, apart from streamfleet's own

Ends with 0 when every client got its answers, and with 77 when the packages cannot be had here; prints a line for each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.integration.gateway_process import stage_in

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "clients"
PYTHON = BUILD / "python" / "bin" / "python"
NPM = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
INSTALL_S, ASK_S = 600, 120


def main() -> int:
    """Install what is missing, and let each client ask."""
    try:
        install()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"clients: npm and a registry of packages are needed: {error}", file=sys.stderr)
        return 77
    shutil.copy(HERE / "asking.mjs", BUILD)  # Node looks for packages beside the program
    with tempfile.TemporaryDirectory() as folder, stage_in(Path(folder), speed=100.0) as stage:
        environment = os.environ | {
            "CLIENTS_URL": f"{stage.gateway.url}/v1",
            "CLIENTS_KEY": stage.key,
            "CLIENTS_MODEL": "simulated",
        }
        programs = ([str(PYTHON), str(HERE / "asking.py")], ["node", "asking.mjs"])
        ended = [
            subprocess.run(each, check=False, cwd=BUILD, env=environment, timeout=ASK_S).returncode for each in programs
        ]
    return int(any(ended))


def install() -> None:
    """Make the two environments, unless they are as the pins say."""
    pins = HERE / "requirements.txt"
    if not same(pins, BUILD / "requirements.txt"):
        venv.create(PYTHON.parent.parent, with_pip=True, clear=True)
        run([str(PYTHON), "-m", "pip", "install", "--quiet", "-r", str(pins)])
        shutil.copy(pins, BUILD)
    if not same(HERE / "npm.json", BUILD / "npm.json"):
        shutil.copy(HERE / "npm.json", BUILD / "package.json")
        run(NPM)
        shutil.copy(HERE / "npm.json", BUILD)


def same(one: Path, other: Path) -> bool:
    """True if both files are there with the same content."""
    return other.exists() and one.read_bytes() == other.read_bytes()


def run(command: list[str]) -> None:
    """Run an installer; its error ends this."""
    subprocess.run(command, cwd=BUILD, check=True, timeout=INSTALL_S)


if __name__ == "__main__":
    sys.exit(main())
