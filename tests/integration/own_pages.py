"""Pages of a process's own server: health, metrics."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A page's answer."""

    status: int
    text: str


def page(port: int, path: str) -> Answer:
    """A page of a server on this machine, whatever its status."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
            return Answer(found.status, found.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read().decode())


def sample_on(metrics: str, sample: str) -> float:
    """Value of a sample of a metrics page, such as `streamfleet_ready`; 0 when it is not there."""
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        if name == sample:
            return float(value)
    return 0.0
