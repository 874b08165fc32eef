"""Unpacks programs of Debian packages into `.venv/lib/system`; needs apt, and no root. Standard library only.

The system itself stays unchanged: nothing is installed there, and no service starts. Packages, with their missing
dependencies, come from the mirrors that apt is configured with. Each program gets a wrapper in
`.venv/programs`, which the Makefile and tests/conftest.py put on PATH.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

LIBRARY = "libnuma.so.1"
PROGRAMS = {
    "redis-server": "redis-server",
    "openssl": "openssl",
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "curl": "curl",
    "tcc": "tcc libc6-dev",
    "luacheck": "lua-check",
    "luac5.1": "lua5.1",
}
"""Packages of each program: a further Redis with TLS, certificates, alert rules and panels, the gateway's demo, a C
compiler for the library that sets a Redis's clock, and the checks of the Lua scripts."""
LINT = ("luacheck", "luac5.1")
"""Programs that `make lint` runs."""
_VERSION = {"openssl": "version", "luac5.1": "-v"}
UPDATE_S, DOWNLOAD_S = 240, 300

# Runs in every Python of the environment, vLLM's children included; a loaded library is found by its name.
_PRELOAD = "import ctypes, os; os.path.exists({path!r}) and ctypes.CDLL({path!r}, mode=ctypes.RTLD_GLOBAL)\n"
_WRAPPER = """\
#!/bin/sh
export LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} OPENSSL_CONF={root}/etc/ssl/openssl.cnf
export CPATH={headers} PATH={root}/usr/bin:$PATH
export LUA_PATH='{root}/usr/share/lua/5.1/?.lua;{root}/usr/share/lua/5.1/?/init.lua;;' LUA_CPATH='{lua}/?.so;;'
exec {program} "$@"
"""
_ADVICE = f"""vLLM on CPU needs {LIBRARY}, which this machine does not have. Install it, then try again:
  Debian, Ubuntu   sudo apt-get update && sudo apt-get install libnuma1
  Fedora, RHEL     sudo dnf install numactl-libs
  Arch             sudo pacman -S numactl"""


class NoPackages(Exception):
    """apt is not here, or could not fetch the packages; the message says which of these."""


def libnuma_problem(venv: Path) -> str | None:
    """None if the library is present, or could be put into the environment; else advice for the user."""
    root = venv / "lib/system"
    target = _libraries(root)[0] / LIBRARY
    if _loads(LIBRARY):
        return None
    try:
        if not target.exists():
            unpack(["libnuma1"], root)
    except NoPackages:
        return _ADVICE
    if not _loads(str(target)):
        return _ADVICE
    site_packages = next((venv / "lib").glob("python3*/site-packages"))
    (site_packages / "streamfleet_libnuma.pth").write_text(_PRELOAD.format(path=str(target)), encoding="utf-8")
    return None


def missing_programs(venv: Path, wanted: Iterable[str] = PROGRAMS) -> list[str]:
    """Wanted programs that are neither on PATH nor unpacked."""
    path = os.pathsep.join([str(venv / "programs"), os.environ.get("PATH", "")])
    found = {program for program in wanted if shutil.which(program, path=path)}
    if shutil.which("cc"):
        found.add("tcc")
    return [program for program in wanted if program not in found]


def unpack_programs(venv: Path, programs: Iterable[str]) -> None:
    """Unpack these programs, and write their wrappers.

    Raises:
        NoPackages: there is no apt, it reaches no mirror, or a program does not run here.
    """
    root, folder = venv / "lib/system", venv / "programs"
    unpack(sorted({package for program in programs for package in PROGRAMS[program].split()}), root)
    folder.mkdir(exist_ok=True)
    libraries = os.pathsep.join(str(each) for each in _libraries(root))
    first = _libraries(root)[0]
    headers = os.pathsep.join(
        map(str, (first / "tcc/include", root / "usr/include", root / "usr/include" / first.name))
    )
    for program in programs:
        found = root / "usr/bin" / program
        wrapper = folder / program
        wrapper.write_text(
            _WRAPPER.format(libraries=libraries, headers=headers, lua=first / "lua/5.1", root=root, program=found),
            encoding="utf-8",
        )
        wrapper.chmod(0o755)
        said = subprocess.run([wrapper, _VERSION.get(program, "--version")], capture_output=True, check=False)
        if said.returncode:
            wrapper.unlink()
            raise NoPackages(f"{program} of Debian's package {PROGRAMS[program]} does not run here")


def unpack(packages: Iterable[str], root: Path) -> None:
    """Unpack packages and their missing dependencies below a folder.

    Raises:
        NoPackages: there is no apt, or it could not fetch them.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NoPackages("there is no apt-get")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("state/lists/partial", "cache/archives/partial"):
            Path(folder, name).mkdir(parents=True)
        # Private lists and downloads, because those of the system belong to root, and are often absent.
        apt = ["apt-get", "--quiet", "--yes", "-o", "Debug::NoLocking=1"]
        apt += ["-o", f"Dir::State={folder}/state", "-o", "Dir::State::status=/var/lib/dpkg/status"]
        apt += ["-o", f"Dir::Cache={folder}/cache", "-o", "APT::Sandbox::User="]
        _run([*apt, "update"], UPDATE_S)
        _run([*apt, "install", "--download-only", "--no-install-recommends", *packages], DOWNLOAD_S)
        root.mkdir(parents=True, exist_ok=True)
        for package in sorted(Path(folder, "cache/archives").glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(root)], DOWNLOAD_S)


def _run(command: list[str], timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPackages(str(error)) from None
    if done.returncode:
        raise NoPackages((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])


def _libraries(root: Path) -> list[Path]:
    folder = f"{platform.machine()}-linux-gnu"
    return [root / "usr/lib" / folder, root / "lib" / folder]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
