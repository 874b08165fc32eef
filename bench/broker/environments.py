"""A virtual environment for each peer, made on first use under build/bench/peers and kept until its pins change."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from rich.console import Console

from bench.broker.systems import System
from bench.core.reports import ROOT

PEERS = Path(__file__).parent / "peers"
HOME = ROOT / "build" / "bench" / "peers"
NODE = "bullmq-node"
INSTALL_TIMEOUT_S = 600.0
AT_ONCE = 3
"""Installations: they wait for the network by turns, and two cores are enough for this many."""


class NotThere(Exception):
    """A peer's environment cannot be made; the message is the reason."""


def command(system: System) -> tuple[list[str], Path]:
    """Returns the command that starts a system's adapter, and its working folder; see `prepare`."""
    if system.environment == NODE:
        return ["node", str(PEERS / system.adapter)], HOME / NODE
    if not system.environment:
        ours = not system.adapter.endswith(".py")
        return [sys.executable, *(["-m", system.adapter] if ours else [str(PEERS / system.adapter)])], ROOT
    return [str(HOME / system.environment / "bin/python"), str(PEERS / system.adapter)], ROOT


def prepare(systems: Sequence[System], console: Console) -> dict[str, str]:
    """Make the missing environments, and print a line for each.

    Returns:
        The systems that cannot be measured, each with the reason.
    """
    missing = [each for each in systems if each.environment and _stamp(HOME / each.environment) != _wanted(each)]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        reasons = list(pool.map(lambda system: _make(system, console), missing))
    return {system.name: reason for system, reason in zip(missing, reasons, strict=True) if reason}


def versions(system: System) -> dict[str, str]:
    """Installed versions of a system's packages."""
    if system.environment == NODE:
        there = {name: _node_version(name) for name in system.packages}
        return there | {"node": _said(["node", "--version"]).removeprefix("v")}
    if not system.environment:
        return {name: metadata.version(name) for name in system.packages}
    paths = [str(path) for path in (HOME / system.environment).glob("lib/python*/site-packages")]
    found = {each.name.lower(): each.version for each in metadata.distributions(path=paths)}
    return {name: found.get(name, "none") for name in system.packages}


def _make(system: System, console: Console) -> str:
    """Make the environment anew; returns the reason if that fails, else an empty string."""
    folder = HOME / system.environment
    console.print(f"installing {system.title} into {folder.relative_to(ROOT)} …")
    try:
        _make_node(folder) if system.environment == NODE else _make_python(folder, _pins(system))
    except (NotThere, OSError, subprocess.TimeoutExpired) as error:
        console.print(f"[bold red]{system.title} will not be measured:[/] {error}", highlight=False)
        return str(error) or type(error).__name__
    (folder / ".installed").write_text(_wanted(system), encoding="utf-8")
    return ""


def _pins(system: System) -> Path:
    return PEERS / (f"{system.environment}.txt" if system.environment != NODE else "package.json")


def _wanted(system: System) -> str:
    """Content of the environment's stamp if it is up to date."""
    return f"{hashlib.sha256(_pins(system).read_bytes()).hexdigest()} {sys.version.split()[0]}"


def _stamp(folder: Path) -> str:
    stamp = folder / ".installed"
    return stamp.read_text(encoding="utf-8") if stamp.exists() else ""


def _make_python(folder: Path, pins: Path) -> None:
    # Our own pip installs into it, so that pip need not be installed each time.
    venv.EnvBuilder(clear=True, with_pip=False, symlinks=True).create(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", "--no-input"]
    _run("pip", [*pip, "--disable-pip-version-check", "--requirement", str(pins)], folder)


def _make_node(folder: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        raise NotThere("node or npm is not on PATH: make bench-broker installs both")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(PEERS / "package.json", folder)
    _run("npm", ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"], folder)


def _run(installer: str, words: list[str], folder: Path) -> None:
    done = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines()
        errors = [line.strip() for line in lines if line.lower().startswith(("error", "npm error"))]
        raise NotThere(f"{installer} could not install it: {(errors or lines or ['it said nothing'])[-1]}")


def _node_version(package: str) -> str:
    path = HOME / NODE / "node_modules" / package / "package.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["version"]) if path.exists() else "none"


def _said(words: list[str]) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "none"
