"""The kept scripts: of one commit, the sources that assemble the scripts and call them, as data of the tests.

    python -m tests.scripts.compare.kept COMMIT     keep those of this commit in the place of the ones before

They are kept as sources, Lua and brokers, because a commit's own brokers know what arguments its scripts take. The
archive's header names the commit.
"""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
ARCHIVE = Path(__file__).parent / "kept.tar.xz"
SCRIPTS = ("common/streamfleet", "operator/streamfleet/operator/__init__.py", "operator/streamfleet/operator/broker")
"""Folders of the scripts and of the brokers that call them."""
ALL = ("common", "producer", "worker", "operator", "gateway", "cli")


def sources(commit: str, folders: Sequence[str]) -> bytes:
    """A tar archive of folders of a commit. Raises CalledProcessError; git's errors go to standard error."""
    words = ("git", "-C", str(REPOSITORY), "archive", "--format=tar", commit, *folders)
    return subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout


def unpack(archive: bytes, folder: Path) -> str:
    """Write an archive of sources into a folder. Returns their commit."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:  # Python 3.11.2, which Debian 12 has
            packed.extractall(folder)  # noqa: S202 - an archive of this project's own
        return packed.pax_headers["comment"]


def unpack_kept(folder: Path) -> str:
    """Write the kept sources into a folder. Returns their commit."""
    return unpack(lzma.decompress(ARCHIVE.read_bytes()), folder)


def environment(folder: Path) -> dict[str, str]:
    """Environment of a process that runs the sources in a folder where it would run this checkout's."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / root) for root in ALL)}


def main() -> int:
    """Keep the scripts of the commit that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    try:
        archive = sources(sys.argv[1], SCRIPTS)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    ARCHIVE.write_bytes(lzma.compress(archive, preset=9 | lzma.PRESET_EXTREME))
    print(f"{ARCHIVE.relative_to(REPOSITORY)}: {ARCHIVE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
