"""libnuma.so.1, which vLLM on CPU loads and many machines lack."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

LIBRARY = "libnuma.so.1"

# For every Python of the environment, vLLM's children included: what is loaded already is found by its name.
_PRELOAD = "import ctypes, os; os.path.exists({path!r}) and ctypes.CDLL({path!r}, mode=ctypes.RTLD_GLOBAL)\n"

_ADVICE = f"""vLLM on CPU needs {LIBRARY}, which this machine does not have. Install it, then try again:
  Debian, Ubuntu   sudo apt-get update && sudo apt-get install libnuma1
  Fedora, RHEL     sudo dnf install numactl-libs
  Arch             sudo pacman -S numactl"""


def libnuma_problem(venv: Path) -> str | None:
    """None when the library is there, or could be put into the environment; else what to do about it."""
    if _loads(LIBRARY) or _from_debian_package(venv):
        return None
    return _ADVICE


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _from_debian_package(venv: Path) -> bool:
    """Unpack Debian's package into the environment; needs no root, but apt with its package lists."""
    target = venv / "lib/system" / LIBRARY
    if not target.exists() and not _unpack(target):
        return False
    if not _loads(str(target)):
        return False
    site_packages = next((venv / "lib").glob("python3*/site-packages"))
    (site_packages / "streamfleet_libnuma.pth").write_text(_PRELOAD.format(path=str(target)), encoding="utf-8")
    return True


def _unpack(target: Path) -> bool:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run("apt-get", "download", "libnuma1", folder=folder)
            _run("dpkg-deb", "-x", next(Path(folder).glob("*.deb")).name, "unpacked", folder=folder)
            found = next(Path(folder).glob(f"unpacked/**/{LIBRARY}"))
        except (OSError, subprocess.SubprocessError, StopIteration):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, target)
    return True


def _run(*command: str, folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
