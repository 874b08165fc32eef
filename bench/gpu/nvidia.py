"""Memory and utilisation of the GPU, by `nvidia-smi`, which comes with NVIDIA's driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

ANSWER_S = 30.0
EVERY_MS = 200


def present() -> bool:
    """True if NVIDIA's driver is installed."""
    return shutil.which("nvidia-smi") is not None


def asked(figure: str) -> list[str]:
    """The command that prints a figure of the first GPU that CUDA programs may use."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    return ["nvidia-smi", f"--id={gpu}", f"--query-gpu={figure}", "--format=csv,noheader,nounits"]


def memory_mib() -> float | None:
    """Memory that all processes together use, in MiB; None without a GPU."""
    try:
        said = subprocess.run(asked("memory.used"), capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
        return float(said)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


@contextmanager
def watching(busy: list[float]) -> Iterator[None]:
    """Add to a list, five times a second, the per cent of the time in which the GPU was busy."""
    if not present():
        yield
        return
    command = [*asked("utilization.gpu"), f"--loop-ms={EVERY_MS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        reader = threading.Thread(target=_read, args=(process.stdout, busy))
        reader.start()
        try:
            yield
        finally:
            process.terminate()
            reader.join()


def _read(lines: IO[str] | None, busy: list[float]) -> None:
    # A GPU may print "[N/A]" instead of a number.
    busy.extend(float(line) for line in lines or () if line.strip().isdigit())
