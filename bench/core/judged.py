"""The code that a measurement judges: its last commit, and a digest by which a change of it is seen, without git."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from bench.core.reports import ROOT

QUEUE = (
    "common/streamfleet/common/lua/**/*.lua",
    *(f"{package}/streamfleet/{package}/**/*.py" for package in ("common", "producer", "worker")),
)
"""Of a measurement without a gateway."""


def sources_of(name: str) -> tuple[str, ...]:
    """Patterns of the files that a measurement judges, from the root of the repository."""
    return (*QUEUE, "gateway/streamfleet/**/*.py") if name == "gateway" else QUEUE


def digest(name: str, root: Path = ROOT) -> str:
    """Digest of these files as they are now."""
    found = hashlib.sha256()
    for path in sorted({path for pattern in sources_of(name) for path in root.glob(pattern)}):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def commit(name: str, root: Path = ROOT) -> str:
    """The last commit that changed these files, with a + if they have changed since; empty without git."""
    paths = [f":(glob){pattern}" for pattern in sources_of(name)]
    try:
        words = ["git", "log", "-1", "--abbrev=8", "--format=%h", "--", *paths]
        last = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
        same = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *paths], cwd=root, check=False).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return ""
    return last if same else f"{last}+"
