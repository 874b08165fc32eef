"""The last release, as a small archive of its sources: what a rollout between it and this checkout needs of it.

    python -m tests.upgrade.release v0.2.0     # once it is tagged; commit release.tar.xz and release.toml

The archive has the packages, and those modules of tests/fault that play a worker or a producer of them. So the insides
that these modules reach into may change; what `tests.fault.fleet` and such a process say to each other may not.
"""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
PACKAGES = ("common", "producer", "worker", "operator", "gateway", "cli")
PROCESSES = ("control", "deathwish", "journal", "mutations", "plan", "witness", "worker_process", "zygote")
PATHS = (
    *PACKAGES,
    *(f"tests/fault/{name}.py" for name in (*PROCESSES, "producer_process")),
    "tests/constants.py",
    "tests/passwords.py",
    "tests/integration/forked.py",
)
ASK = """
import tests.fault.producer_process, tests.fault.worker_process, tests.integration.forked
from streamfleet.common.queue_configuration import PROTOCOLS
print(PROTOCOLS[-1])
"""


class Release(NamedTuple):
    """A release: its name, its commit, the protocol that its workers write, and its sources as .tar.xz."""

    name: str
    commit: str
    protocol: int
    archive: bytes

    def unpack(self, folder: Path) -> dict[str, str]:
        """Unpack the sources. Returns variables with which Python takes them in place of this checkout's."""
        _unpack(self.archive, folder)
        return _variables(folder)


def last() -> Release:
    """Returns the last release."""
    notes = tomllib.loads((FOLDER / "release.toml").read_text(encoding="utf-8"))
    return Release(**notes, archive=(FOLDER / "release.tar.xz").read_bytes())


def pack(name: str) -> Release:
    """Make a release of a tag or a commit that git knows here."""
    commit = _git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
    archive = lzma.compress(_git("archive", "--format=tar", commit, "--", *PATHS))
    with tempfile.TemporaryDirectory() as folder:
        _unpack(archive, Path(folder))
        variables = os.environ | _variables(Path(folder))
        asked = subprocess.run([sys.executable, "-c", ASK], env=variables, check=True, capture_output=True)
    return Release(name, commit, int(asked.stdout), archive)


def keep(release: Release, folder: Path = FOLDER) -> None:
    """Write the archive of a release, and the file that tells of it."""
    (folder / "release.tar.xz").write_bytes(release.archive)
    text = f'name = "{release.name}"\ncommit = "{release.commit}"\nprotocol = {release.protocol}\n'
    (folder / "release.toml").write_text(text, encoding="utf-8")


def _git(*words: str) -> bytes:
    command = ["git", "-C", str(FOLDER.parent.parent), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _unpack(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:xz") as tar:
        # Python 3.11.2 has no filters, and Python 3.12 warns of what uses none.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(folder)  # noqa: S202 - made here


def _variables(folder: Path) -> dict[str, str]:
    paths = [*(str(folder / name) for name in PACKAGES), str(folder)]
    # Without a safe path, `python -m` looks into the current folder first: into this checkout.
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


if __name__ == "__main__":
    made = pack(sys.argv[1])
    keep(made)
    print(f"{made.name}: {len(made.archive) / 1024:.0f} KB, protocol {made.protocol}; commit {FOLDER}/release.*")
