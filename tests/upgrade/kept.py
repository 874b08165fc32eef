"""The releases that are kept, and today's sources, as folders that a process can run from."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent / "releases"
ROOTS = ("common", "producer", "worker", "cli")


def kept() -> list[Path]:
    """Archives of the kept releases, oldest first."""
    return sorted(FOLDER.glob("streamfleet-*.tar.xz"), key=lambda path: path.name.split("-")[2])


def name_of(archive: Path) -> str:
    """Version, date and commit."""
    return archive.name.removeprefix("streamfleet-").removesuffix(".tar.xz")


def unpack(archive: Path, folder: Path) -> Path:
    """Put a release into a folder of its own, which is to be in PYTHONPATH."""
    target = folder / name_of(archive)
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(target, filter="data")
        else:  # Python 3.11.2, which Debian 12 has
            packed.extractall(target)  # noqa: S202 - an archive of this project's own
    return target


def copy_of_today(folder: Path) -> Path:
    """The same for the sources of this checkout."""
    for root in ROOTS:
        shutil.copytree(
            REPOSITORY / root / "streamfleet" / root,
            folder / "streamfleet" / root,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder
