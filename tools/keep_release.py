"""Keep the sources of a release, so that tests can run it beside today's: `.venv/bin/python tools/keep_release.py REV`.

Writes tests/upgrade/releases/streamfleet-<version>-<date>-<commit>.tar.xz: the packages as an installation has them,
under one folder `streamfleet`, and nothing else. The same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
FOLDER = REPOSITORY / "tests" / "upgrade" / "releases"
ROOTS = ("common", "producer", "worker", "operator", "cli")
SOURCE = re.compile(rf"(?:{'|'.join(ROOTS)})/(streamfleet/.+(?:\.py|\.lua|/py\.typed))")


def git(*words: str) -> bytes:
    """Run git and return its output. Raises CalledProcessError; git's errors go to standard error."""
    return subprocess.run(["git", *words], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout


def sources(commit: str) -> Iterator[tuple[str, bytes]]:
    """(name in an installation, content) of every file of the packages, in order of names."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", commit, *ROOTS))) as archive:
        for member in archive:
            match, content = SOURCE.fullmatch(member.name), archive.extractfile(member) if member.isfile() else None
            if match and content:
                found[match[1]] = content.read()
    yield from sorted(found.items())


def keep(revision: str) -> Path:
    """Write the archive of a revision. Returns its path."""
    commit = git("rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    date, epoch_s = git("show", "--no-patch", "--format=%cd %ct", "--date=format:%Y%m%d%H%M", commit).decode().split()
    version = tomllib.loads(git("show", f"{commit}:pyproject.toml").decode())["project"]["version"]
    path = FOLDER / f"streamfleet-{version}-{date}-{commit[:7]}.tar.xz"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sources(commit):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), int(epoch_s)
            archive.addfile(member, io.BytesIO(content))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a tag or commit, such as v0.1.0")
    try:
        path = keep(parser.parse_args().revision)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print(f"{path.relative_to(REPOSITORY)}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
