"""Hands pip's own configuration on this machine to the build of an image. Standard library only.

Indexes, folders with wheels, certificates and proxies are what this machine needs, and no part of the repository: a
build gets them as mounts, of which an image keeps nothing but empty mount points.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

OPTIONS = {
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "retries",
    "timeout",
    "default-timeout",
}
"""Options that say where packages are; the others are habits."""


def mounts(folder: Path) -> dict[str, str]:
    """Write a pip.conf into `folder`. Returns what to mount, by its path here: that file, and what it names."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: dict[str, str] = {}
    lines = ["[global]"]
    for name, value in options(listed).items():
        lines.append(f"{name} = {' '.join(moved(word, found) for word in value.split())}")
    if len(lines) == 1:
        return {}
    written = folder / "pip.conf"
    written.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {str(written): "/etc/pip.conf", **found}


def options(listed: str) -> dict[str, str]:
    """The options that say where packages are, out of `pip config list`; those of the environment win."""
    found: dict[str, str] = {}
    for section in ("global", ":env:"):
        for name, value in re.findall(rf"^{section}\.([a-z-]+)=(.+)$", listed, re.MULTILINE):
            if name in OPTIONS:
                found[name] = str(ast.literal_eval(value))
    return found


def moved(word: str, found: dict[str, str]) -> str:
    """A word of an option with a path of this disk replaced by its mount's, which is added to `found`."""
    scheme, path = ("file://", word[7:]) if word.startswith("file://") else ("", word)
    if not path.startswith("/") or not Path(path).exists():
        return word
    # The pages of an index name files beside it.
    mounted = str(Path(path).parent) if scheme else path
    inside = found.setdefault(mounted, f"/mnt/pip/{len(found)}")
    return f"{scheme}{inside}{path.removeprefix(mounted)}"
